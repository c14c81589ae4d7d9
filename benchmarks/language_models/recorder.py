"""A callback that measures a run, evaluates it, writes its records and ends it; the same one for every trainer.

Each line of a run's file is an evaluation: seconds of training so far (without evaluations), updates, completion
tokens, calls of the reward, the mean reward of training since the line before, and the reward on the development set.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from benchmarks.language_models.evaluation import evaluate
from benchmarks.language_models.problem import RewardCounter, Scorer
from benchmarks.language_models.settings import RunSettings

TokenCount = Callable[[], int]


class Recorder(TrainerCallback):
    def __init__(
        self, path: Path, settings: RunSettings, reward: Scorer, counter: RewardCounter, tokenizer: Any
    ) -> None:
        self._path, self._settings, self._reward, self._tokenizer = path, settings, reward, tokenizer
        self.counter = counter
        self.count_tokens: TokenCount = lambda: counter.tokens
        self._clock = time.process_time if settings.clock == "cpu" else time.perf_counter
        self._started, self._excluded, self._written = 0.0, 0.0, 0
        path.write_text("")
        self._write({"kind": "settings", **asdict(settings)})

    @property
    def seconds(self) -> float:
        return self._clock() - self._started - self._excluded

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._started = self._clock()
        self._evaluate(model, 0)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        settings = self._settings
        ends = self.seconds >= settings.seconds or state.global_step >= settings.most_updates
        if ends or self.seconds >= self._written * settings.seconds / settings.evaluations:
            self._evaluate(model, state.global_step)
        control.should_training_stop = control.should_training_stop or ends

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._write({"kind": "end", "seconds": self.seconds, "updates": state.global_step})

    def fail(self, error: Exception) -> None:
        """Record that training could not go on, as with weights that are no longer numbers."""
        self._write({"kind": "failure", "seconds": self.seconds, "error": f"{type(error).__name__}: {error}"})

    def _evaluate(self, model: Any, updates: int) -> None:
        seconds, before = self.seconds, self._clock()
        scores = evaluate(model, self._tokenizer, self._reward, self._settings.max_completion_length)
        self._write(
            {
                "kind": "evaluation",
                "seconds": seconds,
                "updates": updates,
                "tokens": self.count_tokens(),
                "reward_calls": self.counter.calls,
                "train_reward": self.counter.take_mean(),
                **scores,
            }
        )
        self._written += 1
        self._excluded += self._clock() - before

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, default=str) + "\n")
