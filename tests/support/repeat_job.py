"""The task of repeating without settings of its model, for commands that several processes run."""

from corollout.tasks.spec import NoSettings
from corollout.tasks.task import TaskSpec
from tests.support.repeat_task import Repeat

TASK = TaskSpec("repeat", Repeat, NoSettings)
