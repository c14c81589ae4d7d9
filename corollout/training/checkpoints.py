"""Training states on disk: checkpoints that are whole or absent, and files of weights. Nothing here is pickled.

A checkpoint is a directory ``step-00000123`` with ``tensors.safetensors`` and ``state.json``. It is written under
another name, forced to the disk and renamed, so that a process may be killed at any instant.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from corollout.errors import InputError

FORMAT = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
_DIGEST = "corollout.digest"
# A step that is written again lies beside the old one as .new until that is gone, so that one of them is always whole.
_NAME = re.compile(r"step-(\d{8,})(\.new)?")
_TEMPORARY = ".temporary-"


@dataclass(frozen=True)
class State:
    """What a training needs to go on: named tensors, and values that JSON can hold."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def join_states(parts: Mapping[str, State]) -> State:
    """One state of several, to be taken apart by :func:`split_state`. The parts' names have no slash."""
    if wrong := [part for part in parts if "/" in part]:
        raise InputError(f"the name of a part of a state must not contain a slash: {wrong[0]!r}")
    tensors = {f"{part}/{name}": tensor for part, state in parts.items() for name, tensor in state.tensors.items()}
    return State(tensors, {part: state.values for part, state in parts.items()})


def split_state(state: State) -> dict[str, State]:
    """The parts that were joined."""
    parts = {part: State({}, values) for part, values in state.values.items()}
    for name, tensor in state.tensors.items():
        part, _, rest = name.partition("/")
        parts[part].tensors[rest] = tensor
    return parts


class _Invalid(Exception):
    """A checkpoint that cannot be used, and why."""


class _Gone(Exception):
    """A checkpoint that a writer removed or replaced while it was read."""


def write_checkpoint(folder: Path, step: int, state: State, keep: int = 2) -> Path:
    """Write a checkpoint and remove all but the newest ``keep``; those of later steps are of a course given up."""
    if step < 0 or keep < 1:
        raise InputError(f"a checkpoint needs a step ≥ 0 and keep ≥ 1, not {step} and {keep}")
    _check_values(state.values, "values")
    data = safetensors.torch.save(_plain(state.tensors))
    body = {"format": FORMAT, "step": step, "tensors": _hash([data]), "values": state.values}
    text = json.dumps({**body, "digest": _body_digest(body)})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(_TEMPORARY + "*"):
            shutil.rmtree(leftover)
        for path in _found(folder):
            if path.name.endswith(".new"):
                _settle(path)
        temporary = folder / f"{_TEMPORARY}{step}"
        temporary.mkdir()
        _write_synced(temporary / TENSORS, data)
        _write_synced(temporary / STATE, text.encode())
        _sync(temporary)
        path = folder / f"step-{step:08d}"
        if path.exists():
            new = path.with_suffix(".new")
            temporary.rename(new)
            _sync(folder)
            _settle(new)
        else:
            temporary.rename(path)
        _sync(folder)
        later_first = [(_step(other), other) for other in _found(folder)]
        keepers = [other for number, other in later_first if number <= step][:keep]
        for _, other in later_first:
            if other not in keepers:
                _discard(other)
    except OSError as error:
        raise InputError(f"cannot write a checkpoint to {folder}: {error.strerror or error}") from error
    return path


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> tuple[int, State] | None:
    """Step and state of the newest checkpoint that is whole, or None where there is no checkpoint at all.

    Each one that has to be passed over is named in a warning; if none is left, that is an error.
    """
    paths = _found(folder)
    told: set[Path] = set()
    while paths:
        path = paths.pop(0)
        try:
            return _step(path), _read(path)
        except _Gone:
            paths = [other for other in _found(folder) if other not in told]
        except _Invalid as error:
            told.add(path)
            warn(f"passed over the checkpoint {path}: {error}")
    if told:
        raise InputError(
            f"no checkpoint in {folder} can be used ({len(told)} tried); remove that folder to start from the beginning"
        )
    return None


