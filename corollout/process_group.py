"""What the processes of a job say to each other: through a process group of ``torch.distributed``, or to themselves."""

import ctypes
import json
import math
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corollout.errors import InputError, ProcessError
from corollout.heartbeats import INTERVAL, Heartbeat, Verdict
from corollout.launch import address

TIMEOUT = "COROLLOUT_PROCESS_TIMEOUT"
_BUCKET = 2**25  # bytes that are added in one message
_LARGE = 2**20  # bytes of a tensor that is not copied into a message with others
_KINDS = ("join", "gather", "from_first", "tensors_from_first", "exchange", "add")
_DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
_HALVES = (torch.float16, torch.bfloat16)
_DIMENSIONS = 8
_HEADER = 4 + _DIMENSIONS  # kind of call, number of the call, and what it says of its tensors


class Processes:
    """The processes of a job, this one among them. This class is that of a process that is alone."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.waiting = 0.0  # seconds spent waiting for others in the calls below
        self.during = ""  # what is being done, for messages: "update 17"

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, in order, on this one's device; their first dimensions may differ, and be 0."""
        _require_gatherable(tensor)
        return [tensor.detach().clone()]

    def gather_values(self, value: Any) -> list[Any]:
        """Small values of all ranks that JSON can hold, in order of ranks; floats stay exact, tuples become lists."""
        return [json.loads(json.dumps(value))]

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, which JSON can hold, on all ranks."""
        return json.loads(json.dumps(value))

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in place, by its sum over the ranks; every rank gets the same bits.

        Sums of 16-bit floats are computed in 32 bits and rounded once.
        """

    def exchange(self, values: Sequence[int]) -> list[list[int]]:
        """A few whole numbers of each rank, in order of ranks: the fastest of these calls."""
        return [list(values)]

    def tensors_from_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rank 0's tensors, on the CPU; what the other ranks pass does not matter."""
        return {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    @contextmanager
    def agreed(self) -> Generator[None, None, None]:
        """What one rank cannot do inside, none can: all raise its error. There must be no call in between."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        texts = self.gather_values(None if error is None else str(error))
        first = next((text for text in texts if text is not None), None)
        if error is not None:
            raise error
        if first is not None:
            raise InputError(first)

    def is_first_to_say(self, sentence: str) -> bool:
        """Whether no other rank has asked this of the same sentence: the one that tells the user."""
        return True

    def leave(self, reason: str) -> None:
        """Say that this process leaves, and why, if an error is the reason: the others may still wait for it."""


class Group(Processes):
    """Processes that talk through ``torch.distributed``."""

    def __init__(self, timeout: float, store: Any):
        super().__init__(dist.get_rank(), dist.get_world_size())
        self._timeout, self._calls = timeout, 0
        # A group of its own: messages that others send through the default one cannot be mistaken for these.
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout + 60))
        self._has_nccl = "cuda:nccl" in str(dist.get_backend_config()) or dist.get_backend() == "nccl"
        self.heartbeat = Heartbeat(store, self.rank, self.size)
        self._meet("join")
        self.heartbeat.start()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        _require_gatherable(tensor)
        said = self._meet("gather", [_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape])
        if any([one[0], one[1], *one[3:]] != [said[0][0], said[0][1], *said[0][3:]] for one in said):
            shapes = [f"{str(_DTYPES[one[0]])[6:]} {one[2 : 2 + one[1]]}" for one in said]
            raise self._apart(f"they gather tensors that do not fit together, {' and '.join(shapes)}")
        on_device = self._has_nccl and tensor.is_cuda
        mine = tensor.detach().contiguous().reshape(-1).view(torch.uint8).to(tensor.device if on_device else "cpu")
        row = math.prod(tensor.shape[1:]) * tensor.element_size()
        lengths = [one[2] * row for one in said]
        if max(lengths) == 0:
            return [tensor.detach().clone() for _ in said]
        padded = mine.new_zeros(max(lengths))
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in said]
        self._finish(dist.all_gather(parts, padded, group=self._group_of(padded), async_op=True))
        return [
            part[:length].view(tensor.dtype).reshape(one[2], *tensor.shape[1:]).to(tensor.device)
            for part, length, one in zip(parts, lengths, said, strict=True)
        ]

    def gather_values(self, value: Any) -> list[Any]:
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(part.numpy())) for part in self.gather(text)]

    def from_first(self, value: Any) -> Any:
        text = json.dumps(value).encode() if self.is_first else b"0"
        length = self._meet("from_first", [len(text)])[0][0]
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.is_first else torch.empty(length).byte()
        self._finish(dist.broadcast(data, src=0, group=self._group, async_op=True))
        return json.loads(bytes(data.numpy()))

    def add(self, tensors: Sequence[Tensor]) -> None:
        tensors = [tensor.detach() for tensor in tensors]
        checksum = hash(tuple((_DTYPES.index(tensor.dtype), *tensor.shape) for tensor in tensors)) >> 1
        said = self._meet("add", [len(tensors), sum(tensor.numel() for tensor in tensors), checksum])
        if any(one != said[0] for one in said):
            raise self._apart(f"they add {' and '.join(f'{one[0]} tensors of {one[1]} numbers' for one in said)}")
        for bucket in _buckets(tensors):
            first = bucket[0]
            is_sent_as_it_is = len(bucket) == 1 and first.is_contiguous() and (self._has_nccl or not first.is_cuda)
            if is_sent_as_it_is and first.dtype not in _HALVES:
                self._finish(dist.all_reduce(first, group=self._group_of(first), async_op=True))
                continue
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            flat = flat.float() if first.dtype in _HALVES else flat
            flat = flat if self._has_nccl or not flat.is_cuda else flat.cpu()
            self._finish(dist.all_reduce(flat, group=self._group_of(flat), async_op=True))
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def exchange(self, values: Sequence[int]) -> list[list[int]]:
        return [one[: len(values)] for one in self._meet("exchange", values)]

    def tensors_from_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        named = {name: [_DTYPES.index(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
        received: dict[str, Tensor] = {}
        self._meet("tensors_from_first")
        for name, (dtype, shape) in self.from_first(named).items():
            tensor = tensors[name].detach().cpu() if self.is_first else torch.empty(shape, dtype=_DTYPES[dtype])
            data = tensor.contiguous().reshape(-1).view(torch.uint8)
            if len(data):
                self._finish(dist.broadcast(data, src=0, group=self._group, async_op=True))
            received[name] = tensor
        return received

    def is_first_to_say(self, sentence: str) -> bool:
        return self.heartbeat.claim(sentence)

    def leave(self, reason: str) -> None:
        self.heartbeat.stop(reason)

    def _group_of(self, tensor: Tensor) -> Any:
        return dist.group.WORLD if tensor.is_cuda else self._group

    def _meet(self, kind: str, values: Sequence[int] = ()) -> list[list[int]]:
        """Wait until all ranks have come to this call; return what each of them says of it."""
        if (verdict := self.heartbeat.verdict()) is not None:
            raise self._failure(None, verdict)
        self._calls += 1
        self.heartbeat.calls = self._calls
        header = torch.zeros(_HEADER, dtype=torch.int64)
        header[: 2 + len(values)] = torch.tensor([_KINDS.index(kind), self._calls, *values])
        headers = [torch.empty_like(header) for _ in range(self.size)]
        started = time.perf_counter()
        self._finish(dist.all_gather(headers, header, group=self._group, async_op=True))
        self.waiting += time.perf_counter() - started
        said: list[list[int]] = [one.tolist() for one in headers]
        if any(one[:2] != said[0][:2] for one in said):
            raise self._apart(f"they call {' and '.join(_KINDS[one[0]] for one in said)}")
        return [one[2:] for one in said]

    def _finish(self, work: Any) -> None:
        """Wait for a call to end, and look in between whether the others are alive."""
        started = time.monotonic()
        try:
            while True:
                try:
                    work.wait(timedelta(seconds=4 * INTERVAL))
                    return
                except RuntimeError as error:
                    if work.is_completed():  # otherwise it is only not there yet
                        raise self._failure(work, self._ended(error)) from None
                if (verdict := self.heartbeat.verdict()) is not None:
                    raise self._failure(work, verdict)
                if (silent := self.heartbeat.silent()) is not None:
                    raise self._failure(work, self.heartbeat.decide(self._silence(*silent)))
                if time.monotonic() - started > self._timeout:
                    raise self._failure(work, self.heartbeat.decide(self._late()))
        except KeyboardInterrupt:
            keep_forever(work, self._group)
            raise

    def _ended(self, error: RuntimeError) -> Verdict:
        """Which rank closed its connections."""
        gone = self.heartbeat.missing()
        if (verdict := self.heartbeat.verdict()) is not None:
            return verdict
        if not gone:
            first = str(error).splitlines()[0]
            return self.heartbeat.decide(f"the connection between the ranks failed{self._when()}: {first}")
        reason = self.heartbeat.reason_of(gone[0])
        text = self._named(gone) + (" left the job" if reason is not None else " ended") + self._when()
        if reason:  # it tells that itself
            return self.heartbeat.decide(f"{text}: {reason}", gone[0])
        return self.heartbeat.decide(text)

    def _silence(self, rank: int | None, seconds: float) -> str:
        who = f"the store of the job, at {address()}," if rank is None else self._named([rank])
        return f"{who} has given no sign of life for {seconds:.0f} s{self._when()}"

    def _late(self) -> str:
        late = self.heartbeat.behind()
        who = self._named(late) + (" have" if len(late) > 1 else " has") if late else "a rank has"
        return f"{who} not answered for {self._timeout:g} s{self._when()}; {TIMEOUT} sets how long to wait"

    def _named(self, ranks: Sequence[int]) -> str:
        shown = [self.heartbeat.describe(rank) for rank in ranks[:3]]
        return " and ".join(shown) + (f" and {len(ranks) - 3} more" if len(ranks) > 3 else "")

    def _when(self) -> str:
        return f" during {self.during}" if self.during else ""

    def _apart(self, how: str) -> ProcessError:
        return ProcessError(f"the ranks have gone apart{self._when()}: {how}", self.is_first)

    def _failure(self, work: Any, verdict: Verdict) -> ProcessError:
        """The error to raise when a call cannot end any more."""
        self.heartbeat.stop_silently()
        keep_forever(work, self._group, dist.group.WORLD)
        return ProcessError(verdict.sentence, verdict.teller == self.rank)


def _require_gatherable(tensor: Tensor) -> None:
    if not 1 <= tensor.dim() <= _DIMENSIONS:
        raise ValueError(f"tensors of 1 to {_DIMENSIONS} dimensions can be gathered, not {tuple(tensor.shape)}")


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors of one type and device together, in parts that are not too large; a large tensor by itself."""
    open_buckets: dict[Any, list[Tensor]] = {}
    closed: list[list[Tensor]] = []
    for tensor in tensors:
        if tensor.nbytes > _LARGE:
            closed.append([tensor])
            continue
        key = tensor.dtype, tensor.device
        bucket = open_buckets.setdefault(key, [])
        if bucket and sum(one.nbytes for one in bucket) + tensor.nbytes > _BUCKET:
            closed.append(bucket)
            bucket = open_buckets[key] = []
        bucket.append(tensor)
    return [*closed, *open_buckets.values()]


def keep_forever(*objects: Any) -> None:
    """Never destroy these objects, not even when Python ends: their destructors wait for processes that are stuck."""
    for one in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
