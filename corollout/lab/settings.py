"""The settings of ``corollout lab``, with the defaults of every lab."""

from dataclasses import dataclass
from pathlib import Path

from corollout.config import argument, option, required, switch
from corollout.hf.settings import Dtype, ModelSettings, PromptSettings, RewardSettings, StopSettings
from corollout.training.settings import DATA_HELP, DEVICE_HELP

BLOCKS = 8  # of estimates: see measurement.py
ESTIMATES, REFERENCE, REFERENCE_ESTIMATES, ROUNDS = 32, "set-16", 64, 5
DEFAULT = "default"  # stands for the default list of estimators


@dataclass(frozen=True)
class LabSettings:
    """What is measured, and where the results go. None: as in the run."""

    run: Path = argument("Run directory.")
    estimators: tuple[str, ...] = option(
        (DEFAULT,),
        "Estimators, the first being the base, as in rloo-8,set-8,arsm:budget=64; `default` stands for a list that "
        "suits the model's head. May be repeated.",
        metavar="<name,…>",
    )
    weights: tuple[str, ...] = option(
        ("best",),
        "Weights to measure at: best, last, start, a checkpoint as in step-00001000, a safetensors file, or another "
        "run's directory. May be repeated.",
        flags=("--weights", "--at"),
        metavar="<weights,…>",
    )
    examples: int | None = option(
        None, "Number of training examples, from the first on. [default: the run's batch size, or 32]", least=1
    )
    estimates: int = option(ESTIMATES, "Estimates of each estimator.", least=BLOCKS)
    reference: str = option(REFERENCE, "Unbiased estimator whose mean is taken for the true gradient.")
    reference_estimates: int = option(REFERENCE_ESTIMATES, "Estimates of the reference.", least=BLOCKS)
    rounds: int = option(ROUNDS, "Rounds of timing.", least=1)
    batches: int = option(16, "Other batches, to measure how gradients vary between contexts; 0 for none.", least=0)
    reward: str | None = option(None, "Name of one of the task's rewards. [default: the run's]")
    seed: int = option(0, "Seed of all sampling.")
    out: Path | None = option(
        None, "Folder for measurements and report; the same folder continues. [default: lab in the run directory]"
    )
    data: Path | None = option(None, DATA_HELP)
    device: str | None = option(None, DEVICE_HELP)
    threads: int | None = option(None, "CPU threads. [default: the run's]", least=1)

    @property
    def folder(self) -> Path:
        return self.run / "lab" if self.out is None else self.out


@dataclass(frozen=True, kw_only=True)
class LanguageModelLabSettings(StopSettings, RewardSettings, PromptSettings, ModelSettings):
    """The settings of ``lm lab``: what is measured on which prompts, and where the results go."""

    estimators: tuple[str, ...] = option(
        (DEFAULT,),
        "Estimators, the first being the base, as in rloo-4,set-4:baseline=fitted,arsm:budget=64; `default` stands for "
        "a short list for language models. May be repeated.",
        metavar="<name,…>",
    )
    examples: int = option(8, "Number of prompts, from the first on.", least=1)
    estimates: int = option(16, "Estimates of each estimator.", least=BLOCKS)
    reference: str = option("rloo-8", "Unbiased estimator whose mean is taken for the true gradient.")
    reference_estimates: int = option(32, "Estimates of the reference.", least=BLOCKS)
    rounds: int = option(3, "Rounds of timing.", least=1)
    batches: int = option(0, "Batches of other prompts, to measure how gradients vary between them.", least=0)
    max_completion_length: int = option(64, "Most tokens of a completion.", least=1, most=1_000_000)
    temperature: float = option(1.0, "Of the policy that is sampled and optimised.", least=1e-3, most=1_000)
    seed: int = option(0, "Seed of all sampling.")
    out: Path = required("Folder for measurements and report; the same folder continues.")
    dtype: Dtype = option("float32", "Type of the weights; auto: that of the files.")
    use_cpu: bool = switch("Compute on the CPU although there is another device.")
    threads: int | None = option(None, "CPU threads. [default: those of PyTorch]", least=1, most=1024)

    @property
    def folder(self) -> Path:
        return self.out
