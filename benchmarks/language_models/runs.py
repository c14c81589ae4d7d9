"""One fine-tuning run, in a process of its own. A finished run is a file; an unfinished one starts again."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.language_models.e2e import read_e2e
from benchmarks.language_models.evaluation import fixed_subset
from benchmarks.language_models.our_runs import generated_tokens, make_our_trainer
from benchmarks.language_models.problem import RewardCounter, Scorer, reward_function
from benchmarks.language_models.recorder import Recorder
from benchmarks.language_models.reward import TextReward
from benchmarks.language_models.settings import METHODS, RunSettings
from benchmarks.language_models.trl_runs import make_trl_trainer
from benchmarks.language_models.words import DEV_TOPICS, TOPICS, WordsScorer, word_examples
from corollout.errors import InputError
from corollout.files import read_lines
from corollout.json_text import decode_json

MAKERS = {"trl": make_trl_trainer, "ours": make_our_trainer}


def run_file(folder: Path, settings: RunSettings) -> Path:
    name = f"{settings.method.replace(' ', '-')}-{settings.learning_rate:g}-{settings.seed}"
    return folder / f"{name.lower()}.jsonl"


def run_in_process(settings: RunSettings, folder: Path) -> Path:
    """Make the run in a fresh process, unless it is finished."""
    path = run_file(folder, settings)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
            pool.submit(run, settings, path).result()
    return path


def run(settings: RunSettings, path: Path) -> None:
    """Fine-tune from the weights in ``settings.model``; leave the records in ``path`` when all is done."""
    import torch
    import transformers

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings.model)
    model = load_model(settings.model)
    train, dev = scorers(settings, tokenizer)
    counter = RewardCounter()
    unfinished = path.with_suffix(".unfinished")
    recorder = Recorder(unfinished, settings, dev, counter, tokenizer)
    reward = reward_function(train, counter)
    trainer = MAKERS[METHODS[settings.method].library](
        settings, path.with_suffix(""), model, tokenizer, train.prompts, reward, [recorder]
    )
    recorder.count_tokens = lambda: generated_tokens(trainer, counter.tokens)
    trainer.remove_callback(transformers.PrinterCallback)
    try:
        trainer.train()
    except RuntimeError as error:  # probabilities that are not numbers
        recorder.fail(error)
    os.replace(unfinished, path)


def scorers(settings: RunSettings, tokenizer: Any) -> tuple[Scorer, Scorer]:
    """Those of the training examples and of a fixed part of the development set."""
    if settings.problem == "words":
        train, dev = (word_examples(tokenizer, topics) for topics in (TOPICS, DEV_TOPICS))
        return WordsScorer(train), WordsScorer(fixed_subset(dev, settings.dev_examples))
    if settings.train is None or settings.dev is None:
        raise InputError("the E2E runs need the files of training and of development data")
    train = read_e2e(settings.train)
    dev = fixed_subset(read_e2e(settings.dev), settings.dev_examples)
    return TextReward(train, train), TextReward(dev, train)


def load_model(folder: Path) -> Any:
    """The model in single precision, causal or sequence to sequence as its configuration says."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32)


def evaluations(path: Path) -> list[dict[str, Any]]:
    """The evaluations of a finished run, the first before any update."""
    records = [decode_json(line) for line in read_lines(path)]
    return [record for record in records if record["kind"] == "evaluation"]
