"""The base classes of all estimators, what an estimator says about itself, and estimators by name.

A new estimator is a subclass of :class:`Estimator`, usually a frozen dataclass whose fields are its options, with a
``sampler`` and a ``plan``. Class attributes say everything else that the rest of the package knows about it.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from corollout.arguments import require_count, require_instance
from corollout.config import import_object
from corollout.errors import InputError
from corollout.estimators.baselines import Evidence, Scores
from corollout.estimators.plans import Plan, Rewards, SetPlan
from corollout.noise import Noise
from corollout.text import quoted
from corollout.types import Cells, Sampler, Trajectories

BranchNoise = Literal["shared", "own"]
"""The random numbers that branches are completed with: shared with other sequences, or their own."""


class Estimator(ABC):
    """Says how main trajectories are drawn, and turns them into a plan."""

    names: ClassVar[tuple[str, ...]] = ()
    """Names for the command line and settings files: the usual one first, then aliases."""
    title: ClassVar[str] = ""
    """The name as the literature writes it, for tables and messages."""
    number: ClassVar[str] = ""
    """The option that a number after the name sets, as in ``rloo-8``."""
    heads: ClassVar[tuple[str, ...]] = ("softmax", "tree")
    """The output heads that it works with."""
    adapts_rollouts: ClassVar[bool] = False
    """Whether the number of branches depends on how certain the policy is."""
    reads: Literal["tokens", "greedy", "notes", "logits"] = "logits"
    """What a plan reads of the logits of a softmax. Those of all tokens of a batch may need a lot of memory: estimators
    that read the tokens only, the tokens of greedy decoding, or notes (``take_notes``), never see them all at once."""
    compares_contexts: ClassVar[bool] = False
    """Whether plans may need numbers about other contexts of the batch, which other processes may have: their
    trajectories then have a ``division``, and may be of no context at all. If not, a plan sees the contexts of its
    process only."""
    chooses_estimators: ClassVar[bool] = False
    """Whether it switches between other estimators during training, and so has no variance of its own at the start."""

    @property
    @abstractmethod
    def sampler(self) -> Sampler:
        """How main trajectories are drawn."""

    @abstractmethod
    def plan(self, trajectories: Trajectories, noise: Noise) -> Plan:
        """The branches to complete, and how rewards become a gradient."""

    def take_notes(self, cells: Cells, noise: Noise) -> Any:
        """What a plan needs to know of the logits of some tokens; it finds all notes in ``trajectories.notes``."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The estimator in tables: its title, its number, and other options that differ from their defaults."""
        values = {option: getattr(self, option) for option in options_of(type(self))}
        defaults = _defaults(type(self))
        number = values.pop(self.number) if isinstance(values.get(self.number), int) else None
        plain = number is None or number == 1 == defaults[self.number]
        label = (self.title or type(self).__name__) + ("" if plain else f"-{number}")
        changed = [f"{name}={_text(value)}" for name, value in values.items() if value != defaults[name]]
        return f"{label} ({','.join(changed)})" if changed else label

    @property
    def is_biased(self) -> bool:
        """Whether its expectation is known to differ from the gradient of the expected reward.

        A small bias hides in the noise of any measurement, so a biased estimator is never recommended.
        """
        return False

    @property
    def note_for_one_context(self) -> str:
        """A remark for readers of an estimate that was made for a single context."""
        return ""

    @classmethod
    def from_name(cls, name: str, **options: Any) -> "Estimator":
        """The estimator that one of ``names`` stands for."""
        return cls(**options)

    def check_head(self, head: str) -> None:
        """Raise an error if the estimator does not work with an output head ("softmax" or "tree")."""
        if head not in self.heads:
            fitting = [kind for kind in _subclasses(Estimator) if head in kind.heads and vars(kind).get("names")]
            fitting.sort(key=lambda kind: len(kind.heads))  # those for this head only come first
            names = dict.fromkeys(kind.names[0] for kind in fitting)
            raise InputError(
                f"{self.label} needs a {' or '.join(self.heads)} head, but this policy has a {head} head: "
                f"choose one of {', '.join(names)}"
            )

    @classmethod
    def check_option(cls, option: str, value: Any) -> None:
        """Raise an error if a value has the wrong type for an option, or is not one of its choices."""
        if wanted := _mismatch(value, options_of(cls)[option]):
            raise InputError(f"{cls.title or cls.__name__} needs {option} to be {wanted}, not {quoted(value)}")

    def check_options(self, **least: int) -> None:
        """Raise an error if an option is invalid, or less than ``least`` says."""
        for option in options_of(type(self)):
            value = getattr(self, option)
            self.check_option(option, value)
            if option in least and value is not None and value < least[option]:
                raise InputError(f"{self.title or type(self).__name__} needs {option} ≥ {least[option]}, not {value}")


