"""Checkpoints come back bit by bit, and damaged ones are noticed, whatever the damage."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from safetensors import safe_open
from torch import Tensor, nn

from corollout.errors import InputError
from corollout.training.checkpoints import (
    State,
    join_states,
    newest_checkpoint,
    optimizer_state,
    read_weights,
    restore_optimizer,
    split_state,
    write_checkpoint,
    write_weights,
)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def silent(message: str) -> None:
    raise AssertionError(message)


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
    # Any bits, those of infinities and of what is not a number included.
    raw = torch.randint(0, 256, (max(1, int(torch.tensor(shape).prod())) * size,), generator=generator)
    full = raw.to(torch.uint8).view(dtype)
    return full[: int(torch.tensor(shape).prod())].reshape(shape) if 0 in shape else full.reshape(shape)


names = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__" and name.isprintable())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, tensors(), max_size=4), st.dictionaries(st.text(), values, max_size=4))
def test_a_state_comes_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, stored: dict, words: dict):
    folder = tmp_path_factory.mktemp("state")
    write_checkpoint(folder, 7, State(stored, words))
    found = newest_checkpoint(folder, silent)
    assert found is not None
    step, state = found
    assert step == 7
    assert same(state.tensors, stored)
    assert json.dumps(state.values) == json.dumps(words)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(names, tensors(), max_size=4), st.dictionaries(st.text(), st.text(), max_size=3))
def test_weights_come_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, stored: dict, words: dict):
    path = tmp_path_factory.mktemp("weights") / "best.safetensors"
    write_weights(path, stored, words)
    again, meta = read_weights(path, "cpu")
    assert same(again, stored)
    assert meta == words


def test_strided_tied_and_trained_tensors_can_be_written(tmp_path: Path):
    table = nn.Parameter(torch.randn(4, 3))
    stored = {"table": table, "tied": table, "turned": table.t(), "row": table[1], "wide": table[:1].expand(5, 3)}
    write_checkpoint(tmp_path, 0, State(stored, {}))
    write_weights(tmp_path / "w", stored)
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    plain = {name: tensor.detach() for name, tensor in stored.items()}
    assert same(found[1].tensors, plain)
    again = read_weights(tmp_path / "w", "cpu")[0]
    assert same(again, plain)
    again["table"].zero_()
    assert again["tied"].any()


def test_infinities_and_nan_are_values_too(tmp_path: Path):
    write_checkpoint(tmp_path, 0, State({}, {"best": float("-inf"), "none": float("nan")}))
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    assert found[1].values["best"] == float("-inf")
    assert found[1].values["none"] != found[1].values["none"]


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


def test_the_newest_two_are_kept_and_temporary_ones_removed(tmp_path: Path):
    (tmp_path / ".temporary-3").mkdir()
    (tmp_path / ".temporary-3" / "tensors.safetensors").write_bytes(b"half")
    for step in (1, 5, 20, 100_000_000):
        write_checkpoint(tmp_path, step, state_of(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-100000000"]
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    assert found[0] == found[1].values["number"] == 100_000_000


def test_a_step_can_be_written_again(tmp_path: Path):
    write_checkpoint(tmp_path, 4, state_of(4))
    write_checkpoint(tmp_path, 4, state_of(5))
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    assert found[1].values["number"] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def test_a_step_half_replaced_is_read_and_settled(tmp_path: Path):
    old = write_checkpoint(tmp_path, 4, state_of(4))
    write_checkpoint(tmp_path / "other", 4, state_of(5)).rename(old.with_suffix(".new"))
    (tmp_path / "other").rmdir()
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    assert found[1].values["number"] == 5
    write_checkpoint(tmp_path, 6, state_of(6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000006"]
    shutil.rmtree(tmp_path / "step-00000006")
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    assert found[1].values["number"] == 5


def test_checkpoints_of_a_course_given_up_are_removed(tmp_path: Path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step, state_of(step))
    (tmp_path / "step-00000030" / "state.json").write_text("{")
    write_checkpoint(tmp_path, 25, state_of(25))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000025"]


def test_without_checkpoints_there_is_none(tmp_path: Path):
    assert newest_checkpoint(tmp_path, silent) is None
    assert newest_checkpoint(tmp_path / "nowhere", silent) is None
    (tmp_path / ".temporary-3").mkdir()
    (tmp_path / "step-7").mkdir()
    assert newest_checkpoint(tmp_path, silent) is None


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x41
    path.write_bytes(bytes(data))


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def add(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def rewrite(path: Path, **entries: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def drop(path: Path, key: str) -> None:
    body = json.loads(path.read_text())
    del body[key]
    path.write_text(json.dumps(body))


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
    "state is no text": lambda c: (c / "state.json").write_bytes(b"\xff\xfe\x00"),
    **{f"state cut to {n}": lambda c, n=n: cut(c / "state.json", n) for n in (1, 20, -1)},
    "state too long": lambda c: add(c / "state.json"),
    "other value": lambda c: rewrite(c / "state.json", values={"number": 3, "x": 0.1}),
    "other step": lambda c: rewrite(c / "state.json", step=3),
    "other digest": lambda c: rewrite(c / "state.json", tensors="00"),
    "other format": lambda c: rewrite(c / "state.json", format=2),
    "no values": lambda c: drop(c / "state.json", "values"),
    "no digest": lambda c: drop(c / "state.json", "digest"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, damage: str):
    write_checkpoint(tmp_path, 1, state_of(1))
    newest = write_checkpoint(tmp_path, 2, state_of(2))
    DAMAGES[damage](newest)
    warnings: list[str] = []
    found = newest_checkpoint(tmp_path, warnings.append)
    assert found is not None
    assert found[0] == found[1].values["number"] == 1
    (warning,) = warnings
    assert str(newest) in warning
    assert warning.count("\n") == 0
    DAMAGES[damage](tmp_path / "step-00000001")
    with pytest.raises(InputError, match=r"no checkpoint in .* can be used"):
        newest_checkpoint(tmp_path, warnings.append)


def test_every_flipped_byte_and_every_length_of_the_state_is_noticed_or_harmless(tmp_path: Path):
    path = write_checkpoint(tmp_path, 2, state_of(2)) / "state.json"
    data = path.read_bytes()
    for place in range(len(data)):
        for changed in (data[:place], data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
            path.write_bytes(changed)
            try:
                found = newest_checkpoint(tmp_path, lambda _: None)
            except InputError:
                continue
            assert found is not None
            assert found[1].values == state_of(2).values


@pytest.mark.parametrize("place", [0, 5, 9, 60, -60, -1])
@pytest.mark.parametrize("how", [flip, cut])
def test_damaged_weights_are_refused(tmp_path: Path, how, place: int):
    path = tmp_path / "best.safetensors"
    write_weights(path, state_of(1).tensors, {"update": "12"})
    how(path, place)
    with pytest.raises(InputError, match=r"best\.safetensors is damaged"):
        read_weights(path, "cpu")


def test_equal_weights_give_equal_files(tmp_path: Path):
    words = {f"word {number}": str(number) for number in range(20)}
    files = [tmp_path / name for name in "abc"]
    for path in files:
        write_weights(path, state_of(1).tensors, words)
        words = dict(reversed(words.items()))
    assert len({path.read_bytes() for path in files}) == 1
    with safe_open(files[0], "pt") as file:  # as others read it
        assert same({name: file.get_tensor(name) for name in file.keys()}, state_of(1).tensors)  # noqa: SIM118
        assert words.items() <= file.metadata().items()


def test_every_flipped_byte_of_weights_is_noticed(tmp_path: Path):
    path = tmp_path / "best.safetensors"
    write_weights(path, state_of(1).tensors, {"update": "12"})
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            again, words = read_weights(path, "cpu")
        except InputError:
            continue
        # The name of the digest itself, or white space: such a file says the same, or comes without a digest.
        assert same(again, state_of(1).tensors)
        assert words.get("update") == "12"


def test_weights_that_are_missing_or_cannot_be_written(tmp_path: Path):
    with pytest.raises(InputError, match=r"cannot read the weights .*none: No such file"):
        read_weights(tmp_path / "none", "cpu")
    with pytest.raises(InputError, match="cannot read the weights"):
        read_weights(tmp_path, "cpu")
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


def model(seed: int = 0) -> nn.Module:
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
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
def test_an_optimizer_goes_on_bit_by_bit(tmp_path: Path, kind: str, before: int):
    first = model()
    optimizer = OPTIMIZERS[kind](first)
    train(first, optimizer, before, seed=1)
    optimizer.param_groups[0]["lr"] = 0.1 + 0.2
    names = dict(first.named_parameters())
    parts = {"policy": State(dict(first.state_dict()), {}), "optimizer": optimizer_state(optimizer, names)}
    write_checkpoint(tmp_path, before, join_states(parts))
    train(first, optimizer, 3, seed=2)

    second = model(seed=9)
    found = newest_checkpoint(tmp_path, silent)
    assert found is not None
    read = split_state(found[1])
    second.load_state_dict(read["policy"].tensors)
    other = OPTIMIZERS[kind](second)
    restore_optimizer(other, dict(second.named_parameters()), read["optimizer"])
    train(second, other, 3, seed=2)
    assert same(dict(second.state_dict()), dict(first.state_dict()))
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


def test_a_stored_state_does_not_change_when_training_goes_on():
    module = model()
    optimizer = OPTIMIZERS["adam"](module)
    train(module, optimizer, 1, seed=1)
    names = dict(module.named_parameters())
    state = optimizer_state(optimizer, names)
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    train(module, optimizer, 1, seed=1)
    assert same(state.tensors, before)
    restore_optimizer(optimizer, names, state)
    train(module, optimizer, 1, seed=1)
    assert same(state.tensors, before)


def test_an_optimizer_refuses_what_is_not_its_own():
    module = model()
    optimizer = OPTIMIZERS["adam"](module)
    train(module, optimizer, 1, seed=1)
    names = dict(module.named_parameters())
    state = optimizer_state(optimizer, names)
    with pytest.raises(InputError, match="of the optimiser Adam, not of SGD"):
        restore_optimizer(OPTIMIZERS["sgd"](module), names, state)
    with pytest.raises(InputError, match=r"0\.bias is only in one"):
        restore_optimizer(torch.optim.Adam(module.get_submodule("2").parameters()), names, state)
    with pytest.raises(InputError, match="groups or order differ"):
        restore_optimizer(OPTIMIZERS["groups"](module), names, state)
    with pytest.raises(InputError, match="without a name"):
        optimizer_state(optimizer, dict(model().named_parameters()))
    wide = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"0\.weight/exp_avg has the shape \(4, 3\), but the parameter has \(4, 4\)"):
        restore_optimizer(OPTIMIZERS["adam"](wide), dict(wide.named_parameters()), state)
    strange = State({**state.tensors, "5.weight/exp_avg": torch.zeros(1)}, state.values)
    with pytest.raises(InputError, match=r"no parameter '5\.weight'"):
        restore_optimizer(optimizer, names, strange)


WRITER = """
import sys, torch
from pathlib import Path
from corollout.training.checkpoints import State, write_checkpoint, write_weights
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


def test_killed_while_writing_the_newest_is_whole(tmp_path: Path):
    """Killed again and again: what is there can always be read without a warning, and never goes back."""
    last = 0
    for round_ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(last + 1)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            # Readers are not disturbed by a writer.
            end = time.monotonic() + 0.15 + 0.037 * round_
            found = None
            while time.monotonic() < end or found is None or found[0] < last + 2:
                found = newest_checkpoint(tmp_path / "checkpoints", silent)
                if found is not None:
                    assert found[0] == found[1].values["number"]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        found = newest_checkpoint(tmp_path / "checkpoints", silent)
        assert found is not None
        step, state = found
        assert step >= last
        assert (state.tensors["w"] == step).all()
        weights, words = read_weights(tmp_path / "best.safetensors", "cpu")
        assert (weights["w"] == float(words["number"])).all()
        last = step
