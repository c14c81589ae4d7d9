"""What can be set about training, whatever the task."""

from dataclasses import dataclass
from typing import Literal

from corollout.config import option

Clock = Literal["wall", "cpu"]
Unit = Literal["updates", "epochs", "tokens", "seconds"]
Decay = Literal["constant", "linear", "cosine"]
Balance = Literal["even", "cost"]
DATA_HELP = "Folder of the data, if it is not where it was when the run was made. [default: the run's]"
DEVICE_HELP = "Where to compute: cpu, cuda, cuda:1 and so on. [default: the run's]"
WEIGHTS_HELP = "Weights: best, last, start, a checkpoint (step-00001000), a safetensors file, or another run."


@dataclass(frozen=True)
class PretrainSettings:
    """Maximum likelihood."""

    learning_rate: float = option(1e-4, "Learning rate of Adam.", least=1e-9, most=1_000)
    batch_size: int = option(128, "Examples in an update.", least=1)
    epochs: int = option(100, "Maximum number of passes over the training data.", least=1, most=10**12)
    evaluate_every: int = option(1, "Epochs between evaluations on the validation data.", least=1)
    patience: int = option(10, "Stop after this many evaluations without improvement.", least=1)
    max_grad_norm: float = option(
        1.0, "Norm to which gradients are clipped; 0 for never.", least=0, most=1e30, formerly="clip"
    )
    max_grad_value: float = option(
        0.0, "Absolute value to which each number of a gradient is clipped first; 0 for never.", least=0, most=1e30
    )
    decay: float = option(
        1.0, "Factor by which the learning rate is multiplied every --decay-every epochs.", least=1e-9, most=1
    )
    decay_every: int = option(1, "Epochs between decays of the learning rate.", least=1)
    scheduled_sampling: float = option(
        0.0, "Highest probability of feeding the model's own token.", least=0, most=1, formerly="sampling"
    )
    scheduled_sampling_every: int = option(
        5, "Epochs between increases of that probability, by 0.05.", least=1, formerly="sampling_every"
    )
    ema_decay: float = option(
        0.0,
        "Decay of the exponential moving average of the weights, which is evaluated and kept; 0 for none.",
        least=0,
        most=0.99999,
        formerly="average",
    )
    seed: int = option(0, "Seed of the weights and of the order of examples.")
    clock: Clock = option("wall", "Measure seconds in wall-clock time or in CPU time of this process.")


@dataclass(frozen=True)
class FinetuneSettings:
    """Fine-tuning on a reward."""

    estimator: str = option(
        "arsm", "Gradient estimator, such as auto, arsm, ars-5, rloo-8, set-8, reinforce, sc, mc-2 or rl_beam."
    )
    learning_rate: float = option(5e-5, "Learning rate of Adam.", least=1e-9, most=1_000)
    batch_size: int = option(16, "Contexts in a batch, which makes an update unless --accumulate is given.", least=1)
    unit: Unit = option("updates", "Unit of --budget and --evaluate-every.")
    budget: float = option(10_000.0, "How long to train, in that unit.", least=1e-9, most=1e15)
    evaluate_every: float = option(
        500.0, "How often to evaluate on the validation data, in that unit.", least=1e-9, most=1e15
    )
    patience: int = option(
        0, "Stop after this many evaluations without improvement; 0 to train to the end of the budget.", least=0
    )
    reward: str = option(
        "", "Name of one of the task's rewards, or of several, separated by commas. [default: the task's first]"
    )
    reward_weights: tuple[float, ...] = option(
        (), "A weight for each of several rewards, separated by commas. [default: 1 for each]"
    )
    max_grad_norm: float = option(
        1.0, "Norm to which gradients are clipped; 0 for never.", least=0, most=1e30, formerly="clip"
    )
    max_grad_value: float = option(
        0.0, "Absolute value to which each number of a gradient is clipped first; 0 for never.", least=0, most=1e30
    )
    accumulate: int = option(1, "Batches whose gradients make one update.", least=1, most=10**9)
    micro_batch: int | None = option(
        None, "Contexts that are scored with a graph at a time, to save memory; none for a whole batch.", least=1
    )
    balance: Balance = option(
        "even",
        "How several processes divide a batch: equally many contexts each, or equal parts of what they cost last time.",
    )
    warm_up: int = option(0, "Updates in which the learning rate rises from near 0.", least=0, most=10**12)
    schedule: Decay = option(
        "constant", "How the learning rate falls after that: not at all, or to 0 in a line or along a cosine."
    )
    schedule_updates: int | None = option(
        None,
        "Updates, warm-up included, after which the learning rate is 0; budget for as many as --budget, which must "
        "then be in updates or epochs.",
        least=1,
        most=10**12,
        none="budget",
        metavar="<int|budget>",
    )
    kl: float = option(
        0.0,
        "Coefficient of the divergence from the policy at the start, in reward per nat of a sequence; 0 for none.",
        least=0,
        most=1e15,
    )
    kl_target: float | None = option(
        None, "Divergence, in nats a sequence, to which that coefficient is steered.", least=1e-9, most=1e15
    )
    entropy: float = option(
        0.0, "Coefficient of the entropy, in reward per nat of a sequence; 0 for none.", least=-1e15, most=1e15
    )
    temperature: float = option(
        1.0, "Temperature of the policy that is sampled, trained and evaluated.", least=1e-6, most=1e6
    )
    mle_weight: float = option(
        0.0,
        "Weight of the log-likelihood of the task's targets, in reward per nat of a sequence; 0 for none.",
        least=0,
        most=1e15,
    )
    ema_decay: float = option(
        0.0,
        "Decay of the exponential moving average of the weights, which is evaluated and kept; 0 for none.",
        least=0,
        most=0.99999,
    )
    seed: int = option(0, "Seed of the order of examples and of all sampling.")
    train_eval_examples: int = option(
        1_000, "Training examples that are evaluated along with the validation data.", least=1, formerly="train_tasks"
    )
    variance_decay: float = option(0.9, "Decay of the running gradient variance.", least=0, most=0.999999)
    clock: Clock = option("wall", "Measure seconds in wall-clock time or in CPU time of this process.")
    probe_every: int = option(0, "Measure variance and cost after every so many updates; 0 for never.", least=0)
    probes: str = option("rloo-8", "Estimators to measure besides the one in use, separated by semicolons.")
    samples_every: int = option(
        0,
        "Keep sequences with their rewards and the credit of every token, after every so many updates; 0 for never.",
        least=0,
    )


@dataclass(frozen=True)
class MachineSettings:
    """Where to compute; nothing that changes a result, but for float rounding."""

    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:1 and so on.")
    threads: int | None = option(
        1,
        "Threads on the CPU: a number, or auto for one or all cores, whichever a short measurement finds faster.",
        least=1,
        none="auto",
        metavar="<int|auto>",
    )
