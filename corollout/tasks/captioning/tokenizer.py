"""The tokeniser of the public caption evaluation, without its Java program.

The public evaluation splits text with a Penn Treebank tokeniser, lowercases it and drops punctuation. ``tokenize``
returns the same words, by rules inferred from that tokeniser's behaviour. They work as in a scanner: the longest match
wins, and the first rule among equals.
"""

import re
from functools import lru_cache
from typing import NamedTuple

# Dropped when they stand alone. Brackets are not, because the evaluation does not recognise its own names for them in
# lower case. Runs such as "!!" are not dropped either.
_DROPPED = frozenset(["''", "'", "``", "`", '"', ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_SYMBOLS = {"£": "#", "€": "$", "¤": "$", "¢": "cents"} | _BRACKETS
_SYMBOLS |= {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}

# Replaced before tokenising; soft hyphens are removed.
_PLAIN = str.maketrans(
    {"‘": "`", "‹": "`", "’": "'", "›": "'", "“": '"', "”": '"', "«": '"', "»": '"'}
    | {"–": "--", "—": "--", "…": "...", "\N{SOFT HYPHEN}": ""}
)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&amp;": "&"}

# Abbreviations, which keep their full stop.
_ABBREVIATIONS = (
    "adj|adm|adv|al|ala|alex|apr|ariz|assn|assoc|asst|atty|aug|ave|bhd|bldg|blvd|brig|bros|calif|capt|cf|cie|cmdr"
    "|co|col|colo|conn|corp|cos|cpl|ct|dak|dec|dept|det|dr|drs|elec|ens|esq|est|etc|ext|feb|fla|fri|ft|ga|gen|gov"
    "|govs|hon|inc|ind|insp|intl|invt|jan|jos|jr|jul|jun|kan|kans|ky|lieut|lt|ltd|maj|mar|md|messrs|mfg|mich|minn"
    "|mlle|mme|mo|mon|mont|mr|mrs|ms|msgr|mt|mtg|natl|neb|nev|nov|oct|okla|penn|pfc|ph|plc|ppte|ppty|pres|prof|pte"
    "|ptes|pty|ptys|pvt|rd|rep|reps|rev|rt|sen|sens|sep|sept|seq|sfc|sgt|spc|sq|sr|st|ste|supt|sys|tel|tenn|thu"
    "|thurs|tue|tues|univ|va|vs|vt|wed|wis|wisc|wm|wyo"
)
# States, only with a capital, so that the last word of a sentence is not taken for one.
_STATES = "A(?i:rk)|A(?i:z)|D(?i:el)|I(?i:ll)|L(?i:a)|M(?i:ass)|M(?i:iss)|O(?i:re)|P(?i:a)|T(?i:ex)|W(?i:ash)"
# Abbreviations only before a number.
_BEFORE_NUMBERS = "art|ca|fig|figs|no|nos|op|pp|prop"
# Capitalised, these begin a sentence: a single letter before them does not keep its full stop.
_BEGINNINGS = (
    "a|about|according|after|an|as|at|but|earlier|he|her|here|however|if|in|it|last|many|more|now|once|one|other"
    "|our|she|since|so|some|such|that|the|their|then|there|these|they|this|we|what|when|while|yet|you"
)

_A, _L = r"[^\W_]", r"[^\W\d_]"  # a letter or digit; a letter
_PART = rf"(?:[dlnoDLNO]'(?={_L}{_L}))?{_A}+"  # of a word with hyphens: l'eau, o'clock
_SIDE = rf"{_A}+(?:-{_L}{_A}*)*"  # of a slash


class _Rule(NamedTuple):
    """A pattern; if it has a group, the group is the token, but the rest still counts towards the length of the match.

    A text without any of the characters ``needs`` cannot match. Where a rule with a ``run`` does not match, it matches
    nowhere before the last character of this run: it would look far ahead again and again, all in vain.
    """

    pattern: re.Pattern[str]
    needs: frozenset[str]
    run: re.Pattern[str] | None


def _rule(pattern: str, needs: str = "", run: str | None = None) -> _Rule:
    return _Rule(re.compile(pattern), frozenset(needs), None if run is None else re.compile(run))


_RULES = [
    _rule(r"(?i:(can)not|(gon)na|(got)ta|(wan)na|(gim)me|(lem)me)(?![\w'-])"),
    _rule(rf"{_PART}(?:[-_]{_A}+)*"),
    _rule(rf"{_A}+(?:[.,]{_A}+)+(?:-{_A}+)+", "-", run=rf"{_A}+(?:[.,]{_A}+)*"),  # 1,000-piece
    _rule(rf"{_SIDE}/{_SIDE}(?:/{_SIDE})?", "/"),
    _rule(r"\d+(?:-\d+)?/\d+", "/"),
    _rule(r"[-+]?\d*(?:[.,:]\d+)+", ".,:"),
    _rule(r"[-+]?\d+"),
    _rule(rf"{_L}{_A}*(?:\.{_L}{_A}*)+(?:-{_A}+)*", "."),  # end.Then
    _rule(rf"{_L}+(?:[!?]{_L}+)+", "!?"),  # look!a
    _rule(rf"(?:{_L}\.)+(?:-{_A}+)*", "."),  # U.S.
    _rule(rf"{_A}+-(?:{_L}\.){{2,}}", "."),  # non-U.S.
    _rule(rf"(?i:{_ABBREVIATIONS})\.(?:-{_A}+)*", "."),
    _rule(rf"(?:{_STATES})\.", "."),
    _rule(rf"((?i:{_BEFORE_NUMBERS})\.) ?\d", "."),
    _rule(rf"({_L})\. $", "."),
    _rule(rf"({_PART}(?:[-_.]{_A}+)*\.)[,;:]", ".", run=rf"{_PART}(?:[-_.]{_A}+)*"),
    _rule(r"(?i:ph|ed)\.[dD]\.", "."),
    # Apostrophes
    _rule(rf"({_L}+)[nN]'[tT]", "'"),
    _rule(r"[nN]'[tT]", "'"),
    _rule(rf"'(?i:s|m|d|ll|re|ve)(?!{_L})", "'"),
    _rule(rf"{_L}+[aeiouyAEIOUY]'[aeiouAEIOU]{_L}*", "'"),  # ma'am
    _rule(rf"([jyJY]'){_L}", "'"),
    _rule(r"[dlDL]'", "'"),
    _rule(rf"(?i:ol'(?!{_L}{_L})|c'mon|s'mores)", "'"),
    _rule(r"'(?i:em|till?|cause)", "'"),
    _rule(r"('(?i:t))(?i:is|was)", "'"),
    _rule(r"'[nN]'", "'"),
    _rule(r"'[nN](?!\S)", "'"),
    _rule(r"'\d\d(?:[sS]|(?!\S))", "'"),
    # Names, addresses and tags
    _rule(r"[A-Z]+(?:&[A-Z]+)+", "&"),  # AT&T
    _rule(r"(?:US|HK|A|C)\$", "$"),
    _rule(rf"#{_L}+", "#"),
    _rule(r"@[a-zA-Z_]\w*", "@"),
    _rule(r"[\w.+-]+@[\w.-]*\w", "@", run=r"[\w.+-]+"),
    _rule(r"(?:https?://|www\.)[^\s\"<>]*[\w/]", ".:"),
    _rule(rf"</?{_L}[^<>\s]*>", ">"),
    _rule(rf"[<>]?[:;=]['-]?[()DP|\[\]](?!{_L})", ":;="),
    # Runs of one character
    _rule(r"[!?]+|\*+|_+|#+|@+|--(?:-{3,})?|\.{3}|<<|>>", "!?*_#@-.<>"),
]
_BEGINNING = re.compile(_BEGINNINGS, re.IGNORECASE)
_MOST_KEPT = 100  # characters of text whose words are kept


def tokenize(text: str) -> list[str]:
    """The words of a caption.

    The public evaluation tokenises all captions as one text, where the next caption decides whether one ends with the
    letter "K" or the initial "K."; here it is always the letter.
    """
    if "&" in text:
        for entity, character in _ENTITIES.items():
            text = text.replace(entity, character)
    chunks = text.translate(_PLAIN).split()
    words: list[str] = []
    for number, chunk in enumerate(chunks, 1):
        following = chunks[number] if number < len(chunks) else "A"
        split = _kept_words if len(chunk) <= _MOST_KEPT else _words
        if following[0].isupper() and _BEGINNING.fullmatch(following):
            words += split(chunk, " ")
        else:
            words += split(chunk, " 0" if following[0].isdigit() else "")
    return words


def _words(chunk: str, following: str) -> tuple[str, ...]:
    """The words of text without spaces that is followed by the end of a sentence (" "), a number (" 0") or neither."""
    words: list[str] = []
    text, position = chunk + following, 0
    characters = frozenset(text)
    rules = [rule for rule in _RULES if not (rule.needs and rule.needs.isdisjoint(characters))]
    hopeless = [0] * len(rules)  # a rule does not match before this position
    while position < len(chunk):
        length, end = 0, position + 1
        for number, rule in enumerate(rules):
            if position < hopeless[number]:
                continue
            match = rule.pattern.match(text, position)
            if match and match.end() - position > length:
                length, end = match.end() - position, match.end(match.lastindex or 0)
            elif not match and rule.run and (run := rule.run.match(text, position)):
                hopeless[number] = run.end() - 1
        word = text[position:end].lower()
        word = _SYMBOLS.get(word, word)
        for bracket, name in _BRACKETS.items():
            word = word.replace(bracket, name)
        if word not in _DROPPED:
            words.append(word)
        position = end
    return tuple(words)


_kept_words = lru_cache(maxsize=1 << 16)(_words)
