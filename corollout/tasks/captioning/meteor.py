"""METEOR, where the public Java program for it can be used: it matches stems and synonyms, for which it has tables."""

import importlib.util
import shutil
from collections.abc import Sequence

from corollout.errors import CorolloutError

_PACKAGE = "pycocoevalcap"


class MeteorError(CorolloutError):
    """METEOR cannot be computed here; the message says why."""


def meteor(
    references: Sequence[Sequence[Sequence[str]]], hypotheses: Sequence[Sequence[str]]
) -> tuple[float, list[float]]:
    """METEOR of a corpus, and of each caption, all given as words."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise MeteorError(f"the Python package {_PACKAGE}, which has the program for it, is not installed")
    if shutil.which("java") is None:
        raise MeteorError("Java is not installed")
    from pycocoevalcap.meteor.meteor import Meteor

    texts = {place: [" ".join(words) for words in group] for place, group in enumerate(references)}
    captions = {place: [" ".join(words)] for place, words in enumerate(hypotheses)}
    program = Meteor()
    try:
        corpus, each = program.compute_score(texts, captions)
    except (OSError, ValueError) as error:
        raise MeteorError(f"its Java program failed ({error})") from error
    finally:
        for pipe in filter(None, (program.meteor_p.stdout, program.meteor_p.stderr)):
            pipe.close()
    return float(corpus), [float(value) for value in each]
