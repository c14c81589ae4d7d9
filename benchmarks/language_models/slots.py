"""Which slots of a meaning representation a text realises, by written rules.

Names of places are looked for as they are spelt; the other slots have rules (`slot_rules.py`). A text that swaps
``name`` and ``near`` is not noticed: both are looked for anywhere in it.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from benchmarks.language_models.e2e import Example
from benchmarks.language_models.slot_rules import FRIENDLY, LEVELS, PATTERNS, UNFRIENDLY


@lru_cache(maxsize=65_536)
def plain(text: str) -> str:
    """Small letters without accents; words, and signs that end clauses, separated by single spaces; no other signs."""
    text = unicodedata.normalize("NFKD", text.lower())
    text = "".join(sign for sign in text if not unicodedata.combining(sign))
    text = re.sub(r"(?<=\d)\.\d\d\b", "", text)
    return " ".join(re.sub(r"[^a-z0-9£+/,.]+", " ", re.sub(r"[.;:!?]", " . ", text).replace(",", " , ")).split())


class SlotMatcher:
    """Looks for values of slots in texts. ``examples`` give the names of all places, which could be other words too."""

    def __init__(self, examples: Iterable[Example]):
        places = {(slot, one.slots[slot]) for one in examples for slot in ("name", "near") if slot in one.slots}
        self._places = {slot: {value for kind, value in places if kind == slot} for slot in ("name", "near")}
        # Longer names first: they may contain others.
        spellings = {value: plain(value).removeprefix("the ") for _, value in places}
        self._spellings = dict(sorted(spellings.items(), key=lambda pair: (-len(pair[1]), pair[0])))
        self._rules = _rules()

    def values(self, text: str) -> dict[str, set[str]]:
        """All values of each slot that a text realises: ``{"food": {"French"}, "priceRange": {"cheap", "less …"}}``."""
        rest = f" {plain(text)} "
        mentioned: set[str] = set()
        for value, spelling in self._spellings.items():
            if f" {spelling} " in rest:
                mentioned.add(value)
                rest = rest.replace(f" {spelling} ", " it ")  # "Raja Indian Cuisine" says nothing about the food
        found = {slot: values & mentioned for slot, values in self._places.items()}
        for slot, alternatives in self._rules.items():
            for rules in alternatives:
                found[slot] = {value for values, pattern in rules if pattern.search(rest) for value in values}
                if found[slot]:
                    break
        if UNFRIENDLY.search(rest):
            found["familyFriendly"] = {"no"}
        else:
            found["familyFriendly"] = {"yes"} if FRIENDLY.search(rest) else set()
        return found

    def counts(self, text: str, slots: Mapping[str, str]) -> tuple[int, int, int]:
        """How many slots are realised, missing, and wrong: realised with a value that the slots do not allow."""
        found = self.values(text)
        right = sum(value in found[slot] for slot, value in slots.items())
        return right, len(slots) - right, sum(bool(wrong_values(slot, found[slot], slots)) for slot in found)

    def f1(self, text: str, slots: Mapping[str, str]) -> float:
        """2·right / (2·right + missing + wrong): 1 if everything is said and nothing else."""
        right, missing, wrong = self.counts(text, slots)
        return 2 * right / (2 * right + missing + wrong) if right else 0.0


def wrong_values(slot: str, found: Iterable[str], slots: Mapping[str, str]) -> set[str]:
    """The values found in a text that contradict, or add to, a meaning representation."""
    allowed = set(_same_level(slot, slots[slot])) if slot in slots else set()
    if slot in ("name", "near"):
        allowed = {slots[one] for one in ("name", "near") if one in slots}  # a place may be both
    if slot == "eatType":
        allowed.add("restaurant")  # the common word for every place
    return set(found) - allowed


def _same_level(slot: str, value: str) -> Sequence[str]:
    levels = LEVELS.get(slot, {}).values()
    return next((values for values, *_ in levels if value in values), (value,))


Rules = list[tuple[Sequence[str], re.Pattern[str]]]  # values, and what texts say for them


def _rules() -> dict[str, list[Rules]]:
    """For each slot the rules that are tried first, and those that are tried if none of the first applies."""
    rules: dict[str, list[Rules]] = {
        slot: [[((value,), re.compile(rf"\b(?:{pattern})\b")) for value, pattern in patterns.items()]]
        for slot, patterns in PATTERNS.items()
    }
    for slot, levels in LEVELS.items():
        rules[slot] = [
            [(values, re.compile(rf"(?<!\w)(?:{patterns[kind]})(?!\w)")) for values, *patterns in levels.values()]
            for kind in (0, 1)
        ]
    return rules
