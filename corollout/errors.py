"""The errors that corollout raises on purpose: each message says what is wrong, where, and what to do."""


class CorolloutError(Exception):
    """Base of all errors raised on purpose."""


class InputError(CorolloutError, ValueError):
    """An argument, a file or a data set is not usable as it is."""


class DiskFullError(InputError):
    """Something could not be written, because there is no room for it."""


class RewardError(CorolloutError, RuntimeError):
    """A reward function failed, timed out, or returned something that is not a reward."""


class PolicyError(CorolloutError, RuntimeError):
    """A policy does not do what the protocol asks of it."""


class Interrupted(CorolloutError):
    """Somebody stopped the work; what was done is saved."""
