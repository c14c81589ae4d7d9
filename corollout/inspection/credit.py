"""One gradient estimate for one example, taken apart: what was sampled, its rewards, and what each of them did."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from corollout.estimators import make_estimator
from corollout.inspection.settings import InspectSettings
from corollout.noise import Noise
from corollout.rollouts import Engine
from corollout.tasks.task import Task
from corollout.tasks.views import ExampleView
from corollout.training import estimate
from corollout.training.credit import Branch, MainSequence, take_apart
from corollout.training.run_weights import open_run
from corollout.training.runs import Run, training_settings
from corollout.types import Cost

Tone = Literal["good", "bad", "even"]


@dataclass(frozen=True)
class Inspection:
    """An estimate for an example, and the example itself."""

    view: ExampleView
    estimator: str
    reward: str  # name of one of the task's rewards
    seed: int
    mains: list[MainSequence]
    cost: Cost
    note: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether whole sequences are compared with each other, without branches."""
        return self.cost.rollouts == 0 and all(main.advantage is not None for main in self.mains)

    @property
    def norm(self) -> float:
        """The norm of the whole gradient."""
        return sum(main.norm**2 for main in self.mains) ** 0.5

    @cached_property
    def totals(self) -> dict[str, float | int]:
        """The numbers of the estimate as a whole."""
        steps = [step for main in self.mains for step in main.steps]
        return {
            "rollouts": self.cost.rollouts,
            "rollouts_per_step": self.cost.rollouts / len(steps),
            "tokens": self.cost.tokens,
            "reward_calls": self.cost.reward_calls,
            "mean_reward": sum(main.reward for main in self.mains) / len(self.mains),  # of the main sequences
            "gradient_norm": self.norm,
            "steps": len(steps),
            "zero_steps": sum(step.is_zero for step in steps),
        }

    def tone(self, main: MainSequence, branch: Branch | None = None) -> Tone:
        """Whether the reward of a main sequence, or of one of its branches, is good.

        If rewards are right or wrong, right is good. A graded reward is compared: that of a branch with that of its
        main sequence, that of a whole sequence with those of the others.
        """
        if not self.view.is_graded:
            return "good" if (branch or main).reward > 0 else "bad"
        if branch is not None:
            difference = branch.reward - main.reward
        else:
            difference = (main.advantage or 0.0) if self.is_flat else 0.0
        return "even" if abs(difference) < 5e-4 else "good" if difference > 0 else "bad"

    def to_json(self) -> dict[str, Any]:
        """Everything but the vectors, of which only the norms are included, with tokens by name."""
        return {
            **self.view.identity(),
            "estimator": self.estimator,
            "reward": self.reward,
            "seed": self.seed,
            **self.view.record(),
            "mains": [main.to_json(self.view.tokens) for main in self.mains],
            "totals": self.totals,
        }


def inspect_run(settings: InspectSettings) -> Inspection:
    """Take apart an estimate with a run's weights and reward; by default with its estimator, or ARSM of its head."""
    run = Run.open(settings.run)
    finetuning = training_settings(run.config)
    model = run.config.get("model")  # anything, in a run without a task
    default = "bt-arsm" if isinstance(model, dict) and model.get("head") == "tree" else "arsm"
    estimator = settings.estimator or finetuning.get("estimator", default)
    make_estimator(estimator)  # an unknown name is reported before anything is loaded
    task, engine = open_run(settings.run, settings.weights, settings.device, settings.data)
    return inspect_example(
        task,
        engine,
        settings.split,
        settings.index,
        estimator,
        finetuning.get("reward"),
        settings.seed,
        finetuning.get("reward_weights", ()),
    )


def inspect_example(
    task: Task,
    engine: Engine,
    split: str,
    index: int,
    estimator: str,
    reward: str | None = None,
    seed: int = 0,
    reward_weights: Sequence[float] = (),
) -> Inspection:
    """Take apart an estimate for one example of a split, by default with the task's default reward."""
    examples = task.named_split(split)
    view = task.view(split, examples, index)
    made, reward = make_estimator(estimator), reward or task.rewards[0]
    batch = examples.columns.batch([index], task.device)
    sample = estimate(engine, batch, task.weighted_reward(reward, reward_weights, examples), made, Noise(seed))
    return Inspection(view, estimator, reward, seed, take_apart(sample), sample.cost, made.note_for_one_context)
