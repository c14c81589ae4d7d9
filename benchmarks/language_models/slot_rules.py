"""What texts of the E2E data say for the values of slots, as regular expressions over plain text (`slots.py`).

Crowd workers wrote the texts, so the rules are of what they say: prices and ratings are given as words or numbers of
three levels (``cheap`` and ``less than £20`` are told apart by nobody), a family-friendly place is one where children
are mentioned without a negation, and "restaurant" is the common word for every place.
"""

import re

# What texts say for a value; commas and full stops are words of their own, which no rule crosses.
PATTERNS = {
    "eatType": {
        "pub": r"pubs?|public house|(?<!sushi )(?<!wine )(?<!snack )bars?|taverns?",
        "coffee shop": r"coffee\w*|cafes?|tea (?:shop|room|house)",
        "restaurant": r"rest\w*nts?|eater(?:y|ies)|diners?|bistro|dining|establishment|place|joint",
    },
    "food": {
        "Chinese": r"chinese|china|cantonese|noodles?",
        "English": r"english|british|england|fish and chips",
        "Fast food": r"fast ?foods?|(?:ham|cheese)?burgers?|fries",
        "French": r"french(?! fries)|france|crepes?|croissants?",
        "Indian": r"indian?s?|curry|curries",
        "Italian": r"italian?s?|italy|pasta|pizzas?|spaghetti",
        "Japanese": r"japan\w*|sushi",
    },
    "area": {
        "city centre": r"(?<!of the )(?<!outside )(?<!outside the )(?<!outside of )(?:city|town)(?: s)? (?:centre|"
        r"center|central)|"
        r"(?:centre|center|heart|middle) of (?:the |a |our )?(?:city|town|cambridge)|in(?:ner)? (?:the |"
        r"our )?(?:city|town)|"
        r"(?:in|at|near|to|by) (?:the )?(?:city |town )?(?:centre|center)|down ?town|centrally|central (?:area|"
        r"location)",
        "riverside": r"river\w*|water ?(?:front|side)|by the water|(?:thames|cam)",
    },
}
# Prices and ratings have levels: the values, what numbers say, and, if there are no numbers, what words say.
_OF = (
    r"(?: (?:of|at|is|are|in|a|an|the|its|very|quite|rather|fairly|on|side|from|range|ranges|be|can|tend|to|has|have|"
    r"with))*"
)
_PRICE = r"(?:pric\w+|costs?|costing|cost|end|budget)"
PRICES = {
    "low": (
        ("cheap", "less than £20"),
        r"(?:less|lower|cheaper|fewer|no more) (?:than|then) £? ?(?:20|twenty)|(?:under|below|up to|"
        r"within)(?: of)? £? ?(?:20|twenty)|"
        r"£ ?20 (?:or|and) (?:less|under|below)",
        rf"cheap\w*|inexpensive\w*|affordabl[ey]|low(?:er|est|ly)?(?: than average)?(?: \w+)? {_PRICE}|budget|"
        rf"economical|"
        rf"(?:less|lower) than average|(?:prices?|price range|costs?|priced){_OF} low(?! rat| cust)\w*|"
        r"(?:good|great|excellent) (?:value|prices?)|value for money|bargains?|not (?:too |very |that )?(?:expensive|"
        r"pricey)",
    ),
    "middle": (
        ("moderate", "£20-25"),
        r"£? ?20 ?(?:£|pounds)? ?(?:to|and|through|or)? ?£? ?25|twenty (?:to )?twenty five",
        rf"moderat\w* (?:and )?(?:expensive|{_PRICE}|rate[sd]?)|moderately|(?:prices?|price range|priced|"
        rf"costs?){_OF} (?:moderat\w*|"
        rf"medium|middle|mid|average|reasonable|fair)(?! rat| cust| out)|reasonabl[ey]|mid(?:dle)? ?(?:range|level)|"
        rf"medium range|"
        rf"(?<!than )(?:mid|middle|medium|average(?:ly)?|fair(?:ly)?|decent\w*|standard|normal|"
        rf"moderate)(?: \w+)? {_PRICE}",
    ),
    "high": (
        ("high", "more than £30"),
        r"(?:more|higher|greater|upwards?) (?:than|then|of) £? ?(?:30|thirty)|(?:over|above|exceed\w*|start\w*(?: at|"
        r" from)?|at least|"
        r"minimum(?: of)?|excess of|from) £? ?(?:30|thirty)|£? ?(?:30|thirty) ?(?:\+|plus|(?:and|or) (?:up|above|"
        r"over|more|higher)|upwards?)",
        rf"(?<!moderately )(?<!not )(?<!not too )(?<!not very )(?:expensive|pric(?:e?y|ier)|costly)|up ?(?:scale|"
        rf"market)|"
        rf"high(?:er|ly)?(?: than average)?(?: \w+)? {_PRICE}|(?:prices?|price range|costs?|priced){_OF} high(?! rat|"
        rf" cust|ly rat| qual)"
        r"\w*|premium|luxur\w*|fine dining",
    ),
}
_RATED = (
    r"(?:customers?|rat(?:ed|ing|ings|e)|review\w*|scores?|recommended|regarded|feedback|approv\w*|satisfaction|"
    r"ranked|ranking)"
)
_BRIDGE = rf"(?: (?!low|average|high|and|but|{_PRICE})\w+){{0,3}}?"


