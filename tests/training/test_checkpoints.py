"""Checkpoints are read as they were written, bit for bit, and any damage is noticed."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from torch import Tensor, nn

from corollout.errors import InputError
from corollout.events import Event
from corollout.training.checkpoints import (
    State,
    join_states,
    newest_checkpoint,
    optimizer_state,
    restore_optimizer,
    split_state,
    write_checkpoint,
)
from corollout.weights import read_weights, write_weights

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def read(folder: Path) -> tuple[int, State]:
    """The newest checkpoint, which must be read without a warning."""
    checkpoint = newest_checkpoint(folder, lambda event: pytest.fail(str(event)))
    assert checkpoint is not None
    return checkpoint


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(bits(first[name]) == bits(second[name]) for name in first)


def state_of(number: int) -> State:
    return State({"w": torch.full((3, 2), number + 0.1), "n": torch.tensor(number)}, {"number": number, "x": 0.1})


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(shape, dtype=dtype).element_size()
    # Any bits, those of infinities and NaN included.
    raw = torch.randint(0, 256, (max(1, int(torch.tensor(shape).prod())) * size,), generator=generator)
    full = raw.to(torch.uint8).view(dtype)
    return full[: int(torch.tensor(shape).prod())].reshape(shape) if 0 in shape else full.reshape(shape)


names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(names, tensors(), max_size=4),
    st.dictionaries(st.text(), values, max_size=4),
    st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_states_and_weights_are_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, stored: dict, numbers: dict, meta: dict
):
    folder = tmp_path_factory.mktemp("state")
    write_checkpoint(folder, 7, State(stored, numbers))
    step, state = read(folder)
    assert step == 7
    assert same(state.tensors, stored)
    assert json.dumps(state.values) == json.dumps(numbers)
    write_weights(folder / "best.safetensors", stored, meta)
    again, read_meta = read_weights(folder / "best.safetensors")
    assert same(again, stored)
    assert read_meta == meta


def test_strided_tied_and_trained_tensors_and_infinities(tmp_path: Path):
    table = nn.Parameter(torch.randn(4, 3))
    stored = {"table": table, "tied": table, "turned": table.t(), "row": table[1], "wide": table[:1].expand(5, 3)}
    write_checkpoint(tmp_path, 0, State(stored, {"best": float("-inf"), "none": float("nan")}))
    write_weights(tmp_path / "w", stored)
    state, again = read(tmp_path)[1], read_weights(tmp_path / "w")[0]
    plain = {name: tensor.detach() for name, tensor in stored.items()}
    assert same(state.tensors, plain)
    assert str(state.values) == "{'best': -inf, 'none': nan}"
    assert same(again, plain)
    again["table"].zero_()
    assert again["tied"].any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"a": {1: 2}}, r"values\.a has the key 1"),
        ({"a": [torch.zeros(1)]}, r"values\.a\[0\] is a Tensor"),
        ({"a": Path()}, r"values\.a is a"),
    ],
)
def test_values_that_json_cannot_hold_are_refused(tmp_path: Path, wrong: dict, message: str):
    with pytest.raises(InputError, match=message):
        write_checkpoint(tmp_path, 0, State({}, wrong))


def test_the_newest_two_are_kept(tmp_path: Path):
    assert newest_checkpoint(tmp_path / "nowhere") is None
    (tmp_path / ".temporary-3").mkdir()
    (tmp_path / ".temporary-3" / "tensors.safetensors").write_bytes(b"half")
    (tmp_path / "step-7").mkdir()
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / "step-7").rmdir()
    for step in (1, 5, 20, 100_000_000):
        write_checkpoint(tmp_path, step, state_of(step))
    assert names_in(tmp_path) == ["step-00000020", "step-100000000"]
    step, state = read(tmp_path)
    assert step == state.values["number"] == 100_000_000
    # Later ones belong to an abandoned course of training.
    write_checkpoint(tmp_path, 30, state_of(30))
    assert names_in(tmp_path) == ["step-00000020", "step-00000030"]


def test_a_step_can_be_written_again(tmp_path: Path):
    write_checkpoint(tmp_path, 4, state_of(4))
    write_checkpoint(tmp_path, 4, state_of(5))
    assert read(tmp_path)[1].values["number"] == 5
    assert names_in(tmp_path) == ["step-00000004"]
    # Killed before the old one was removed
    write_checkpoint(tmp_path / "other", 4, state_of(6)).rename(tmp_path / "step-00000004.new")
    (tmp_path / "other").rmdir()
    assert read(tmp_path)[1].values["number"] == 6
    write_checkpoint(tmp_path, 7, state_of(7))
    assert names_in(tmp_path) == ["step-00000004", "step-00000007"]
    shutil.rmtree(tmp_path / "step-00000007")
    assert read(tmp_path)[1].values["number"] == 6


def flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 0x41
    path.write_bytes(bytes(data))


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def add(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def rewrite(path: Path, *without: str, **entries: object) -> None:
    body = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({key: value for key, value in body.items() if key not in without}))


DAMAGES = {
    "no tensors": lambda c: (c / "tensors.safetensors").unlink(),
    "no state": lambda c: (c / "state.json").unlink(),
    "a file": lambda c: (shutil.rmtree(c), c.touch()),
    "nothing": lambda c: [file.unlink() for file in c.iterdir()],
    "tensors are a folder": lambda c: ((c / "tensors.safetensors").unlink(), (c / "tensors.safetensors").mkdir()),
    **{f"tensors cut to {n}": lambda c, n=n: cut(c / "tensors.safetensors", n) for n in (0, 4, 8, 20, 60, -1)},
    **{f"tensors flipped at {n}": lambda c, n=n: flip(c / "tensors.safetensors", n) for n in (0, 7, 9, 50, -20, -1)},
    "tensors too long": lambda c: add(c / "tensors.safetensors"),
    "state empty": lambda c: (c / "state.json").write_text(""),
    "state is {}": lambda c: (c / "state.json").write_text("{}"),
    "state is null": lambda c: (c / "state.json").write_text("null"),
    "state is not text": lambda c: (c / "state.json").write_bytes(b"\xff\xfe\x00"),
    **{f"state cut to {n}": lambda c, n=n: cut(c / "state.json", n) for n in (1, 20, -1)},
    "state too long": lambda c: add(c / "state.json"),
    "other value": lambda c: rewrite(c / "state.json", values={"number": 3, "x": 0.1}),
    "other step": lambda c: rewrite(c / "state.json", step=3),
    "other digest": lambda c: rewrite(c / "state.json", tensors="00"),
    "other format": lambda c: rewrite(c / "state.json", format=2),
    "no values": lambda c: rewrite(c / "state.json", "values"),
    "no digest": lambda c: rewrite(c / "state.json", "digest"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path, damage: str):
    write_checkpoint(tmp_path, 1, state_of(1))
    newest = write_checkpoint(tmp_path, 2, state_of(2))
    DAMAGES[damage](newest)
    events: list[Event] = []
    checkpoint = newest_checkpoint(tmp_path, events.append)
    assert checkpoint is not None
    assert checkpoint[0] == checkpoint[1].values["number"] == 1
    (event,) = events
    assert str(newest) in event.record["text"]
    assert "\n" not in event.record["text"]
    DAMAGES[damage](tmp_path / "step-00000001")
    with pytest.raises(InputError, match=r"none of the \d checkpoints in .* is usable"):
        newest_checkpoint(tmp_path)


def changes(data: bytes) -> Iterator[bytes]:
    """Every shorter beginning, and every byte changed."""
    for index in range(len(data)):
        yield data[:index]
        yield data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def test_every_change_of_a_byte_is_noticed_or_harmless(tmp_path: Path):
    """Harmless: white space, or the name of the digest, without which weights come from elsewhere."""
    path = write_checkpoint(tmp_path, 2, state_of(2)) / "state.json"
    for changed in changes(path.read_bytes()):
        path.write_bytes(changed)
        with suppress(InputError):
            checkpoint = newest_checkpoint(tmp_path)
            assert checkpoint is not None
            assert checkpoint[1].values == state_of(2).values
    path = tmp_path / "best.safetensors"
    write_weights(path, state_of(1).tensors, {"update": "12"})
    noticed = 0
    for changed in changes(data := path.read_bytes()):
        path.write_bytes(changed)
        try:
            again, meta = read_weights(path)
        except InputError:
            noticed += 1
        else:
            assert same(again, state_of(1).tensors)
            assert meta.get("update") == "12"
    assert noticed > 1.5 * len(data)


def test_equal_weights_give_equal_files(tmp_path: Path):
    meta = {f"key {number}": str(number) for number in range(20)}
    files = [tmp_path / name for name in "abc"]
    for path in files:
        write_weights(path, state_of(1).tensors, meta)
        meta = dict(reversed(meta.items()))
    assert len({path.read_bytes() for path in files}) == 1
    with safe_open(files[0], "pt") as file:  # as others read it
        assert same({name: file.get_tensor(name) for name in file.keys()}, state_of(1).tensors)  # noqa: SIM118
        assert meta.items() <= file.metadata().items()


def test_files_that_cannot_be_read_or_written(tmp_path: Path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="cannot read the weights"):
            read_weights(path)
    with pytest.raises(InputError, match="cannot write the weights"):
        write_weights(tmp_path / "no" / "folder", {})
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write a checkpoint"):
        write_checkpoint(tmp_path / "file", 1, state_of(1))


def test_states_are_joined_and_split():
    parts = {"policy": state_of(1), "optimizer": State({"a/b.c/d": torch.ones(1)}, {"k": 2}), "empty": State({}, {})}
    again = split_state(join_states(parts))
    assert again.keys() == parts.keys()
    for part, state in parts.items():
        assert same(again[part].tensors, state.tensors)
        assert again[part].values == state.values
    with pytest.raises(InputError, match="slash"):
        join_states({"a/b": State({}, {})})


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(5, 3, generator=generator)).square().sum().backward()
        optimizer.step()


OPTIMIZERS = {
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.8, 0.9)),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, amsgrad=True, weight_decay=0.1),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9, nesterov=True),
    "groups": lambda m: torch.optim.Adam(
        [{"params": list(m[2].parameters())}, {"params": list(m[0].parameters()), "lr": 1e-3}], lr=0.1
    ),
    "named": lambda m: torch.optim.Adam(m.named_parameters(), lr=1e-2),
    "fused": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, fused=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
def test_an_optimizer_resumes_bit_for_bit(tmp_path: Path, kind: str, before: int):
    first = model()
    optimizer = OPTIMIZERS[kind](first)
    train(first, optimizer, before, seed=1)
    optimizer.param_groups[0]["lr"] = 0.1 + 0.2
    state = optimizer_state(optimizer, dict(first.named_parameters()))
    write_checkpoint(tmp_path, before, join_states({"policy": State(dict(first.state_dict())), "optimizer": state}))
    kept = {name: tensor.clone() for name, tensor in state.tensors.items()}
    train(first, optimizer, 3, seed=2)

    second = model(seed=9)
    parts = split_state(read(tmp_path)[1])
    second.load_state_dict(parts["policy"].tensors)
    other = OPTIMIZERS[kind](second)
    restore_optimizer(other, dict(second.named_parameters()), parts["optimizer"])
    train(second, other, 3, seed=2)
    assert same(dict(second.state_dict()), dict(first.state_dict()))
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    # Training does not change a state, neither the one it was taken from nor the one that was restored.
    assert same(state.tensors, kept)
    assert same(parts["optimizer"].tensors, kept)


def test_optimizer_states_that_are_refused():
    module = model()
    optimizer = OPTIMIZERS["adam"](module)
    train(module, optimizer, 1, seed=1)
    names = dict(module.named_parameters())
    state = optimizer_state(optimizer, names)
    wide = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    unknown = State({**state.tensors, "5.weight/exp_avg": torch.zeros(1)}, state.values)
    for other, parameters, stored, message in (
        (OPTIMIZERS["sgd"](module), names, state, "from the optimiser Adam, not from SGD"),
        (torch.optim.Adam(module[2].parameters()), names, state, r"only one of them has 0\.bias"),
        (OPTIMIZERS["groups"](module), names, state, "groups or order differ"),
        (OPTIMIZERS["adam"](wide), dict(wide.named_parameters()), state, r"0\.weight/exp_avg has the shape \(4, 3\)"),
        (optimizer, names, unknown, r"no parameter '5\.weight'"),
    ):
        with pytest.raises(InputError, match=message):
            restore_optimizer(other, parameters, stored)
    with pytest.raises(InputError, match="without a name"):
        optimizer_state(optimizer, dict(model().named_parameters()))


WRITER = """
import sys, torch
from pathlib import Path
from corollout.training.checkpoints import State, write_checkpoint
from corollout.weights import write_weights
folder = Path(sys.argv[1])
step = int(sys.argv[2])
print("ready", flush=True)
while True:
    for number in (step, step):  # each step twice: the second time it replaces a checkpoint
        tensors = {"w": torch.full((20_000,), float(step))}
        write_checkpoint(folder / "checkpoints", step, State(tensors, {"number": step}))
    write_weights(folder / "best.safetensors", tensors, {"number": str(step)})
    step += 1
"""


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.prove)])
def test_killed_while_writing_the_newest_is_complete(tmp_path: Path, kills: int):
    """Killed again and again: checkpoints can always be read without a warning, and steps never decrease."""
    last = 0
    for attempt in range(kills):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(last + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "ready\n"
                # A writer does not disturb readers.
                end, step = time.monotonic() + 0.15 + 0.037 * attempt, 0
                while time.monotonic() < end or step < last + 2:
                    if newest_checkpoint(tmp_path / "checkpoints") is not None:
                        step, state = read(tmp_path / "checkpoints")
                        assert step == state.values["number"]
            finally:
                process.kill()
        step, state = read(tmp_path / "checkpoints")
        assert step >= last
        assert (state.tensors["w"] == step).all()
        tensors, meta = read_weights(tmp_path / "best.safetensors")
        assert (tensors["w"] == float(meta["number"])).all()
        last = step
