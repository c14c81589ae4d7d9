"""What is for GPUs: on a device that does not exist, with ended rows that are kept for some steps, with compiled steps.

Updates on the device are compared with those on the CPU by the benchmark itself, which raises if they differ.
"""

import copy
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from rich.progress import Progress
from torch import Tensor

from benchmarks import pretended_device, synchronisations
from benchmarks.synchronisations import CONTEXTS, LONG, Case
from corollout import Engine, InputError, Noise, estimate
from corollout.data import Columns

CASES = list(synchronisations.cases())
QUICK = ("rloo-4", "sc", "mc-2", "arsm", "bt-arsm")
UPDATES = [
    pytest.param(
        case,
        method,
        drop_every,
        id=f"{case.name} {method} {drop_every}",
        marks=() if method in QUICK and drop_every == 3 else pytest.mark.prove,
    )
    for case in CASES
    for method in case.estimators
    for drop_every in (2, 3, 100)
]


@pytest.mark.parametrize(("case", "method", "drop_every"), UPDATES)
def test_rows_that_have_ended_may_be_kept_for_some_steps(case: Case, method: str, drop_every: int):
    expected = synchronisations.update(case, method, LONG, 1, None)
    found = synchronisations.update(case, method, LONG, drop_every, None)
    assert found.sequences == expected.sequences
    assert found.tokens == expected.tokens
    torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-4, atol=1e-6)


def test_some_rows_end_before_others():
    lengths = [len(row) for case in CASES for row in synchronisations.update(case, "sc", LONG, 1, None).sequences[0]]
    assert min(lengths) < 5 < max(lengths)


@pytest.mark.prove
def test_waits_for_the_device_are_few():
    with Progress(disable=True) as progress:
        result = synchronisations.run(quick=True, progress=progress)
    assert [target["passed"] for target in result["targets"]] == [True, True, True]
    rows = result["measurements"]["updates"]
    # Otherwise nothing was counted.
    assert all(row["waits"]["sampling"][1] > 0 for row in rows)
    assert all(row["waits_a_step"]["sampling"] < 0.5 for row in rows if row["drop_every"] == 4)
    json.dumps(result)


def in_a_fresh_process(check: Callable[[], Any]) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(check).result()


def look_at_the_device() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    device = pretended_device.device()
    with pretended_device.pretended() as waits:
        numbers = torch.arange(4, device=device)
        seen["device"] = str(numbers.device)
        seen["sum"] = (numbers + 1)[numbers > 1].tolist()
        numbers[0] = 9
        view = numbers[:2]
        view += 1
        seen["in place"] = numbers.tolist()
        seen["operations"] = [wait.operation for wait in waits]
        for name, attempt in {
            "mixed": lambda: numbers + torch.arange(4),
            "array": lambda: numbers.numpy(),
        }.items():
            try:
                attempt()
            except (RuntimeError, TypeError) as error:
                seen[name] = str(error)
        before = len(waits)
        total = numbers.sum() + torch.ones(4).to(device, non_blocking=True).cumsum(0)
        seen["without waiting"] = len(waits) - before
        seen["total"] = total.tolist()
        layer = torch.nn.Linear(3, 2).to(device)
        layer(torch.ones(1, 3, device=device)).sum().backward()
        assert layer.weight.grad is not None
        seen["gradient"] = layer.weight.grad.tolist()
    return seen


def test_the_pretended_device_computes_and_notes_waits():
    seen = in_a_fresh_process(look_at_the_device)
    assert seen["device"] == "pretended:0"
    assert seen["sum"] == [3, 4]
    assert seen["in place"] == [10, 2, 2, 3]
    # The mask and two lists.
    assert seen["operations"] == ["aten.index.Tensor", "aten._to_copy.default", "aten._to_copy.default"]
    assert "on the CPU and on the device pretended" in seen["mixed"]
    assert "not on the CPU" in seen["array"]
    assert seen["without waiting"] == 0
    assert seen["total"] == [18.0, 19.0, 20.0, 21.0]
    assert seen["gradient"] == [[1.0, 1.0, 1.0]] * 2


def tokens_of(case: Case, mode: str | None) -> list[Tensor]:
    engine = Engine(case.policy, bos=case.bos, eos=case.eos, max_length=6, compile_step=mode)  # pyright: ignore
    batch = Columns(context=case.contexts).batch(range(CONTEXTS))
    made = estimate(engine, batch, lambda rows, **_: [len(row) for row in rows], case.estimators[1], Noise(0))
    return [made.trajectories.tokens, made.completed.tokens]


@pytest.mark.prove
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_compiled_step_gives_the_same_sequences(case: Case, mode: str):
    torch.compiler.reset()
    for found, expected in zip(tokens_of(case, mode), tokens_of(case, None), strict=True):
        assert torch.equal(found, expected)


def test_results_of_a_recorded_step_are_copied(monkeypatch: pytest.MonkeyPatch):
    """A CUDA graph writes to the same memory each time it is replayed; here a step does, by hand."""
    case = CASES[-1]
    expected = tokens_of(case, None)
    modes = []

    def compile_(step: Callable[..., Any], *, dynamic: bool, mode: str) -> Callable[..., Any]:
        modes.append((dynamic, mode))
        last: list[Tensor] = []

        def replay(state: Any, tokens: Tensor) -> Any:
            for tensor in last:
                tensor.fill_(torch.nan)
            outputs, after = step(state, tokens)
            last[:] = [outputs, *after.keys, *after.values]
            return outputs, after

        return replay

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    for found, wanted in zip(tokens_of(case, "reduce-overhead"), expected, strict=True):
        assert torch.equal(found, wanted)
    assert modes == [(True, "reduce-overhead")]


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match=r"compile_step is .* one of default, reduce-overhead, max-autotune, not 'no'"):
        tokens_of(CASES[0], "no")


def test_rows_must_be_dropped_at_some_time():
    with pytest.raises(InputError, match="drop_every must be a whole number and at least 1, not 0"):
        Engine(CASES[0].policy, bos=1, eos=2, max_length=8, drop_every=0)  # pyright: ignore


def test_another_policy_is_compiled_anew(monkeypatch: pytest.MonkeyPatch):
    first, second = CASES[1].policy, copy.deepcopy(CASES[1].policy)
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda step, **_: compiled.append(step) or step)
    engine = Engine(first, bos=0, eos=0, max_length=3, compile_step="default")  # pyright: ignore
    engine.use(second)  # pyright: ignore
    assert [step.__self__ for step in compiled] == [first, second]
