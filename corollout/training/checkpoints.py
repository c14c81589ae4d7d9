"""Training states on disk: checkpoints that are complete or absent. Nothing is pickled.

A checkpoint is a directory ``step-00000123`` with ``tensors.safetensors`` and ``state.json``. It is written under
another name, forced to the disk and renamed, so that a process may be killed at any instant.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from corollout.errors import InputError
from corollout.events import Callback, ignore, warning
from corollout.files import TEMPORARY, digest_of, force_to_disk, leads_to, os_errors, write_synced
from corollout.weights import dense_copies

FORMAT = 1
KEPT = 2  # checkpoints of a run
TENSORS, STATE = "tensors.safetensors", "state.json"
# A step that is written again is called .new until the old one is gone, so that one of them is always complete.
_NAME = re.compile(r"step-(\d{8,})(\.new)?")
_IMPLEMENTATION = ("fused", "foreach")  # options of an optimiser that change nothing but rounding


@dataclass(frozen=True)
class State:
    """What a training resumes from: named tensors, and values that JSON can hold."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def join_states(parts: Mapping[str, State]) -> State:
    """Several states as one, which :func:`split_state` takes apart. The names of parts contain no slash."""
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
    """A checkpoint is not usable, and why."""


class _Gone(Exception):
    """A checkpoint was removed or replaced while it was being read."""


def write_checkpoint(folder: Path, step: int, state: State) -> Path:
    """Write a checkpoint and keep the one before; those of later steps belong to an abandoned run and are removed."""
    _check_values(state.values, "values")
    data = safetensors.torch.save(dense_copies(state.tensors))
    body = {"format": FORMAT, "step": step, "tensors": digest_of([data]), "values": state.values}
    text = json.dumps({**body, "digest": _body_digest(body)})
    with os_errors(f"write a checkpoint to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        settle_checkpoints(folder)
        temporary = folder / f"{TEMPORARY}{step}"
        temporary.mkdir()
        try:
            write_synced(temporary / TENSORS, data)
            write_synced(temporary / STATE, text.encode())
            force_to_disk(temporary)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        path = folder / f"step-{step:08d}"
        if path.exists():
            new = path.with_suffix(".new")
            temporary.rename(new)
            force_to_disk(folder)
            _settle(new)
        else:
            temporary.rename(path)
        force_to_disk(folder)
        newest_first = _checkpoints(folder)
        kept = [other for other in newest_first if _step(other) <= step][:KEPT]
        for other in newest_first:
            if other not in kept:
                _discard(other)
    return path


def settle_checkpoints(folder: Path) -> None:
    """Finish what the last writer was killed at: incomplete checkpoints go, and those that replace others do so."""
    with os_errors(f"write a checkpoint to {folder}"):
        for leftover in folder.glob(TEMPORARY + "*"):
            shutil.rmtree(leftover)
        for path in _checkpoints(folder):
            if path.name.endswith(".new"):
                _settle(path)


def newest_checkpoint(folder: Path, on_event: Callback = ignore) -> tuple[int, State] | None:
    """Step and state of the newest complete checkpoint, or None if there is no checkpoint at all.

    Each one that has to be skipped is reported by a warning; if none is left, that is an error.
    """
    paths = _checkpoints(folder)
    invalid: set[Path] = set()
    while paths:
        path = paths.pop(0)
        try:
            return _step(path), _read(path)
        except _Gone:
            paths = [other for other in _checkpoints(folder) if other not in invalid]
        except _Invalid as error:
            invalid.add(path)
            on_event(warning(f"skipped the checkpoint {path}: {error}"))
    if invalid:
        raise InputError(
            f"none of the {len(invalid)} checkpoints in {folder} is usable; remove that folder to start over"
        )
    return None


def read_checkpoint(folder: Path, step: int) -> State:
    """The checkpoint of a step, which must be complete."""
    paths = _checkpoints(folder)
    for path in paths:
        if _step(path) == step:
            try:
                return _read(path)
            except (_Gone, _Invalid) as error:
                raise InputError(f"the checkpoint {path} is not usable: {error or 'it was removed'}") from error
    existing = sorted({path.name.removesuffix(".new") for path in paths}) or ["none"]
    raise InputError(f"{folder.parent} has no checkpoint step-{step:08d}; it has {', '.join(existing)}")


def optimizer_state(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor]) -> State:
    """The state of an optimiser such as Adam or SGD by parameter name: ``names = dict(policy.named_parameters())``.

    Tensors are called ``parameter/slot``; the values hold the groups and every slot that is not a tensor.
    """
    named, packed = _group_names(optimizer, names), optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    slots: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(chain(*named)):
        for slot, value in packed["state"].get(index, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{slot}"] = value.detach().clone()
            else:
                slots.setdefault(name, {})[slot] = value
    groups = [
        {**{key: value for key, value in group.items() if key not in ("params", "param_names")}, "params": group_names}
        for group, group_names in zip(packed["param_groups"], named, strict=True)
    ]
    return State(tensors, {"optimizer": type(optimizer).__name__, "groups": groups, "slots": slots})


def restore_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[str, Tensor], state: State) -> None:
    """Load a state of :func:`optimizer_state` into an optimiser of the same class for the same parameters.

    Which of PyTorch's implementations it uses (``fused``, ``foreach``) is its own choice, not that of the state.
    """
    name = type(optimizer).__name__
    if state.values["optimizer"] != name:
        raise InputError(f"the state comes from the optimiser {state.values['optimizer']}, not from {name}")
    named = _group_names(optimizer, names)
    stored = [group["params"] for group in state.values["groups"]]
    if stored != named:
        odd = sorted(set(chain(*stored)) ^ set(chain(*named)))
        what = f"only one of them has {odd[0]}" if odd else "their groups or order differ"
        raise InputError(f"the optimiser and its state have different parameters: {what}")
    index = {name: number for number, name in enumerate(chain(*named))}
    slots: dict[int, dict[str, Any]] = {index[name]: dict(entry) for name, entry in state.values["slots"].items()}
    for key, tensor in state.tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in index:
            raise InputError(f"the optimiser's state has a tensor {key}, but no parameter {name!r} is optimised")
        if tensor.dim() > 0 and tensor.shape != names[name].shape:  # without dimensions: a count of steps
            raise InputError(
                f"the optimiser's state {key} has the shape {tuple(tensor.shape)}, "
                f"but the parameter has {tuple(names[name].shape)}"
            )
        if tensor.dim() > 0:  # in memory as the parameter is: fused optimisers rely on that, and do not check it
            tensor = torch.empty_like(names[name], dtype=tensor.dtype).copy_(tensor)
        slots.setdefault(index[name], {})[slot] = tensor.clone()
    groups = []
    for current, group in zip(optimizer.state_dict()["param_groups"], state.values["groups"], strict=True):
        values = {key: tuple(v) if isinstance(current.get(key), tuple) else v for key, v in group.items()}
        kept = {key: current[key] for key in ("params", *_IMPLEMENTATION) if key in current}
        groups.append({**values, **kept})
    optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, newest first."""
    with os_errors(f"read the checkpoints in {folder}"):
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.exists() else []
    return sorted(paths, key=lambda path: (_step(path), path.name), reverse=True)


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match
    return int(match[1])


def _read(path: Path) -> State:
    """Raises ``_Gone`` if the checkpoint was removed or replaced meanwhile, ``_Invalid`` if it is not usable."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise _Gone from error
    except OSError as error:
        raise _Invalid(f"it cannot be read ({error.strerror or error})") from error
    try:
        # Both files are read from the same directory, even if another one takes its name meanwhile.
        body = json.loads(_read_in(handle, STATE))
        return _parse(body, _read_in(handle, TENSORS), _step(path))
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        if leads_to(path, handle):
            raise _Invalid(error) from error
        raise _Gone from error
    finally:
        os.close(handle)


