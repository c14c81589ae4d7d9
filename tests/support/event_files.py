"""Files for TensorBoard, read by hand."""

import struct
from pathlib import Path
from typing import Any

from tensorboardX.proto import event_pb2


def read_events(folder: Path) -> list[Any]:
    """All events of a folder, file by file."""
    events = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            events.append(event_pb2.Event.FromString(data[12 : 12 + length]))  # pyright: ignore[reportAttributeAccessIssue]
            data = data[16 + length :]
    return events


def read_scalars(folder: Path) -> list[tuple[int, str, float]]:
    """The step, name and value of every number."""
    return [
        (event.step, value.tag, value.simple_value) for event in read_events(folder) for value in event.summary.value
    ]
