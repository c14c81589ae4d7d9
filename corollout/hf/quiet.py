"""Silence of transformers and its relatives: what they say of themselves is not what a command has to say."""

import logging
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging as transformers_logging

from corollout.events import Callback, Event, TrainingWarning, ignore

_OURS = "corollout.hf"  # the loggers of the trainer
_OTHERS = ("accelerate", "datasets", "huggingface_hub", "peft", "torch")


@contextmanager
def quiet(on_event: Callback = ignore) -> Generator[None, None, None]:
    """Inside, there are no bars but of downloads in a terminal, and no warnings but those of this package.

    What the trainer logs goes to ``on_event``.
    """
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    no_downloads = are_progress_bars_disabled()
    loggers = [logging.getLogger(name) for name in _OTHERS]
    levels = [logger.level for logger in loggers]
    ours, handler = logging.getLogger(_OURS), _ToEvents(on_event)
    ours_level = ours.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", TrainingWarning)
            transformers_logging.set_verbosity_error()
            transformers_logging.disable_progress_bar()
            if not no_downloads and sys.stderr.isatty():
                enable_progress_bars()
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            ours.addHandler(handler)
            ours.setLevel(logging.INFO)
            yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(ours_level)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        (disable_progress_bars if no_downloads else enable_progress_bars)()


class _ToEvents(logging.Handler):
    """Records as events: warnings, and notes."""

    def __init__(self, on_event: Callback):
        super().__init__()
        self._on_event = on_event

    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning" if record.levelno >= logging.WARNING else "note"
        self._on_event(Event(kind, {"text": record.getMessage()}))