def write_weights(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str] | None = None) -> None:
    """Write tensors and some words about them to one file, which is replaced at once."""
    plain, words = _plain(tensors), dict(meta or {})
    data = _ordered(safetensors.torch.save(plain, metadata={**words, _DIGEST: _weights_digest(plain, words)}))
    try:
        replace_file(path, data)
    except OSError as error:
        raise InputError(f"cannot write the weights {path}: {error.strerror or error}") from error


def read_weights(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and words of a file of weights. One without our digest, made elsewhere, is read as it is."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the weights {path}: {error.strerror or error}") from error
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged or no safetensors file ({error}); write it again") from error
    words: dict[str, str] = header.get("__metadata__", {})
    digest = words.pop(_DIGEST, None)
    if digest is not None and digest != _weights_digest(tensors, words):
        raise InputError(f"{path} is damaged (its content does not match its digest); write it again")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, words


def optimizer_state(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor]) -> State:
    """The state of an optimiser such as Adam or SGD, by parameter names: ``names = dict(policy.named_parameters())``.

    Tensors are called ``parameter/slot``; the values hold the groups and every slot that is no tensor.
    """
    named = _group_names(optimizer, names)
    tensors: dict[str, Tensor] = {}
    slots: dict[str, dict[str, Any]] = {}
    for group, group_names in zip(optimizer.param_groups, named, strict=True):
        for parameter, name in zip(group["params"], group_names, strict=True):
            for slot, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{name}/{slot}"] = value.detach().clone()
                else:
                    slots.setdefault(name, {})[slot] = value
    groups = [
        {**{key: value for key, value in group.items() if key not in ("params", "param_names")}, "params": group_names}
        for group, group_names in zip(optimizer.param_groups, named, strict=True)
    ]
    return State(tensors, {"optimizer": type(optimizer).__name__, "groups": groups, "slots": slots})


def restore_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor], state: State) -> None:
    """Put a state of :func:`optimizer_state` into an optimiser of the same kind for the same parameters."""
    kind = type(optimizer).__name__
    if state.values["optimizer"] != kind:
        raise InputError(f"the state is that of the optimiser {state.values['optimizer']}, not of {kind}")
    named = _group_names(optimizer, names)
    stored = [group["params"] for group in state.values["groups"]]
    if stored != named:
        odd = sorted(set(chain(*stored)) ^ set(chain(*named)))
        what = f"{odd[0]} is only in one of them" if odd else "their groups or order differ"
        raise InputError(f"the optimiser's parameters are not those of its state: {what}")
    places = {name: place for place, name in enumerate(chain(*named))}
    slots: dict[int, dict[str, Any]] = {places[name]: dict(entry) for name, entry in state.values["slots"].items()}
    for key, tensor in state.tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in places:
            raise InputError(f"the optimiser's state has a tensor {key}, but no parameter {name!r} is optimised")
        if tensor.dim() > 0 and tensor.shape != names[name].shape:  # without dimensions: a count of steps
            raise InputError(
                f"the optimiser's state {key} has the shape {tuple(tensor.shape)}, "
                f"but the parameter has {tuple(names[name].shape)}"
            )
        slots.setdefault(places[name], {})[slot] = tensor.clone()
    groups = []
    first = 0
    for own, group in zip(optimizer.param_groups, state.values["groups"], strict=True):
        values = {key: tuple(v) if isinstance(own.get(key), tuple) else v for key, v in group.items()}
        count = len(group["params"])
        groups.append({**values, "params": list(range(first, first + count))})
        first += count
    optimizer.load_state_dict({"state": slots, "param_groups": groups})


