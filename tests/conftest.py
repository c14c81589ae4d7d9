"""Settings of the whole test run."""

from collections.abc import Generator

import jaxtyping
import pytest
import torch

from tests.reliability.suite import listen_to_signals
from tests.support.first_calls import begin_again

torch.set_num_threads(1)
# Started in the background (`nohup make test &`), SIGINT and SIGHUP are ignored, and every process that a test starts
# would inherit that: tests of signals need what a terminal gives.
listen_to_signals()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    begin_again()


@pytest.fixture
def unchecked() -> Generator[None]:
    """Types of arguments are not checked, as in a user's program: what is wrong must be told by the package itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
