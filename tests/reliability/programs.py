"""Programs that suites run like commands: ``python -m tests.reliability.programs PROGRAM …``.

``features IMAGES OUT`` is ``corollout data features`` with a network that needs no pretrained weights; ``write FILE
NUMBER COUNT`` replaces a file again and again, and ``read FILE COUNT`` reads it as often and fails if it is torn.
"""

import json
import sys
from pathlib import Path

from corollout.cli.main import app
from corollout.files import write_file, write_json
from corollout.tasks.captioning import commands
from tests.support.image_files import MeanColours

VALUES = 2_000  # so that a file has several pages


def features(images: str, out: str) -> None:
    commands.load_network = lambda name, device: MeanColours()
    sys.argv = ["corollout", "data", "features", "--images", images, "--out", out, "--batch", "2"]
    app()


def write(file: str, number: str, count: str) -> None:
    for turn in range(int(count)):
        content = [int(number)] * VALUES
        if turn % 2:
            write_json(Path(file), content, indent=None)
        else:
            write_file(Path(file), json.dumps(content))


def read(file: str, count: str) -> None:
    for _ in range(int(count)):
        content = json.loads(Path(file).read_bytes())
        if len(content) != VALUES or len(set(content)) != 1:
            sys.exit(f"torn: {len(content)} values by writers {sorted(set(content))}")


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    {"features": features, "write": write, "read": read}[program](*arguments)
