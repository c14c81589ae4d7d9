"""Command lines that would work, of every command, with some of their words altered, left out, repeated or added."""

import random
from functools import cache
from typing import Any

from corollout.cli.command import settings_class
from corollout.cli.pretrain import pretrain_command
from corollout.cli.reproduce import experiment_command
from corollout.cli.root import COMMANDS, all_commands
from corollout.config import Option, options_of
from corollout.experiments.registry import EXPERIMENTS
from corollout.tasks.task import task_names

# Words that hardly any option expects. A command line has no null characters.
STRANGE = [
    "", " ", "-", "--", "0", "-1", "-0", "1", "2", "007", "1_0", "1.5", "1e3", "1e400", "-1e400", "nan", "inf",
    "-inf", "9" * 19, "-" + "9" * 19, "9" * 400, "9" * 5000, "0x10", "٣", "½", "true", "none", "null", "None", "[]",
    "{}", ",", ",,,", "a,b", "1,2,3", "1,,x", "nan,inf", "é", "犬", "🐕", "e\u0301", "\u202egpj", "\u200b",
    "\x1b[31mred", "\x9b5m", "\x07", "a\nb", "a\r\nb", "\t", "\x7f", "\udce9", "caf\udce9", "\udcff" * 50, "[/b]",
    "[red]x", "[/", "[link=x]", ":dog:", "$\\foo$", "$x", "\\frac{", "_", "_x", "%s", "{}", "{0}", "{x!r}", "%(x)s",
    "x" * 300, "y" * 100_000, ".", "..", "~", "*", "a b", "'", '"', "`id`", "$(id)", ";", "&", "|", "<script>", "@",
    "@x", "@/dev/null", "os", "os:system", "os:", ":x", "a.b:c", "corollout", "corollout.config:NONE", "tests", "=",
    "==", "a=b", "--help", "--version", "--out", "-k", "-h", "best", "last", "start", "step-1", "step-99999999",
    "val", "test", "train", "cpu", "cuda", "cuda:99", "meta", "mps", "CPU", "cpu:1", "arsm", "ars-0", "rloo-1",
    "rloo-999999999", "arsm:budget=0", "arsm:budget=x", "set-2", "mc-", "auto", "tiny",
]  # fmt: skip
# Existing places of all kinds, for options that read.
PLACES = [
    "karel", "captions", "karel-run", "captions-run", "tuned-run", "report", "empty", "empty-run", "broken-run",
    "tree.safetensors", "refs.json", "hyps.json", "world.json", "garbage", "empty-file", "deep.json", "deep.toml",
    "config.toml", "image.png", "names.txt", "features.npy", "karel/train.jsonl", "captions/vocabulary.json",
    "karel-run/best.safetensors", "lm", "prompts.jsonl", "prompts.csv", "scores.py:score",
    "missing", "missing/too", "/dev/null", "/proc/self/cmdline", "link-to-nothing",
    "loop", "image.png/below", "[/b]\x1b[31m", "caf\udce9",
]  # fmt: skip
# New places, for options that write: never outside of the folder.
NEW_PLACES = [
    "new", "new/deeper", "empty", "garbage", "garbage/below", "karel", "report", "loop", "link-to-nothing",
    "[/b]\x1b[31m", "new caf\udce9", "x" * 300, "$\\foo$",
]  # fmt: skip
ESTIMATORS = [
    "arsm",
    "ars-2",
    "rloo-2",
    "reinforce",
    "sc",
    "mc-2",
    "mc-0",
    "rl-beam-2",
    "set-2",
    "auto",
    "arsm:budget=5",
    "bin",
]
PROGRAMS = ["DEF run m( move m)", "DEF run m( turnLeft move m)", "@garbage", "@missing", "@-", "DEF run m( m)", "DEF"]
# Options of so much work that a large number would be a long wait rather than a mistake.
WORK = {
    "epochs", "budget", "estimates", "reference_estimates", "rounds", "batches", "train", "val", "test", "train_images",
    "val_images", "test_images", "count", "sample", "beam", "train_eval_examples", "tokens", "seconds", "workers",
    "jobs", "threads", "words", "max_steps", "num_train_epochs", "num_generations", "gradient_accumulation_steps",
    "reward_workers", "lora_rank",
}  # fmt: skip


@cache
def commands() -> dict[str, type]:
    """The settings class of every command, by its words."""
    targets: dict[str, Any] = {
        name: target for name, target in all_commands().items() if name not in ("pretrain", "reproduce")
    }
    targets |= {f"pretrain {task}": pretrain_command(task) for task in task_names()}
    targets |= {f"reproduce {name}": experiment_command(name) for name in EXPERIMENTS}
    assert COMMANDS.keys() <= {*targets, "pretrain", "reproduce"}
    return {name: settings_class(target) for name, target in targets.items()}


