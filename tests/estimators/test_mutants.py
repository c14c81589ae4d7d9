"""The proof of unbiasedness notices errors: a few alterations here, all of them with ``python -m tests.mutants``."""

import subprocess
import sys


def test_alterations_are_noticed():
    command = [sys.executable, "-m", "tests.mutants", "--shard", "7/960"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 survived" in result.stdout
