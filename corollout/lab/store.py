"""What a lab has measured so far, kept in a folder, so that whatever stops it costs one estimator at most."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from corollout.errors import InputError
from corollout.lab.measure import Measurement, Reference
from corollout.lab.spread import Spread
from corollout.training.checkpoints import read_weights, replace_file, write_weights

FILE, REFERENCE = "measurements.json", "reference.safetensors"


class Store:
    """Measurements of one set of settings; without a folder they are kept in memory only.

    More estimators may be added later. Other settings are refused: their numbers could not be compared.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]):
        self._folder, self._settings = folder, dict(settings)
        self.measurements: dict[str, Measurement] = {}
        self.spread: Spread | None = None
        self.seconds: dict[str, list[float]] = {}  # of rounds that all of these estimators took part in
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror or error}; choose another") from error
        if (folder / FILE).exists():
            self._read(folder / FILE)
        else:
            self._write()

    def keep(self, measurement: Measurement) -> None:
        self.measurements[measurement.estimator] = measurement
        self._write()

    def keep_spread(self, spread: Spread) -> None:
        self.spread = spread
        self._write()

    def keep_seconds(self, seconds: Mapping[str, Sequence[float]]) -> None:
        self.seconds = {name: list(own) for name, own in seconds.items()}
        self._write()

    def reference(self, device: torch.device) -> Reference | None:
        """The reference, if it was made already."""
        if self._folder is None or not (path := self._folder / REFERENCE).exists():
            return None
        tensors, words = read_weights(path, device)
        if words.get("settings") != self._fingerprint or "blocks" not in tensors:
            raise InputError(f"{path} belongs to another lab: remove it, or choose another folder")
        return Reference(tensors["blocks"], words["estimator"], int(words["estimates"]))

    def keep_reference(self, reference: Reference) -> None:
        if self._folder is not None:
            words = {"settings": self._fingerprint, "estimator": reference.estimator}
            write_weights(
                self._folder / REFERENCE, {"blocks": reference.blocks}, words | {"estimates": str(reference.estimates)}
            )

    @property
    def _fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()

    def _read(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text("utf-8"))
            settings, self.seconds = found["settings"], found["seconds"]
            self.spread = None if found["spread"] is None else Spread(**found["spread"])
            self.measurements = {name: Measurement(**own) for name, own in found["measurements"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {path}: {error}; remove it to have it measured again") from error
        for name, value in self._settings.items():
            if settings.get(name) != value:
                raise InputError(
                    f"{path.parent} holds a lab with other settings ({name.replace('_', ' ')}: {settings.get(name)}, "
                    f"now {value}): choose another folder, or remove that one"
                )

    def _write(self) -> None:
        if self._folder is None:
            return
        content = {
            "settings": self._settings,
            "measurements": {name: asdict(own) for name, own in self.measurements.items()},
            "spread": None if self.spread is None else asdict(self.spread),
            "seconds": self.seconds,
        }
        path = self._folder / FILE
        try:
            replace_file(path, (json.dumps(content) + "\n").encode())
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}; choose another folder") from error


def digest_of(policy: nn.Module) -> str:
    """A short digest of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in policy.state_dict().items():
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
