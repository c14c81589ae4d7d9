"""How good is the slot matcher? It is tried on human references, whose slots are known up to the workers' mistakes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.language_models.e2e import SLOTS, Example
from benchmarks.language_models.slots import SlotMatcher, wrong_values


def matcher_accuracy(examples: Sequence[Example], matcher: SlotMatcher) -> dict[str, dict[str, Any]]:
    """For each slot, and for ``all``, shares of human references:

    ``recall``  in which the value of their own meaning representation is found, of those that have the slot
    ``wrong``   in which a value is found that their own meaning representation does not allow

    Workers left out about a tenth of the slots and got some wrong, which counts as mistakes of the matcher here.
    """
    has, right, wrong = Counter[str](), Counter[str](), Counter[str]()
    texts = 0
    for example in examples:
        for reference in example.references:
            texts += 1
            values = matcher.values(reference)
            for slot in SLOTS:
                if slot in example.slots:
                    has[slot] += 1
                    right[slot] += example.slots[slot] in values[slot]
                wrong[slot] += bool(wrong_values(slot, values[slot], example.slots))
    table = {
        slot: {"slots": has[slot], "recall": right[slot] / max(1, has[slot]), "wrong": wrong[slot] / max(1, texts)}
        for slot in SLOTS
    }
    table["all"] = {
        "slots": has.total(),
        "recall": right.total() / max(1, has.total()),
        "wrong": wrong.total() / max(1, texts * len(SLOTS)),
    }
    return table


def foreign_share(examples: Sequence[Example], matcher: SlotMatcher) -> float:
    """The share of (reference, value of another meaning representation) pairs in which the value is found.

    Values are all of the same slot in the examples that the reference's own meaning representation does not allow.
    """
    known = {slot: {one.slots[slot] for one in examples if slot in one.slots} for slot in SLOTS}
    found, tried = 0, 0
    for example in examples:
        foreign = {slot: wrong_values(slot, known[slot], example.slots) for slot in SLOTS}
        for reference in example.references:
            values = matcher.values(reference)
            found += sum(len(values[slot] & foreign[slot]) for slot in SLOTS)
            tried += sum(map(len, foreign.values()))
    return found / max(1, tried)
