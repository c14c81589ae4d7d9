"""The errors that corollout raises on purpose: each message says what is wrong, where, and what to do."""


class CorolloutError(Exception):
    """Base of all errors raised on purpose."""

    is_teller: bool | None = None
    """Of several processes that raise the same error, whether this one tells the user; None if that was not agreed."""


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


class ProcessError(CorolloutError, RuntimeError):
    """A process of a job of several was lost, or its processes have gone apart; all others raise the same sentence."""

    def __init__(self, message: str, is_teller: bool = True):
        super().__init__(message)
        self.is_teller = is_teller
