"""The tokeniser of the public caption evaluation, without its Java program.

The public evaluation splits text with a Penn Treebank tokeniser, lowercases it and drops punctuation. ``tokenize``
returns the same words, by rules inferred from that tokeniser's behaviour. They work as in a scanner: the longest match
wins, and the first rule among equals.
"""

import re
from functools import lru_cache

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

# If a pattern has a group, the group is the token; the rest still counts towards the length of the match.
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
        # Names, addresses and tags
        r"[A-Z]+(?:&[A-Z]+)+",  # AT&T
        r"(?:US|HK|A|C)\$",
        rf"#{_L}+",
        r"@[a-zA-Z_]\w*",
        r"[\w.+-]+@[\w.-]*\w",
        r"(?:https?://|www\.)[^\s\"<>]*[\w/]",
        rf"</?{_L}[^<>\s]*>",
        rf"[<>]?[:;=]['-]?[()DP|\[\]](?!{_L})",
        # Runs of one character
        r"[!?]+|\*+|_+|#+|@+|--(?:-{3,})?|\.{3}|<<|>>",
    )
]
_BEGINNING = re.compile(_BEGINNINGS, re.IGNORECASE)


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
        if following[0].isupper() and _BEGINNING.fullmatch(following):
            words += _words(chunk, " ")
        else:
            words += _words(chunk, " 0" if following[0].isdigit() else "")
    return words


@lru_cache(maxsize=1 << 16)
def _words(chunk: str, following: str) -> tuple[str, ...]:
    """The words of text without spaces that is followed by the end of a sentence (" "), a number (" 0") or neither."""
    words: list[str] = []
    text, position = chunk + following, 0
    while position < len(chunk):
        length, end = 0, position + 1
        for rule in _RULES:
            match = rule.match(text, position)
            if match and match.end() - position > length:
                length, end = match.end() - position, match.end(match.lastindex or 0)
        word = text[position:end].lower()
        word = _SYMBOLS.get(word, word)
        for bracket, name in _BRACKETS.items():
            word = word.replace(bracket, name)
        if word not in _DROPPED:
            words.append(word)
        position = end
    return tuple(words)
