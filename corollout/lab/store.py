"""What a lab has measured so far, kept in a folder, so that an interruption costs one estimator at most."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from corollout.errors import InputError
from corollout.files import check_entries, read_json, write_json
from corollout.folders import make_folder
from corollout.lab.measurement import BatchVariance, Measurement, Reference
from corollout.processes import processes
from corollout.reports.typed import build, is_of
from corollout.weights import read_weights, tensor_bytes, write_weights

FILE, REFERENCE = "measurements.json", "reference.safetensors"
_ELSEWHERE = "choose another folder"


class Store:
    """Measurements with the same settings, kept by :meth:`save`; without a folder they are in memory only.

    Estimators may be added later. Other settings are refused: their numbers would not be comparable.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]):
        self._folder, self._settings = folder, dict(settings)
        self._fingerprint = hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()
        self.measurements: dict[str, Measurement] = {}
        self.batch_variance: BatchVariance | None = None
        self.seconds: dict[str, list[float]] = {}  # of rounds that all of these estimators took part in
        self._writes = processes().is_first  # the other processes of the job only read
        if folder is not None:
            with processes().agreed():
                if self._writes:
                    self._open(folder)
            with processes().agreed():
                if not self._writes:
                    self._read(folder / FILE)

    def reference(self, device: torch.device) -> Reference | None:
        """The reference, if it was stored."""
        if self._folder is None or not (path := self._folder / REFERENCE).exists():
            return None
        tensors, meta = read_weights(path, device)
        if meta.get("settings") != self._fingerprint or "blocks" not in tensors:
            raise InputError(f"{path} belongs to another lab: remove it, or {_ELSEWHERE}")
        return Reference(tensors["blocks"], meta["estimator"], int(meta["estimates"]))

    def set_reference(self, reference: Reference) -> None:
        if self._folder is not None and self._writes:
            meta = {"estimator": reference.estimator, "estimates": str(reference.estimates)}
            meta["settings"] = self._fingerprint
            write_weights(self._folder / REFERENCE, {"blocks": reference.blocks}, meta)

    def _open(self, folder: Path) -> None:
        make_folder(folder, _ELSEWHERE)
        if (folder / FILE).exists():
            self._read(folder / FILE)
        else:
            self.save()

    def _read(self, path: Path) -> None:
        advice = "remove it to measure again"
        content = read_json(path, advice)
        check_entries(content, path, advice, settings=dict, seconds=dict, measurements=dict, spread=(dict, NoneType))
        settings, self.seconds, spread = content["settings"], content["seconds"], content["spread"]
        try:
            self.batch_variance = None if spread is None else build(BatchVariance, spread, finite=False)
            self.measurements = {
                name: build(Measurement, fields, finite=False) for name, fields in content["measurements"].items()
            }
            if not is_of(self.seconds, dict[str, list[float]], finite=False):
                raise InputError("its seconds are not numbers")
        except InputError as error:
            raise InputError(f"{path} is damaged: {error}; {advice}") from error
        for name, value in self._settings.items():
            if settings.get(name) != value:
                raise InputError(
                    f"{path.parent} holds a lab with other settings ({name.replace('_', ' ')}: {settings.get(name)}, "
                    f"now {value}): {_ELSEWHERE}, or remove this one"
                )

    def save(self) -> None:
        """Write everything but the reference."""
        if self._folder is not None and self._writes:
            content = {
                "settings": self._settings,
                "measurements": {name: asdict(measurement) for name, measurement in self.measurements.items()},
                "spread": None if self.batch_variance is None else asdict(self.batch_variance),
                "seconds": self.seconds,
            }
            write_json(self._folder / FILE, content, _ELSEWHERE, indent=None)


def digest_of(policy: nn.Module) -> str:
    """A short digest of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in policy.state_dict().items():
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()[:16]
