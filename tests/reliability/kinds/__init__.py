"""Every kind of file that is read, by its name."""

from collections.abc import Mapping

from tests.reliability.kinds import captions, karel, models, runs
from tests.reliability.kinds.kind import Kind

KINDS: Mapping[str, Kind] = {**karel.KINDS, **captions.KINDS, **models.KINDS, **runs.KINDS}