# What keeps a command from long work. It stands before what is altered, which wins.
QUICK = {
    "pretrain": "--scale tiny --epochs 1",
    "finetune": "--unit updates --budget 2 --evaluate-every 1 --batch-size 2",
    "lab": "--examples 2 --estimates 32 --reference-estimates 32 --rounds 1 --batches 0 --estimators rloo-2,sc",
    "lm train": "--max-steps 1 --max-completion-length 3 --use-cpu",
    "lm generate": "--max-completion-length 3 --use-cpu",
    "lm lab": "--max-completion-length 2 --use-cpu --estimators rloo-2 --reference rloo-2 --reference-estimates 8 "
    "--estimates 8 --examples 1 --rounds 1",
    "lm inspect": "--max-completion-length 3 --use-cpu",
    "data karel": "--scale tiny --train 2 --val 1 --test 1 --longest 9",
}
_LM = "--model lm --dataset prompts.jsonl"
# Command lines that work.
USUAL = {
    "demo": ["--out new"],
    "pretrain karel": ["--out new --data karel --config config.toml"],
    "pretrain captions": ["--out new --data captions --config captions.toml"],
    "finetune": ["karel-run --out new", "captions-run --out new --estimator arsm"],
    "evaluate": ["karel-run --beam 2", "captions-run --beam 0 --json"],
    "compare": ["karel-run tuned-run", "report", "karel-run --out new --labels a"],
    "generate": ["karel-run --count 1", "captions-run --index 0 --sample 2", "karel-run --json"],
    "export": ["captions-run --out new", "karel-run --out new"],
    "inspect": ["karel-run", "captions-run --html new", "karel-run --json --estimator rloo-2"],
    "lab": ["karel-run", "captions-run --out new"],
    "lm train": [f"{_LM} --reward scores.py:score --estimator rloo-2 --out new"],
    "lm generate": ["--model lm --prompt a --beam 2", f"{_LM} --sample 2 --reward scores:score --json"],
    "lm lab": [f"{_LM} --reward scores.py:score --out new"],
    "lm inspect": [f"{_LM} --reward scores.py:score --html new", "empty"],
    "data check": ["karel", "captions", "karel/train.jsonl --skip-bad"],
    "data karel": ["--out new"],
    "data captions": [
        "--out new --generate --train-images 2 --val-images 1 --test-images 1",
        "--out new --captions refs.json --features features.npy --names names.txt",
    ],
    "data features": ["--images . --out new.npy"],
    "data neighbours": ["captions -k 2"],
    "score": ["--refs refs.json --hyps hyps.json --no-meteor", "--refs refs.json --write-df new"],
    "tree build": ["--data captions --out new --from huffman"],
    "tree show": ["tree.safetensors", "tree.safetensors --data captions --around a"],
    "karel run": ["@program --world world.json"],
    "reproduce": ["--out new", "--out new --report-only --scale tiny"],
}


def make_case(seed: int, number: int) -> tuple[str, list[str]]:
    """A command, and its altered arguments."""
    draw = random.Random(f"{seed}-{number}")
    name = draw.choice(list(commands()))
    options = options_of(commands()[name])
    first = name.split()[0]
    words = draw.choice(USUAL.get(name) or USUAL[first]).split()
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        _alter(words, options, draw)
    return name, [*name.split(), *(QUICK.get(name) or QUICK.get(first, "")).split(), *words]


def _alter(words: list[str], options: list[Option], draw: random.Random) -> None:
    position = draw.randrange(len(words) + 1)
    what = draw.random()
    if what < 0.6:
        option = draw.choice(options)
        value = _value(option, draw)
        if option.positional:
            words[position:position] = [value]
        elif option.type is bool:
            words.append(_flag(option))
        else:
            words += [f"{_flag(option)}={value}"] if draw.random() < 0.3 else [_flag(option), value]
    elif what < 0.7 and words:
        del words[position - 1]
    elif what < 0.8 and words:
        index = max(0, position - 1)
        is_number = index > 0 and words[index - 1].lstrip("-").replace("-", "_") in WORK
        words[index] = draw.choice(["", "x", "-1", "nan", "0"]) if is_number else _strange(draw)
    elif what < 0.85 and words:
        words.insert(position, words[draw.randrange(len(words))])
    elif what < 0.9:
        words.insert(
            position, draw.choice([f"--{_strange(draw)}", "--unknown", "--unknown=1", "-x", "--no-json", "--j"])
        )
    elif what < 0.95:
        words.insert(position, _strange(draw))
    else:
        words[:] = words[:position]


def _flag(option: Option) -> str:
    return option.flags[0] if option.flags else f"--{option.name.replace('_', '-')}"


def _strange(draw: random.Random) -> str:
    return draw.choice(STRANGE)


def _value(option: Option, draw: random.Random) -> str:
    if option.name in WORK and option.type in (int, float):
        return draw.choice(["0", "1", "2", "3", "", "x", "-1", "nan", "-inf", "1.5", "9" * 5000, "none", "犬"])
    if option.type is object or draw.random() < 0.35:
        strange = _strange(draw)
        return strange if option.name not in ("out", "html", "write_df") or _stays_inside(strange) else "new"
    if option.choices is not None:
        return str(draw.choice(option.choices))
    if option.name in ("out", "html", "write_df"):
        return draw.choice(NEW_PLACES)
    if "estimator" in option.name or option.name in ("reference", "probes"):
        return draw.choice(ESTIMATORS)
    if option.name == "program":
        return draw.choice(PROGRAMS)
    if option.type in (int, float):
        return draw.choice(
            ["0", "1", "2", "3", "0.5", "1e-9", "64", "100000", "-5", str(2**31), str(2**63 - 1), "1e300"]
        )
    return draw.choice(PLACES)


def _stays_inside(path: str) -> bool:
    return not path.startswith(("/", "..", "~"))
