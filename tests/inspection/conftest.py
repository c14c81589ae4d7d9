"""Runs of a few seconds, which all tests of inspections share."""

from pathlib import Path

import pytest

from tests.support import small_captions, small_karel


@pytest.fixture(scope="session")
def karel_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_karel.small_run(tmp_path_factory)


@pytest.fixture(scope="session")
def caption_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_captions.small_run(tmp_path_factory)
