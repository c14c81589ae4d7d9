"""Files of weights: verified by a digest, and never pickled."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from corollout.errors import InputError
from corollout.files import digest_of, read_bytes, write_file

_DIGEST = "corollout.digest"


def write_weights(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str] | None = None) -> None:
    """Write tensors and some metadata to one file, atomically."""
    dense, meta = dense_copies(tensors), dict(meta or {})
    data = safetensors.torch.save(dense, metadata={**meta, _DIGEST: _weights_digest(dense, meta)})
    write_file(path, _with_sorted_metadata(data), what="the weights ")


def read_weights(
    path: Path, device: torch.device | str = "cpu", *, foreign: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file of weights, verified by its digest.

    A ``foreign`` file may have been made elsewhere, without a digest.
    """
    data = read_bytes(path, "the weights ")
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged or not a safetensors file ({error}); write it again") from error
    meta: dict[str, str] = header.get("__metadata__") or {}
    digest = meta.pop(_DIGEST, None)
    if digest is None and not foreign:
        raise InputError(f"{path} is damaged or was made elsewhere (it has no digest); write it again")
    if digest is not None and digest != _weights_digest(tensors, meta):
        raise InputError(f"{path} is damaged (its content does not match its digest); write it again")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, meta


def dense_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that safetensors accepts: on the CPU, dense, and none sharing memory with another (tied weights)."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def tensor_bytes(tensor: Tensor) -> bytes:
    """The values of a tensor, for a digest."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _weights_digest(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> str:
    """A digest of the content, independent of the file's layout."""

    def parts() -> Iterator[bytes]:
        yield json.dumps(sorted(meta.items())).encode()
        for name, tensor in sorted(tensors.items()):
            yield json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
            yield tensor_bytes(tensor)

    return digest_of(parts())


def _with_sorted_metadata(data: bytes) -> bytes:
    """The same safetensors file with sorted metadata, so that equal weights give equal files."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + data[start:]
