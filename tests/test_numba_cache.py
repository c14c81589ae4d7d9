"""The package on a read-only installation, for somebody whose home cannot be written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import corollout

SCRIPT = """
import json, os, subprocess, sys
from corollout.text_metrics import ngrams
cache = os.environ.get("NUMBA_CACHE_DIR", "")
child = [sys.executable, "-c", "import os, corollout; print(os.environ['NUMBA_CACHE_DIR'])"]
same = subprocess.run(child, capture_output=True, text=True).stdout.strip() == cache if cache else None
mode = oct(os.stat(cache or "/").st_mode)[-3:]
print(json.dumps({"file": ngrams.__file__, "cache": cache, "mode": mode, "same": same}))
"""


def start(package: Path, *prefix: str, home: str) -> dict[str, str | bool | None]:
    environment = {**os.environ, "PYTHONPATH": str(package), "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        environment.pop(name, None)
    command = [*prefix, sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=package, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    source = Path(corollout.__file__).parent
    shutil.copytree(source, tmp_path / "corollout", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def check(package: Path, found: dict[str, str | bool | None]) -> None:
    assert str(found["file"]).startswith(str(package))
    assert (found["mode"], found["same"]) == ("700", True)  # nobody else may write it; child processes use it, too
    assert not Path(str(found["cache"])).exists()  # any more


@pytest.mark.prove
def test_without_any_place_to_write_there_is_a_private_temporary_cache(package: Path) -> None:
    for folder in (path for path in package.rglob("*") if path.is_dir()):
        (folder / "__pycache__").touch()  # not even root makes a folder here
    check(package, start(package, home="/dev/null"))


@pytest.mark.prove
def test_an_installation_that_really_is_read_only(package: Path) -> None:
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
    if drop and subprocess.run([*drop, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root, who writes everywhere, cannot be restrained here")
    folders = [path for path in package.rglob("*") if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    try:
        check(package, start(package, *drop, home="/nonexistent" if drop == [] else str(folders[0])))
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_cache_that_can_be_written_is_used(package: Path, tmp_path: Path) -> None:
    assert start(package, home=str(tmp_path))["cache"] == ""
