"""Settings of the whole test run."""

import torch

from tests.reliability.suite import listen_to_signals

torch.set_num_threads(1)
# Started in the background (`nohup make test &`), SIGINT and SIGHUP are ignored, and every process that a test starts
# would inherit that: tests of signals need what a terminal gives.
listen_to_signals()
