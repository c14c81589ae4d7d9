"""The proof of unbiasedness would notice an error: tests/mutants.py makes all alterations, here is every third one."""

import subprocess
import sys

import pytest

SHARDS = 12


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(1, SHARDS, 3))
def test_every_alteration_is_noticed(shard: int):
    result = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--shard", f"{shard}/{SHARDS}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 survived" in result.stdout