def _out_of_five(number: str) -> str:
    return (
        rf"{number}(?: \w+)? (?:out )?(?:of |out )(?:a possible )?(?:5|five)|{number} ?/ ?5|"
        rf"(?<!of )(?<!out )(?<!/ ){number}(?: \w+)? stars?|rat(?:ed|ing)(?: of| is| a| at| as)* {number}(?! out| of|"
        rf" /|/)"
    )


RATINGS = {
    "low": (
        ("low", "1 out of 5"),
        _out_of_five("(?:1|one)"),
        rf"(?:low\w*|poor\w*|bad\w*|below average|terribl[ey]|not(?: very)? (?:well|good|high\w*)){_BRIDGE} {_RATED}|"
        rf"{_RATED}{_BRIDGE} (?:low\w*|poor\w*|bad\w*|below average|not (?:good|great|high))(?! {_PRICE})|"
        rf"not (?:highly )?(?:recommended|rated)(?! for| fam| to)",
    ),
    "middle": (
        ("average", "3 out of 5"),
        _out_of_five("(?:3|three)"),
        rf"(?<!than )(?<!below )(?<!above )(?:average\w*|decent\w*|mediocre|moderate(?:ly)?|ok|okay|fair\w*|mid\w*|"
        rf"medium){_BRIDGE} {_RATED}|"
        rf"{_RATED}{_BRIDGE} (?:average\w*|decent\w*|mediocre|moderate(?:ly)?|ok|okay|fair\w*|medium)(?! {_PRICE})|"
        rf"average (?:family|place|pub|coffee|venue|quality)",
    ),
    "high": (
        ("high", "5 out of 5"),
        _out_of_five("(?:5|five)"),
        rf"(?<!not )(?<!not very )(?:high\w*|excellent|great|top|good|well|best|outstanding|fantastic|wonderful|"
        rf"perfect){_BRIDGE} {_RATED}|"
        rf"{_RATED}{_BRIDGE} (?<!not )(?:high\w*|excellent|great|good|outstanding|perfect)(?! {_PRICE})|(?:highly|"
        rf"well|top|best) (?:rated|reviewed|recommended)|"
        r"acclaimed",
    ),
}
LEVELS = {"priceRange": PRICES, "customer rating": RATINGS}
_CHILDREN = r"(?:famil(?:y|ies|iar)|kids?|kiddos|child(?:ren)?s?)"
_NOT = (
    r"(?:not?|none?|never|t|isnt|doesnt|without|unsuitable|inappropriate|lacks?|un|hardly|discourages?|cannot|free of)"
)
UNFRIENDLY = re.compile(
    rf"\b(?:{_NOT}(?: (?!and|but|£|\d)\w+){{0,5}}? {_CHILDREN}|{_CHILDREN} (?:area )?(?:unfriendly|un friendly|"
    rf"unwelcome|free|prohibited|not"
    r"|no|(?:should|must|are|is) not|(?:are|is) (?:un\w+|prohibited))|adults?(?! and| or)|over 18|unfriendly)\b|"
    r"\b18 ?\+"
)
FRIENDLY = re.compile(rf"\b{_CHILDREN}\b|\ball ages\b")
