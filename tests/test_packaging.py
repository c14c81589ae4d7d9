"""The package installs at exact versions from whatever index pip is configured for, and names none itself."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

# The brackets keep these patterns from matching their own source.
REGISTRY = re.compile(
    r"pypi[.]org"
    r"|python[h]osted"
    r"|download[.]pytorch"
    r"|--(?:extra-)?index[-]url"
    r"|--find[-]links"
    r"|--trusted[-]host"
    r"|PIP_(?:EXTRA_)?INDEX[_]URL"
    r"|\w://\S*/simpl[e]\b",
    re.IGNORECASE,
)


def pins() -> dict[str, str]:
    """Normalised package name → version, from constraints.txt."""
    lines = (line.strip() for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normalised(name): version for name, version in pairs}


def normalised(requirement: str) -> str:
    """The package name of a requirement, in the one spelling by which indexes compare names."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, f"not a requirement: {requirement!r}"
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def direct_dependencies() -> list[str]:
    project = PROJECT["project"]
    groups = [PROJECT["build-system"]["requires"], project["dependencies"]]
    groups += project["optional-dependencies"].values()
    return [requirement for group in groups for requirement in group]


def project_files() -> list[Path]:
    """All files that are tracked or would be, were they added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_registry() -> None:
    found: list[str] = []
    for path in project_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
            if match := REGISTRY.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "https://" + "pypi" + ".org/project/torch",
        "https://files." + "python" + "hosted.org/x.whl",
        "pip install --extra-index" + "-url somewhere",
        "https://mirror.example/root" + "/simple/",
        "file:///srv/wheels" + "/simple",
    ],
)
def test_a_registry_is_recognised(line: str) -> None:
    assert REGISTRY.search(line)


def test_constraints_are_exact_versions() -> None:
    for name, version in pins().items():
        assert re.fullmatch(r"\d[\w.]*", version), f"{name}=={version} is not a plain version"


def test_torch_is_pinned_without_a_local_suffix() -> None:
    assert pins()["torch"] == "2.13.0"


@pytest.mark.parametrize("requirement", direct_dependencies())
def test_direct_dependency_is_pinned(requirement: str) -> None:
    assert normalised(requirement) in pins(), f"add {requirement} to constraints.txt"


@pytest.mark.parametrize("requirement", direct_dependencies())
def test_direct_dependency_is_explained(requirement: str) -> None:
    table = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    name = normalised(requirement)
    assert f"| {name} |" in table, f"say in docs/dependencies.md why {name} is needed"
