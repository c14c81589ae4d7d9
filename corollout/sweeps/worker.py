"""One job in a process: ``python -m corollout.sweeps.worker '{"work": "module:function", "arguments": {…}}'``.

Events leave through standard output, a line of JSON each; anything printed goes to standard error.
"""

import json
import os
import signal
import sys
import time

from corollout.allocator import keep_pages
from corollout.compilation import announced
from corollout.config import import_object
from corollout.errors import CorolloutError, Interrupted
from corollout.events import Event
from corollout.signals import interrupting_stops

_EVERY = 0.2  # seconds between events of progress


def main(description: str) -> None:
    job = json.loads(description)
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    last = 0.0

    def on_event(event: Event) -> None:
        nonlocal last
        if event.kind == "progress" and not event.record.get("note"):
            if time.monotonic() < last + _EVERY:
                return
            last = time.monotonic()
        try:
            output.write(json.dumps([event.kind, dict(event.record)]) + "\n")
        except BrokenPipeError:
            raise KeyboardInterrupt from None  # the process that wanted the result is gone: save and stop

    with announced(on_event):
        value = import_object(job["work"])(**job["arguments"], on_event=on_event)
    if value is not None:
        on_event(Event("result", {"value": value}))


if __name__ == "__main__":
    keep_pages()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # by which the sweep stops it, whatever is ignored there
    try:
        with interrupting_stops():
            main(sys.argv[1])
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)
    except CorolloutError as error:
        sys.exit(str(error))
