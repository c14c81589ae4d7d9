"""Reward functions made ready for use: called by keyword, checked, each distinct sequence scored once.

A reward function scores a batch. It gets the generated sequences and the data set columns as lists with one
entry for each sequence, and returns one number for each sequence, or None for a sequence it does not judge:

    def length_match(sequences, target_length):
        return [-abs(len(tokens) - n) for tokens, n in zip(sequences, target_length)]

How a function is called:

- A parameter named `sequences` receives the sequences. If there is none, the first positional parameter does
  (whatever its name: `completions`, say), unless it has the name of a column, `finished` or `examples`.
  Failing that, a function with `**kwargs` finds them there as `sequences`.
- Every column goes to the parameter of that name, also where the parameter has a default. So do `finished`
  (did the sequence end by itself, or was it cut at the maximal length; only if the caller knows) and
  `examples` (ids of the data set's examples).
- Columns without a parameter are left out, unless the function has `**kwargs`: then it gets all of them.

A function must score each sequence by itself: which others share its batch depends on duplicates, on
`batch_size` and on the number of workers.
"""

import inspect
import math
import pickle
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from corollout.arguments import require_callable, require_count, require_number
from corollout.errors import InputError, RewardError
from corollout.rewards.pool import WorkerPool

RewardFunction = Callable[..., Sequence[float | None]]

_Key = tuple[int, tuple[int, ...], bool | None]

# Names that a column cannot have, because the function knows other things by them.
RESERVED = ("sequences", "examples", "finished")
# How many example ids an error message lists.
LISTED = 8


@dataclass(frozen=True)
class Scores:
    """The rewards of a batch of sequences.

    `values` is float64, and NaN for a sequence that the function skipped by returning None. `calls` counts
    the sequences on which the function was evaluated: duplicates and cached results are not among them.
    `parts` are the values of each of several rewards by name, before they are weighted; of one there are none.
    """

    values: Float[Tensor, " sequence"]
    calls: int
    parts: Mapping[str, Float[Tensor, " sequence"]] = field(default_factory=dict)


class Reward:
    """A reward function made ready: duplicates scored once, results checked, worker processes if wished.

    Two sequences are duplicates if they have the same example id, tokens and finished flag: an id stands for
    the example's columns.

    Args:
        function: what the user supplies; the module's description says how it is called.
        cache: results to keep across calls, the least recently used one leaving first. Only for deterministic
            functions, and only if example ids mean the same examples in all calls.
        workers: processes that run the function; 0 runs it in this one. The function is copied to them as it
            is now, so it must be defined at the top level of a module. They start at the first call, and
            cannot start `multiprocessing` children of their own (`subprocess` works).
        timeout: seconds that a batch may take in a worker, which is killed if it takes longer.
        batch_size: most sequences in one call of the function. By default each worker gets an equal part, and
            without workers everything is one batch.
        name: what error messages call the reward; by default the function's own name.
    """

    def __init__(
        self,
        function: RewardFunction,
        *,
        cache: int = 0,
        workers: int = 0,
        timeout: float | None = None,
        batch_size: int | None = None,
        name: str | None = None,
    ) -> None:
        require_callable("reward", function, "a function that takes sequences and returns a number for each")
        require_count("cache", cache, least=0)
        require_count("workers", workers, least=0)
        if batch_size is not None:
            require_count("batch_size", batch_size)
        if timeout is not None:
            seconds = "a positive number of seconds or None"
            require_number("timeout", timeout, seconds, lambda timeout: 0 < timeout < math.inf)
        if timeout is not None and workers == 0:
            raise InputError("a time-out needs worker processes: set workers=1 or more")
        self.name: str = name or getattr(function, "__name__", type(function).__name__)
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the parameters of reward {self.name!r} cannot be read ({error}); wrap it in a `def`"
            ) from error
        self._score = _Scorer(function, self.name)
        self._workers = workers
        self._pool = WorkerPool(self.name, self._score.pickled(), workers, timeout) if workers else None
        self._batch_size = batch_size
        self._cache_size = cache
        self._cache: OrderedDict[_Key, float | None] = OrderedDict()

    def __call__(
        self,
        sequences: list[list[int]],
        examples: Sequence[int],
        columns: Mapping[str, Sequence[Any]],
        finished: Sequence[bool] | None = None,
    ) -> Scores:
        """Score `sequences`: token ids without the end token.

        `examples`, each of `columns` and `finished` have one entry for each sequence: the id of its example,
        the example's value in that column, and whether the sequence ended by itself (True) or was cut at the
        maximal length (False).
        """
        sources = {"sequences": sequences, "examples": examples, **columns}
        if finished is not None:
            sources["finished"] = finished
        self._check(columns, sources)
        if not sequences:
            return Scores(torch.empty(0, dtype=torch.float64), calls=0)
        flags = [None] * len(sequences) if finished is None else [bool(flag) for flag in finished]
        keys: list[_Key] = [
            (int(example), tuple(tokens), flag)
            for example, tokens, flag in zip(examples, sequences, flags, strict=True)
        ]
        rows: dict[_Key, int] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, row)
        known = {key: self._cache[key] for key in rows if key in self._cache}
        unknown = [key for key in rows if key not in known]
        batches = self._batches([rows[key] for key in unknown], sources)
        parts = self._pool.run(batches) if self._pool else [self._score(batch) for batch in batches]
        known.update(zip(unknown, (value for part in parts for value in part), strict=True))
        for key, value in known.items() if self._cache_size else ():
            self._cache[key] = value
            self._cache.move_to_end(key)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        values = [math.nan if known[key] is None else known[key] for key in keys]
        return Scores(torch.tensor(values, dtype=torch.float64), calls=len(unknown))

    def close(self) -> None:
        """End the worker processes, if there are any. A later call starts new ones."""
        if self._pool:
            self._pool.close()

    def __enter__(self) -> "Reward":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, columns: Mapping[str, Sequence[Any]], sources: dict[str, Sequence[Any]]) -> None:
        """Refuse reserved names, and anything that does not have one entry for each sequence."""
        if reserved := [column for column in columns if column in RESERVED]:
            raise InputError(f"the column {reserved[0]!r} has a name that is reserved in rewards; rename it")
        count = len(sources["sequences"]) if isinstance(sources["sequences"], Sequence) else 0
        for source, entries in sources.items():
            if not hasattr(entries, "__len__"):
                raise InputError(f"reward {self.name!r} needs a list of {source!r}, not {reprlib.repr(entries)}")
            if len(entries) != count:
                raise InputError(
                    f"reward {self.name!r} got {len(entries)} entries of {source!r} for {count} "
                    "sequences; give one entry for each sequence"
                )

    def _batches(self, rows: list[int], sources: dict[str, Sequence[Any]]) -> list["_Batch"]:
        """Cut `rows` into calls of the function, with what it accepts of `sources`."""
        positional, keywords = self._route(sources)
        size = self._batch_size or max(1, math.ceil(len(rows) / max(1, self._workers)))
        batches = []
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            # The function gets lists of its own: what it does to them is not seen outside.
            given = {
                "sequences": [list(sources["sequences"][row]) for row in batch],
                **{name: [sources[name][row] for row in batch] for name in keywords if name != "sequences"},
            }
            args = (given.pop("sequences"),) if positional else ()
            batches.append(_Batch([int(sources["examples"][row]) for row in batch], args, given))
        return batches

    def _route(self, sources: dict[str, Sequence[Any]]) -> tuple[bool, list[str]]:
        """Do the sequences go in by position, and which of `sources` go in by keyword?"""
        parameters = list(self._signature.parameters.values())
        accepts_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        first = parameters[0] if parameters else None
        positional = (
            "sequences" not in by_name
            and first is not None
            and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
            and (first.name == "sequences" or first.name not in sources)
        )
        if not (positional or accepts_all or "sequences" in by_name):
            raise InputError(f"reward {self.name!r} has no parameter for the sequences; name it `sequences`")
        by_position = ("sequences",) if positional else ()
        keywords = [name for name in sources if (accepts_all or name in by_name) and name not in by_position]
        for parameter in parameters[1:] if positional else parameters:
            variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.default is parameter.empty and not variadic and parameter.name not in keywords:
                columns = ", ".join(name for name in sources if name not in RESERVED) or "none"
                others = ", ".join(name for name in RESERVED if name in sources)
                raise InputError(
                    f"reward {self.name!r} requires the parameter `{parameter.name}`, but all that it can be "
                    f"given by keyword is {others} and the columns ({columns}); rename the parameter, give "
                    "it a default, or add the column"
                )
        return positional, keywords


