"""Captions as words: those of the reference evaluation, without its Java program.

The public evaluation of captions cuts text with a tokeniser of the Penn Treebank's kind, in lower case, and drops
punctuation. ``tokenize`` gives the same words, by rules that were found by watching that tokeniser at work. They act
as in a scanner: where several match, the longest wins, of equals the first.
"""

import re
from functools import lru_cache

# Alone, these are dropped. Brackets are not: the reference evaluation misses its own names for them in lower case.
# Nor are runs such as "!!".
_DROPPED = frozenset(["''", "'", "``", "`", '"', ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
_CURRENCIES = {"£": "#", "€": "$", "¤": "$", "¢": "cents"}
_FRACTIONS = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3"}
_SYMBOLS = _BRACKETS | _CURRENCIES | _FRACTIONS

# Read as if they were written otherwise; a soft hyphen as if it were not there.
_PLAIN = str.maketrans(
    {"‘": "`", "‹": "`", "’": "'", "›": "'", "“": '"', "”": '"', "«": '"', "»": '"'}
    | {"–": "--", "—": "--", "…": "...", "\N{SOFT HYPHEN}": ""}
)
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&nbsp;": " ", "&amp;": "&"}

# Words that keep a full stop.
_ABBREVIATIONS = (
    "adj|adm|adv|al|ala|alex|apr|ariz|assn|assoc|asst|atty|aug|ave|bhd|bldg|blvd|brig|bros|calif|capt|cf|cie|cmdr"
    "|co|col|colo|conn|corp|cos|cpl|ct|dak|dec|dept|det|dr|drs|elec|ens|esq|est|etc|ext|feb|fla|fri|ft|ga|gen|gov"
    "|govs|hon|inc|ind|insp|intl|invt|jan|jos|jr|jul|jun|kan|kans|ky|lieut|lt|ltd|maj|mar|md|messrs|mfg|mich|minn"
    "|mlle|mme|mo|mon|mont|mr|mrs|ms|msgr|mt|mtg|natl|neb|nev|nov|oct|okla|penn|pfc|ph|plc|ppte|ppty|pres|prof|pte"
    "|ptes|pty|ptys|pvt|rd|rep|reps|rev|rt|sen|sens|sep|sept|seq|sfc|sgt|spc|sq|sr|st|ste|supt|sys|tel|tenn|thu"
    "|thurs|tue|tues|univ|va|vs|vt|wed|wis|wisc|wm|wyo"
)
# These only with a capital, lest the last word of a sentence be taken for a state …
_STATES = "A(?i:rk)|A(?i:z)|D(?i:el)|I(?i:ll)|L(?i:a)|M(?i:ass)|M(?i:iss)|O(?i:re)|P(?i:a)|T(?i:ex)|W(?i:ash)"
# … and these only before a number.
_BEFORE_NUMBERS = "art|ca|fig|figs|no|nos|op|pp|prop"
# With a capital, these begin a sentence: a single letter before them has no full stop of its own.
_BEGINNINGS = (
    "a|about|according|after|an|as|at|but|earlier|he|her|here|however|if|in|it|last|many|more|now|once|one|other"
    "|our|she|since|so|some|such|that|the|their|then|there|these|they|this|we|what|when|while|yet|you"
)

_A, _L = r"[^\W_]", r"[^\W\d_]"  # a letter or digit; a letter
_PART = rf"(?:[dlnoDLNO]'(?={_L}{_L}))?{_A}+"  # of a word with hyphens: l'eau, o'clock
_SIDE = rf"{_A}+(?:-{_L}{_A}*)*"  # of a slash

# Where a pattern has a group, that is the token, and what follows it counts towards the length of the match.
_RULES = [
    re.compile(pattern)
    for pattern in (
        r"(?i:(can)not|(gon)na|(got)ta|(wan)na|(gim)me|(lem)me)(?![\w'-])",
        rf"{_PART}(?:[-_]{_A}+)*",
        rf"{_A}+(?:[.,]{_A}+)+(?:-{_A}+)+",  # 1,000-piece
        rf"{_SIDE}/{_SIDE}(?:/{_SIDE})?",
        r"\d+(?:-\d+)?/\d+",
        r"[-+]?\d*(?:[.,:]\d+)+",
        r"[-+]?\d+",
        rf"{_L}{_A}*(?:\.{_L}{_A}*)+(?:-{_A}+)*",  # end.Then
        rf"{_L}+(?:[!?]{_L}+)+",  # look!a
        rf"(?:{_L}\.)+(?:-{_A}+)*",  # U.S.
        rf"{_A}+-(?:{_L}\.){{2,}}",  # non-U.S.
        rf"(?i:{_ABBREVIATIONS})\.(?:-{_A}+)*",
        rf"(?:{_STATES})\.",
        rf"((?i:{_BEFORE_NUMBERS})\.) ?\d",
        rf"({_L})\. $",
        rf"({_PART}(?:[-_.]{_A}+)*\.)[,;:]",
        r"(?i:ph|ed)\.[dD]\.",
        # Apostrophes
        rf"({_L}+)[nN]'[tT]",
        r"[nN]'[tT]",
        rf"'(?i:s|m|d|ll|re|ve)(?!{_L})",
        rf"{_L}+[aeiouyAEIOUY]'[aeiouAEIOU]{_L}*",  # ma'am
        rf"([jyJY]'){_L}",
        r"[dlDL]'",
        rf"(?i:ol'(?!{_L}{_L})|c'mon|s'mores)",
        r"'(?i:em|till?|cause)",
        r"('(?i:t))(?i:is|was)",
        r"'[nN]'",
        r"'[nN](?!\S)",
        r"'\d\d(?:[sS]|(?!\S))",
        # Names that are not words
        r"[A-Z]+(?:&[A-Z]+)+",  # AT&T
        r"(?:US|HK|A|C)\$",
        rf"#{_L}+",
        r"@[a-zA-Z_]\w*",
        r"[\w.+-]+@[\w.-]*\w",
        r"(?:https?://|www\.)[^\s\"<>]*[\w/]",
        rf"</?{_L}[^<>\s]*>",
        rf"[<>]?[:;=]['-]?[()DP|\[\]](?!{_L})",
        # Runs of one sign
        r"[!?]+|\*+|_+|#+|@+|--(?:-{3,})?|\.{3}|<<|>>",
    )
]
_BEGINNING = re.compile(_BEGINNINGS, re.IGNORECASE)


def tokenize(text: str) -> list[str]:
    """The words of a caption.

    The reference evaluation reads all captions as one text, so that the next one has a say in whether a caption ends
    with the letter "K" or the initial "K."; here it is the letter.
    """
    if "&" in text:
        for entity, character in _ENTITIES.items():
            text = text.replace(entity, character)
    chunks = text.translate(_PLAIN).split()
    words: list[str] = []
    for place, chunk in enumerate(chunks, 1):
        following = chunks[place] if place < len(chunks) else "A"
        if following[0].isupper() and _BEGINNING.fullmatch(following):
            words += _words(chunk, " ")
        else:
            words += _words(chunk, " 0" if following[0].isdigit() else "")
    return words


@lru_cache(maxsize=1 << 16)
def _words(chunk: str, following: str) -> tuple[str, ...]:
    """The words of a piece of text without spaces, before the end of a sentence (" "), a number (" 0") or neither."""
    words: list[str] = []
    text, place = chunk + following, 0
    while place < len(chunk):
        length, end = 0, place + 1
        for rule in _RULES:
            match = rule.match(text, place)
            if match and match.end() - place > length:
                length, end = match.end() - place, match.end(match.lastindex or 0)
        word = text[place:end].lower()
        word = _SYMBOLS.get(word, word)
        for bracket, name in _BRACKETS.items():
            word = word.replace(bracket, name)
        if word not in _DROPPED:
            words.append(word)
        place = end
    return tuple(words)
