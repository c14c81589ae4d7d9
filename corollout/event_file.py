"""Files of numbers that TensorBoard reads."""

import importlib
import time
from pathlib import Path
from typing import Any


class EventFile:
    """A file of TensorBoard events, written immediately and without a thread, so that a kill loses nothing."""

    def __init__(self, folder: Path, purge_step: int | None):
        # Imported here: readers do not need it. Its classes are generated at run time, invisible to a type checker.
        writer: Any = importlib.import_module("tensorboardX.event_file_writer")
        self._event: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        folder.mkdir(parents=True, exist_ok=True)
        # Names contain seconds: the number keeps a quick restart from overwriting the previous file.
        number = len(list(folder.iterdir()))
        self._writer: Any = writer.EventsWriter(str(folder / "events"), f".{number:04d}")
        if purge_step is not None:
            # TensorBoard then hides what earlier files have for this step and later ones.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._write(step=purge_step, session_log=start)

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        entries = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()]
        self._write(step=step, summary=self._summary(value=entries))

    def close(self) -> None:
        self._writer.close()

    def _write(self, **entries: Any) -> None:
        self._writer.write_event(self._event.Event(wall_time=time.time(), **entries))
        self._writer.flush()