def _read_in(directory: int, name: str) -> bytes:
    with open(name, "rb", opener=lambda name, flags: os.open(name, flags, dir_fd=directory)) as file:
        return file.read()


def _parse(body: Any, data: bytes, step: int) -> State:
    if not isinstance(body, dict) or set(body) != {"format", "step", "tensors", "values", "digest"}:
        raise ValueError(f"{STATE} does not have the entries of a checkpoint")
    if body["format"] != FORMAT:
        raise ValueError(f"it has format {body['format']!r}, and this version reads format {FORMAT}")
    if body.pop("digest") != _body_digest(body) or body["step"] != step:
        raise ValueError(f"{STATE} is damaged")
    if body["tensors"] != digest_of([data]):
        raise ValueError(f"{TENSORS} is damaged or cut off")
    return State(safetensors.torch.load(data), body["values"])


def _settle(new: Path) -> None:
    """Let a checkpoint called ``….new`` replace the one of its final name."""
    path = new.with_suffix("")
    if path.exists():
        _discard(path)
    new.rename(path)


def _discard(path: Path) -> None:
    """Remove a directory; under its own name it is complete or gone."""
    away = path.with_name(f"{TEMPORARY}{path.name}")
    path.rename(away)
    shutil.rmtree(away)


def _check_values(value: Any, where: str) -> None:
    """Refuse what JSON cannot hold, and keys that it would silently turn into text."""
    if isinstance(value, dict):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise InputError(f"a state's {where} has the key {key!r}; keys must be text")
            _check_values(entry, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            _check_values(entry, f"{where}[{index}]")
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise InputError(f"a state's {where} is a {type(value).__name__}, which JSON cannot hold")


def _body_digest(body: Mapping[str, Any]) -> str:
    # JSON prints numbers in full, so values that were written and read again give the same text.
    return digest_of([json.dumps([body["format"], body["step"], body["tensors"], body["values"]]).encode()])


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
