"""The entry point of ``corollout COMMAND``: it listens to signals before it imports anything that takes time."""

import sys

from corollout.signals import ending_stops, silence_after_stop


def app() -> None:
    """Run the command line and end the process; an error is one sentence and a non-zero exit code."""
    silence_after_stop()
    with ending_stops():
        from corollout.cli.run import run

        code = run()
    sys.exit(code)
