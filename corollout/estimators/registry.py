"""Estimators by name, as tables, configurations and the command line write them."""

import re
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from corollout.errors import InputError
from corollout.estimators.ars import ARS
from corollout.estimators.auto import Auto
from corollout.estimators.binary import ARM, DisARM
from corollout.estimators.pairs import Pairs
from corollout.estimators.plans import Estimator
from corollout.estimators.score import GRPO, RLOO, BeamExpectation, MonteCarlo, Reinforce, SelfCritic
from corollout.estimators.sets import UnorderedSet
from corollout.estimators.tree import BinaryTreeARSM, BinaryTreeDisARM
from corollout.estimators.values import Vine

# Name -> class and the option that a number behind the name, or k, sets ("" for none).
_ESTIMATORS: dict[str, tuple[type, str]] = {
    "arsm": (ARS, "references"),
    "ars": (ARS, "references"),
    "arm": (ARM, ""),
    "disarm": (DisARM, ""),
    "reinforce": (Reinforce, "samples"),
    "rloo": (RLOO, "samples"),
    "grpo": (GRPO, "samples"),
    "sc": (SelfCritic, "samples"),
    "mc": (MonteCarlo, "completions"),
    "vine": (Vine, "completions"),
    "rl-beam": (BeamExpectation, "size"),
    "set": (UnorderedSet, "size"),
    "pairs": (Pairs, "per_step"),
    "bt-arsm": (BinaryTreeARSM, ""),
    "bt-disarm": (BinaryTreeDisARM, ""),
    "auto": (Auto, ""),
}
_ALIASES = {
    "self-critic": "sc",
    "scst": "sc",
    "td-scst": "mc-0",
    "ars-k": "ars",
    "mc-k": "mc",
    "beam": "rl-beam",
    # Score-function estimators are the same for every head; these are the paper's names of them for a tree.
    "bt-reinforce": "reinforce",
    "bt-rf": "reinforce",
    "bt-sc": "sc",
    "bt-rloo": "rloo",
    "bt-mc": "mc",
}
NAMES = tuple(_ESTIMATORS)


def make_estimator(name: str, k: int | None = None, **options: Any) -> Estimator:
    """The estimator of that name, such as ``arsm``, ``ars-20``, ``mc-2``, ``rloo-8``, ``rl_beam``.

    ``k`` is the number behind the name: references of ARS, samples of RLOO, completions of MC, size of the beam.
    ``options`` are the fields of the estimator's class; in the name they stand behind a colon, as in
    ``arsm:budget=2000,budget_per=example``.
    """
    name, _, listed = name.partition(":")
    for option, value in _listed(name, listed).items():
        if option in options and options[option] != value:
            raise InputError(f"{name} was given {option} = {value} and {option} = {options[option]}: leave one out")
        options[option] = value
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    plain = _ALIASES.get(plain, plain)
    number = re.fullmatch(r"(.+?)-?(\d+)", plain)
    if plain not in _ESTIMATORS and number:
        plain = _ALIASES.get(number[1], number[1])
        if k is not None and k != int(number[2]):
            raise InputError(f"the estimator is called {name!r}, but k = {k} was asked for: leave one of the two out")
        k = int(number[2])
    if plain not in _ESTIMATORS:
        raise InputError(
            f"there is no estimator {name!r}; there are {', '.join(NAMES)}, with a number behind as in ars-20"
        )
    kind, counted = _ESTIMATORS[plain]
    if k is not None and not counted:
        raise InputError(f"{plain} takes no number k")
    if k is not None and counted in options:
        raise InputError(f"{plain} was given both the number {k} and {counted} = {options[counted]}: leave one out")
    if k is not None:
        options[counted] = k
    elif plain == "ars":
        options.setdefault(counted, 1)
    known = [field.name for field in fields(kind) if field.repr]  # what was learned is no option
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"{plain} has no option {unknown[0]!r}; it has {', '.join(known)}")
    for option, value in options.items():
        _check(plain, option, value, get_type_hints(kind)[option])
    return kind(**options)


def _check(name: str, option: str, value: Any, hint: Any) -> None:
    """Refuse a word where a number belongs, and the like; which numbers it takes, the estimator itself says."""
    if get_origin(hint) is Literal:
        wanted, fits = " or ".join(get_args(hint)), value in get_args(hint)
    elif hint is bool:
        wanted, fits = "true or false", isinstance(value, bool)
    else:
        fractions = float in (hint, *get_args(hint))
        wanted = "a number" if fractions else "a whole number"
        fits = not isinstance(value, str | bool) and (fractions or not isinstance(value, float))
    if not fits:
        raise InputError(f"{name} takes {wanted} for {option}, not {value!r}")


def _listed(name: str, text: str) -> dict[str, Any]:
    """Options as a name has them: numbers, true and false, or words."""
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        option, equals, value = (word.strip() for word in part.partition("="))
        if not (option and equals and value) or option in found:
            raise InputError(f"options of {name} are written as in {name}:budget=2000,samples=2, not {text!r}")
        words = {"true": True, "false": False}
        found[option] = _number(value) if _number(value) is not None else words.get(value.lower(), value)
    return found


def _number(text: str) -> int | float | None:
    """A number as people write it, or None if it is none."""
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d*\.\d+(e-?\d+)?", text) else None
