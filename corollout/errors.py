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


class ProcessError(CorolloutError, RuntimeError):
    """A process of a job of several was lost, or the processes have gone apart.

    All other processes raise it, with the same sentence; the one in which ``is_teller`` is true should tell the user.
    """

    def __init__(self, message: str, is_teller: bool = True):
        super().__init__(message)
        self.is_teller = is_teller