@dataclass(frozen=True)
class _Batch:
    """The arguments of one call of a reward function, and the examples that its sequences belong to."""

    examples: list[int]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def __str__(self) -> str:
        """Where an error happened, in words."""
        if len(self.examples) == 1:
            return f"on a sequence of example {self.examples[0]}"
        ids = list(dict.fromkeys(self.examples))
        listed = ", ".join(str(example) for example in ids[:LISTED]) + (", …" if len(ids) > LISTED else "")
        plural = "s" if len(ids) > 1 else ""
        return f"in a batch of {len(self.examples)} sequences (example{plural} {listed})"


@dataclass(frozen=True)
class _Scorer:
    """Calls a reward function on one batch and checks what it returns: the part that runs in the workers."""

    function: RewardFunction
    name: str

    def pickled(self) -> bytes:
        try:
            return pickle.dumps(self)
        except Exception as error:
            raise InputError(
                f"reward {self.name!r} cannot be sent to worker processes ({type(error).__name__}: {error}); "
                "define it at module level (not as a lambda or inside another function), or set workers=0"
            ) from error

    def __call__(self, batch: _Batch) -> list[float | None]:
        try:
            result = self.function(*batch.args, **batch.keywords)
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise RewardError(
                f"reward {self.name!r} raised {what}, {batch}; correct the function, or let it return None "
                "for a sequence that it cannot score"
            ) from error
        entries = result.tolist() if isinstance(result, Tensor | np.ndarray) and result.ndim == 1 else result
        if not isinstance(entries, list | tuple):
            dimensions = f" of {result.ndim} dimensions" if isinstance(result, Tensor | np.ndarray) else ""
            raise RewardError(
                f"reward {self.name!r} returned a {type(result).__name__}{dimensions}, {batch}; return a list, a "
                "tuple, or an array or tensor of one dimension, with one value for each sequence"
            )
        if len(entries) != len(batch.examples):
            raise RewardError(
                f"reward {self.name!r} returned {len(entries)} values, {batch}; return one for each sequence"
            )
        return [self._number(entry, example) for entry, example in zip(entries, batch.examples, strict=True)]

    def _number(self, entry: object, example: int) -> float | None:
        if entry is None:
            return None
        if isinstance(entry, Tensor | np.ndarray | np.generic) and entry.ndim == 0:
            entry = entry.item()
        try:
            value = float(entry) if isinstance(entry, Real) else math.nan
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise RewardError(
                f"reward {self.name!r} returned {reprlib.repr(entry)} ({type(entry).__name__}) for a "
                f"sequence of example {example}; return a finite number, or None to skip the sequence"
            )
        return value
