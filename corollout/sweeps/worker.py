"""One run of an experiment in a process of its own: ``python -m corollout.sweeps.worker DIRECTORY BEAM``."""

import sys
from pathlib import Path

from corollout.errors import CorolloutError, Interrupted
from corollout.sweeps.sweep import work

if __name__ == "__main__":
    try:
        work(Path(sys.argv[1]), int(sys.argv[2]))
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)
    except CorolloutError as error:
        sys.exit(str(error))
