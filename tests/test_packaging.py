"""The package installs exact versions from whatever index pip is configured for, and names none itself."""

import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

# The brackets keep these patterns from matching their own source.
REGISTRY = re.compile(
    r"pypi[.]org|python[h]osted|download[.]pytorch|--(?:extra-)?index[-]url|--find[-]links|--trusted[-]host"
    r"|PIP_(?:EXTRA_)?INDEX[_]URL|\w://\S*/simpl[e]\b",
    re.IGNORECASE,
)


def pins() -> dict[str, str]:
    """Normalised package name → version, from constraints.txt."""
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normalised(name): version for name, version in pairs}


def normalised(requirement: str) -> str:
    """The package name of a requirement, normalised as indexes do."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, f"not a requirement: {requirement!r}"
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def direct_dependencies() -> list[str]:
    project = PROJECT["project"]
    optional = project["optional-dependencies"].values()
    return [*PROJECT["build-system"]["requires"], *project["dependencies"], *chain.from_iterable(optional)]


def project_files() -> list[Path]:
    """All tracked files, and untracked ones that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_registry() -> None:
    contents = {path.relative_to(ROOT): path.read_bytes() for path in project_files()}
    texts = {path: data.decode("utf-8", errors="replace") for path, data in contents.items() if b"\0" not in data}
    matches = [f"{path}: {match.group()}" for path, text in texts.items() for match in REGISTRY.finditer(text)]
    assert not matches, "\n" + "\n".join(matches)


def test_a_registry_is_recognised() -> None:
    for name in (
        "https://pypi+.org/x",
        "https://files.python+hosted.org/x",
        "--extra-index+-url x",
        "file:///srv/+simple",
    ):
        assert REGISTRY.search(name.replace("+", ""))


def test_constraints_are_exact_versions() -> None:
    for name, version in pins().items():
        assert re.fullmatch(r"\d[\w.]*", version), f"{name}=={version} is not a plain version"
    assert pins()["torch"] == "2.13.0"  # without a local suffix


@pytest.mark.parametrize("requirement", direct_dependencies())
def test_a_direct_dependency_is_pinned_and_explained(requirement: str) -> None:
    name = normalised(requirement)
    assert name in pins(), f"add {requirement} to constraints.txt"
    table = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert f"| {name} |" in table, f"say in docs/dependencies.md why {name} is needed"
