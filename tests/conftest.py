"""Settings of the whole test run."""

import signal

import torch

torch.set_num_threads(1)
# Started in the background (`nohup make test &`), SIGINT and SIGHUP are ignored, and every process that a test starts
# would inherit that: tests of signals need what a terminal gives.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