# Logits that notes are taken of at once, if all were kept.
_CHUNK = 1 << 24


def notes_of(estimator: Estimator, trajectories: Trajectories, noise: Noise) -> Sequence[Any]:
    """The notes of an estimator, taken now if they were not taken when the trajectories were drawn."""
    if trajectories.notes is not None:
        return trajectories.notes
    rows, steps = trajectories.mask.nonzero(as_tuple=True)
    size = max(1, _CHUNK // max(1, trajectories.logits.shape[-1]))
    chunks = torch.arange(len(rows), device=rows.device).split(size)
    return [estimator.take_notes(Cells.of(trajectories, rows[chunk], steps[chunk]), noise) for chunk in chunks]


class Adaptive(Estimator):
    """An estimator that learns from its estimates how to make later ones with less variance.

    What it has learned is fixed before the next estimate is drawn, so that learning adds no bias. Estimators are
    immutable: methods that would change one return a new one.
    """

    @abstractmethod
    def updated(self, plan: Plan, rewards: Rewards, scores: Scores | None) -> "Adaptive":
        """The estimator after an estimate from one of its plans; ``scores`` if the plan reads them."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """What it has learned, for checkpoints."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Tensor]) -> "Adaptive":
        """The estimator with the state of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class FittedBaseline(Adaptive):
    """Base of estimators whose baseline may be fitted: they keep the evidence of earlier batches."""

    compares_contexts = True

    past: Evidence | None = field(default=None, repr=False, compare=False)

    def updated(self, plan: Plan, rewards: Rewards, scores: Scores | None) -> "FittedBaseline":
        if not isinstance(plan, SetPlan) or plan.baseline != "fitted" or scores is None:
            return self
        new = plan.evidence(rewards, scores)
        return replace(self, past=new if self.past is None else self.past.updated(new))

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.past is None else dict(vars(self.past))

    def load_state_dict(self, state: dict[str, Tensor]) -> "FittedBaseline":
        gradients = 2 if self.sampler.count == 1 else 3
        return replace(self, past=Evidence.from_state(state, gradients) if state else None)


@cache
def options_of(kind: type[Estimator]) -> dict[str, Any]:
    """Name and type of each option: the fields of a dataclass, except those with ``repr=False``, which hold state."""
    if not is_dataclass(kind):
        return {}
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.repr}


@cache
def _defaults(kind: type[Estimator]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind)} if is_dataclass(kind) else {}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mismatch(value: Any, hint: Any) -> str:
    """What an option should be, if the value is not; types other than numbers and choices are not checked."""
    kinds = set(get_args(hint) or (hint,))
    if get_origin(hint) is Literal:
        return "" if value in get_args(hint) else f"one of {', '.join(map(str, get_args(hint)))}"
    if kinds == {bool}:
        return "" if isinstance(value, bool) else "true or false"
    if not kinds <= {int, float, NoneType} or (value is None and NoneType in kinds):
        return ""
    fits = not isinstance(value, str | bool) and (float in kinds or not isinstance(value, float))
    return "" if fits else "a number" if float in kinds else "a whole number"


def _subclasses(kind: type[Estimator]) -> Iterator[type[Estimator]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


_NUMBER = r"\d{1,9}"
# Modules with estimators: every class in them that declares ``names`` is available by these names.
_MODULES = ("ars", "binary", "score", "values", "sets", "pairs", "tree", "auto")


@cache
def registered_estimators() -> dict[str, type[Estimator]]:
    """All estimators of this package by their names, aliases included."""
    return {
        name: kind
        for module in _MODULES
        for kind in vars(import_module(f"corollout.estimators.{module}")).values()
        if isinstance(kind, type) and issubclass(kind, Estimator)
        for name in vars(kind).get("names", ())
    }


def estimator_names() -> tuple[str, ...]:
    """The usual name of each estimator."""
    return tuple(dict.fromkeys(kind.names[0] for kind in registered_estimators().values()))


def make_estimator(name: str, k: int | None = None, **options: Any) -> Estimator:
    """The estimator of a name such as ``arsm``, ``ars-20``, ``mc-2``, ``rloo-8`` or ``rl_beam``.

    ``k`` is the number after the name: references of ARS, samples of RLOO, completions of MC, size of the beam.
    ``options`` are fields of the estimator's class; in the name they follow a colon, as in
    ``arsm:budget=2000,budget_per=example``. A class outside the package is named by its import path,
    ``package.module:Class`` or ``package.module:Class:budget=2000``; the working directory is searched, too.
    """
    require_instance("the name of an estimator", name, str, "text such as 'rloo-4'")
    if k is not None:
        require_count("k", k, least=0)
    name, _, listed = name.partition(":")
    class_name, _, class_options = listed.partition(":")
    plain, number = _split_number(re.sub(r"[\s_]+", "-", name.strip().lower()))
    if plain in registered_estimators():
        kind = registered_estimators()[plain]
    elif class_name.strip().isidentifier():
        plain = name = f"{name.strip()}:{class_name.strip()}"
        kind, number, listed = _import(name), None, class_options
    else:
        raise InputError(
            f"there is no estimator {quoted(name)}: choose one of {', '.join(estimator_names())}, some with a "
            "number, as in ars-20, "
            "or give the import path of your own, package.module:Class"
        )
    if number is not None and k is not None and k != number:
        raise InputError(f"the estimator is called {name!r}, but k = {k}: leave one of the two numbers out")
    for option, value in _parse_options(name, listed).items():
        if option in options and options[option] != value:
            raise InputError(f"{name} was given {option} = {value} and {option} = {options[option]}: leave one out")
        options[option] = value
    number = k if number is None else number
    if number is not None:
        if not kind.number:
            raise InputError(f"{plain} takes no number k")
        if kind.number in options:
            taken = f"{kind.number} = {options[kind.number]}"
            raise InputError(f"{plain} was given both the number {number} and {taken}: leave one out")
        options[kind.number] = number
    if unknown := sorted(set(options) - set(options_of(kind))):
        raise InputError(f"{plain} has no option {quoted(unknown[0])}; it has {', '.join(options_of(kind)) or 'none'}")
    for option, value in options.items():
        kind.check_option(option, value)
    return kind.from_name(plain, **options)


def _split_number(name: str) -> tuple[str, int | None]:
    """``ars-20`` is ``ars`` and 20."""
    match = None if name in registered_estimators() else re.fullmatch(rf"(.+?)-?({_NUMBER})", name)
    return (match[1], int(match[2])) if match else (name, None)


def _import(path: str) -> type[Estimator]:
    kind = import_object(path)
    if not (isinstance(kind, type) and issubclass(kind, Estimator)):
        raise InputError(f"{path} is not a subclass of corollout.estimators.Estimator")
    return kind


def _parse_options(name: str, text: str) -> dict[str, Any]:
    """Options as a name lists them: numbers, true and false, or words."""
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not (option and equals and value) or option in options:
            raise InputError(f"options of {name} are written as in {name}:budget=2000,samples=2, not {quoted(text)}")
        options[option] = _parse_value(value)
    return options


def _parse_value(text: str) -> Any:
    if re.fullmatch(f"-?{_NUMBER}", text):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", text) and math.isfinite(float(text)):
        return float(text)
    return {"true": True, "false": False}.get(text.lower(), text)
