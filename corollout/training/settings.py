"""What can be set about training, whatever the task."""

from dataclasses import dataclass

from corollout.config import option
from corollout.training.fit import Unit
from corollout.training.learner import Clock


@dataclass(frozen=True)
class PretrainSettings:
    """Maximum likelihood."""

    learning_rate: float = option(1e-4, "Learning rate of Adam.", least=1e-9)
    batch_size: int = option(128, "Examples in an update.", least=1)
    epochs: int = option(100, "Passes over the training data at most.", least=1)
    evaluate_every: int = option(1, "Epochs between evaluations on the validation data.", least=1)
    patience: int = option(10, "Evaluations without a better one, after which to stop.", least=1)
    clip: float = option(1.0, "Largest norm of a gradient; longer ones are shortened.", least=1e-9)
    decay: float = option(1.0, "What the learning rate is multiplied with every decay-every epochs.", least=1e-9)
    decay_every: int = option(1, "Epochs between decays of the learning rate.", least=1)
    sampling: float = option(
        0.0, "Most probability of feeding the model's own token: scheduled sampling.", least=0, most=1
    )
    sampling_every: int = option(5, "Epochs between increases of that probability, by 0.05.", least=1)
    average: float = option(
        0.0, "Decay of the average of weights that is evaluated and kept; 0 for none.", least=0, most=0.99999
    )
    seed: int = option(0, "Seed of the weights and of the order of examples.")
    clock: Clock = option("wall", "What a second is: on the wall, or of this process's processor time.")


@dataclass(frozen=True)
class FinetuneSettings:
    """Fine-tuning on a reward."""

    estimator: str = option(
        "arsm", "Gradient estimator: auto, arsm, ars-5, rloo-8, set-8, reinforce, sc, mc-2, rl_beam, …."
    )
    learning_rate: float = option(5e-5, "Learning rate of Adam.", least=1e-9)
    batch_size: int = option(16, "Contexts in an update.", least=1)
    unit: Unit = option("updates", "What budget and evaluate-every count.")
    budget: float = option(10_000.0, "How long to train, in units.", least=1e-9)
    evaluate_every: float = option(500.0, "Units between evaluations on the validation data.", least=1e-9)
    reward: str = option("all", "Which of the task's rewards to use.")
    clip: float = option(1.0, "Largest norm of a gradient; longer ones are shortened.", least=1e-9)
    seed: int = option(0, "Seed of the order of examples and of all sampling.")
    train_tasks: int = option(1_000, "Training examples on which evaluations look, too.", least=1)
    variance_decay: float = option(0.9, "Decay of the running gradient variance.", least=0)
    clock: Clock = option("wall", "What a second is: on the wall, or of this process's processor time.")
    probe_every: int = option(0, "Updates between light probes of variance and cost; 0 for none.", least=0)
    probes: str = option("rloo-8", "Estimators to probe beside the one in use, with semicolons between them.")


@dataclass(frozen=True)
class MachineSettings:
    """Where to compute; nothing that changes a result, but for float rounding."""

    device: str = option("cpu", "Where to compute: cpu, cuda, cuda:1, ….")
    threads: int = option(1, "Threads on the CPU; small models are fastest with one or two.", least=1)