def replace_file(path: Path, data: bytes) -> None:
    """Write a file beside its place and rename it: who reads sees all of the old one or all of the new one."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    _write_synced(temporary, data)
    temporary.replace(path)
    _sync(path.parent)


def _found(folder: Path) -> list[Path]:
    """All checkpoints by name, newest first."""
    try:
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read the checkpoints in {folder}: {error.strerror or error}") from error
    return sorted(paths, key=lambda path: (_step(path), path.name), reverse=True)


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def _read(path: Path) -> State:
    # Both files are read in the directory that is there now, even if another one takes its name meanwhile.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise _Gone from error
    except OSError as error:
        raise _Invalid(f"it cannot be read ({error.strerror or error})") from error
    try:
        return _read_files(handle, _step(path))
    except _Invalid as error:
        try:
            there = os.path.samestat(os.stat(path), os.fstat(handle))
        except FileNotFoundError:
            there = False
        if there:
            raise
        raise _Gone from error
    finally:
        os.close(handle)


def _read_files(directory: int, step: int) -> State:
    try:
        text = _read_in(directory, STATE).decode("utf-8")
        data = _read_in(directory, TENSORS)
    except UnicodeDecodeError as error:
        raise _Invalid(f"{STATE} is no text") from error
    try:
        body = json.loads(text)
    except ValueError as error:
        raise _Invalid(f"{STATE} is no JSON ({error})") from error
    wanted = {"format", "step", "tensors", "values", "digest"}
    if not isinstance(body, dict) or set(body) != wanted:
        raise _Invalid(f"{STATE} does not have the entries of a checkpoint")
    if body["format"] != FORMAT:
        raise _Invalid(f"it has format {body['format']!r}, and this version reads format {FORMAT}")
    if body.pop("digest") != _body_digest(body) or body["step"] != step:
        raise _Invalid(f"{STATE} is damaged")
    if body["tensors"] != _hash([data]):
        raise _Invalid(f"{TENSORS} is damaged or cut off")
    try:
        return State(safetensors.torch.load(data), body["values"])
    except (SafetensorError, ValueError, KeyError) as error:
        raise _Invalid(f"{TENSORS} is no safetensors file ({error})") from error


def _read_in(directory: int, name: str) -> bytes:
    try:
        with open(name, "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as file:
            return file.read()
    except OSError as error:
        raise _Invalid(f"{name} cannot be read ({error.strerror or error})") from error


def _settle(new: Path) -> None:
    """Give a checkpoint called ``….new`` its name; until then the old one of that name is kept."""
    path = new.with_suffix("")
    if path.exists():
        _discard(path)
    new.rename(path)


def _discard(path: Path) -> None:
    """Remove a directory; under its own name it is there whole or not at all."""
    away = path.with_name(f"{_TEMPORARY}{path.name}")
    path.rename(away)
    shutil.rmtree(away)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors accepts: on the CPU, dense, and none sharing memory with another (tied weights)."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _ordered(data: bytes) -> bytes:
    """The same safetensors file with its words sorted, so that equal weights give equal files."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + data[start:]


def _check_values(value: Any, where: str) -> None:
    """JSON would silently turn other keys into text; and what it cannot hold should be named."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise InputError(f"a state's {where} has the key {key!r}; keys must be text")
            _check_values(entry, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            _check_values(entry, f"{where}[{place}]")
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise InputError(f"a state's {where} is a {type(value).__name__}, which JSON cannot hold")


def _hash(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _body_digest(body: Mapping[str, Any]) -> str:
    # What was written and read again gives the same text again: numbers are printed in full.
    return _hash([json.dumps([body["format"], body["step"], body["tensors"], body["values"]]).encode()])


def _weights_digest(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> str:
    """Of the content, however the file is laid out."""

    def parts() -> Iterable[bytes]:
        yield json.dumps(sorted(words.items())).encode()
        for name, tensor in sorted(tensors.items()):
            yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
            yield tensor.reshape(-1).view(torch.uint8).numpy().tobytes()

    return _hash(parts())


def _group_names(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor]) -> list[list[str]]:
    by_identity = {id(parameter): name for name, parameter in names.items()}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in by_identity:
                raise InputError(
                    f"group {number} of the optimiser has a parameter of shape {tuple(parameter.shape)} without a "
                    f"name; give it the policy's parameters"
                )
    return [[by_identity[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
