"""What a kind of file is: how a small valid one is made, how it is used, and how its digests are corrected."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Kind:
    """``make`` writes valid files into a folder; ``use`` reads and uses them; ``correct`` makes digests fit again."""

    make: Callable[[Path], None]
    use: Callable[[Path, Random], None]
    correct: Callable[[Path], None] | None = None
    files: str = "**/*"  # those that are changed
    weight: int = 4


def update_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")
