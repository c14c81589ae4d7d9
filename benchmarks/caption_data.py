"""What does a data set of COCO's size cost? Seconds and memory to prepare it, to open it, and to take batches of it.

The files are synthetic, but of COCO's size: 123,287 images in Karpathy's splits and format, 616,767 captions of words
that are as unequally frequent as those of a language, and a .npy file of 2048 float32 numbers for each image. They lie
in a temporary folder, so they are in the operating system's cache when they are read.

Every measurement is a separate process, which reports its peak memory. Memory includes Python with
PyTorch, which is measured by a process that does nothing else, and pages of mapped files, which the operating system
takes back when it needs them.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress

from benchmarks.harness import Result, Target, Timing, figure
from corollout.tasks.captioning import CaptionData, PreparationSettings, open_features, prepare, read_captions

SEED = 1
WIDTH, WORDS, CAPTIONS, BATCH = 2048, 30_000, 5, 50
LONGEST_OPENING = 2.0
_BLOCK = 2048


class Sizes(NamedTuple):
    train: int
    val: int
    test: int
    extra: int  # images with one caption more
    batches: int
    repetitions: int


FULL = Sizes(train=113_287, val=5_000, test=5_000, extra=332, batches=500, repetitions=3)
QUICK = Sizes(train=1_133, val=50, test=50, extra=3, batches=20, repetitions=2)


def make_files(folder: Path, sizes: Sizes, on_progress: Callable[[int], None] = lambda done: None) -> None:
    """Write captions.json, features.npy and features_names.txt; a row of features begins with its image's number."""
    rng = np.random.default_rng(SEED)
    count = sizes.train + sizes.val + sizes.test
    splits = np.repeat(["train", "val", "test"], sizes[:3])
    order = rng.permutation(count)  # rows of features are not in the order of the captions
    (folder / "features_names.txt").write_text("".join(f"{number}\n" for number in order))
    rows = np.lib.format.open_memmap(folder / "features.npy", "w+", np.dtype(np.float32), (count, WIDTH))
    with (folder / "captions.json").open("w") as file:
        file.write('{"dataset": "synthetic", "images": [')
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            rows[start:stop] = rng.standard_normal((stop - start, WIDTH), np.float32)
            rows[start:stop, 0] = order[start:stop]
            entries = [_image(number, str(splits[number]), number < sizes.extra, rng) for number in range(start, stop)]
            file.write(("," if start else "") + ",".join(entries))
            on_progress(stop - start)
        file.write("]}")
    rows.flush()


def _image(number: int, split: str, extra: bool, rng: np.random.Generator) -> str:
    sentences = []
    for length in rng.integers(8, 14, CAPTIONS + extra):
        # The word of rank r has a probability of about 1/r: r is uniform on a logarithmic scale.
        words = [f"w{rank}" for rank in (WORDS ** rng.random(length)).astype(int).tolist()]
        sentences.append(
            {"tokens": words, "raw": " ".join(words).capitalize() + ".", "imgid": number, "sentid": number}
        )
    name = f"COCO_{split}2014_{number:012}.jpg"
    return json.dumps({"filename": name, "cocoid": number, "imgid": number, "split": split, "sentences": sentences})


def import_only(folder: Path, sizes: Sizes) -> dict[str, Any]:
    return {}


def prepare_files(folder: Path, sizes: Sizes) -> dict[str, Any]:
    read = read_captions(folder / "captions.json")
    data = prepare(read, open_features(folder / "features.npy"), folder / "data", PreparationSettings())
    return {"vocabulary": data.vocabulary.size, "captions": len(data.captions.captions) - 1}


def open_data(folder: Path, sizes: Sizes) -> dict[str, Any]:
    return {"images": len(CaptionData.open(folder / "data").names)}


def take_batches(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Features, labels and references of random training images."""
    split = CaptionData.open(folder / "data").split("train")
    rng = np.random.default_rng(SEED)
    for _ in range(sizes.batches):
        images = rng.integers(0, len(split), BATCH)
        features = split.features(images)
        labels = [split.labels[image] for image in images.tolist()]
        references = [split.references[image] for image in images.tolist()]
        numbers = [int(split.names[int(image)].removesuffix(".jpg")[-12:]) for image in images.tolist()]
        if features[:, 0].tolist() != numbers or [len(group) for group in labels] != [
            len(group) for group in references
        ]:
            raise AssertionError("an image has the features or captions of another")
    return {}


STAGES = {"import only": import_only, "prepare": prepare_files, "open": open_data, "batches": take_batches}


def measured(stage: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Seconds, the most megabytes, and what a stage says, from a process that does nothing else."""
    command = [sys.executable, "-m", "benchmarks.caption_data", stage, str(folder), json.dumps(sizes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    if done.returncode:
        raise AssertionError(f"'{stage}' failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


def most_megabytes() -> float:
    """The most memory this process has had. (``getrusage`` would count that of the process that started it, too.)"""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure(sizes: Sizes, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    """All repetitions of each stage."""
    count = sizes.train + sizes.val + sizes.test
    outcomes: dict[str, list[dict[str, Any]]] = {stage: [] for stage in STAGES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        writing = progress.add_task("caption_data: files", total=count)
        make_files(folder, sizes, lambda done: progress.advance(writing, done))
        task = progress.add_task("caption_data", total=sizes.repetitions * len(STAGES))
        for _ in range(sizes.repetitions):
            for file in (folder / "data").glob("*"):
                file.unlink()
            for stage, results in outcomes.items():
                results.append(measured(stage, folder, sizes))
                progress.advance(task)
        progress.remove_task(task)
        progress.remove_task(writing)
    return outcomes


def run(quick: bool, progress: Progress) -> Result:
    sizes = QUICK if quick else FULL
    outcomes = measure(sizes, progress)
    count = sizes.train + sizes.val + sizes.test
    made = outcomes["prepare"][0]
    if made["captions"] != CAPTIONS * count + sizes.extra or outcomes["open"][0]["images"] != count:
        raise AssertionError("the data set is not as large as the files")
    timings = {
        stage: Timing(stage, 1, [result["seconds"] for result in results]) for stage, results in outcomes.items()
    }
    memory = {stage: max(result["megabytes"] for result in results) for stage, results in outcomes.items()}
    features = count * WIDTH * 4 / 2**20
    return {
        "benchmark": "caption_data",
        "quick": quick,
        "settings": {**sizes._asdict(), "width": WIDTH, "words": WORDS, "batch": BATCH, "dtype": "float32"},
        "seeds": {"files": SEED},
        "timings": [timing.record() for timing in timings.values()],
        "measurements": {
            "images": count,
            "captions": made["captions"],
            "vocabulary": made["vocabulary"],
            "feature_megabytes": features,
            "most_megabytes": memory,
            "images_a_second_in_batches": sizes.batches * BATCH / timings["batches"].median,
        },
        "targets": [
            Target(
                f"preparing takes less memory than the features alone ({features:,.0f} MB)",
                memory["prepare"],
                features,
                at_least=False,
                judged=not quick,
            ).record(),
            Target(
                f"the data set opens within {LONGEST_OPENING:g} s",
                timings["open"].median,
                LONGEST_OPENING,
                at_least=False,
                judged=not quick,
            ).record(),
        ],
        "table": [
            {
                "stage": stage,
                "seconds": figure(timing.median),
                "most memory, MB": figure(memory[stage]),
                "of it beyond imports, MB": figure(memory[stage] - memory["import only"]),
            }
            for stage, timing in timings.items()
        ],
    }


def carry_out(stage: str, folder: Path, sizes: Sizes) -> dict[str, Any]:
    """What a process that measures a stage does: the stage, without the imports."""
    start = time.perf_counter()
    said = STAGES[stage](folder, sizes)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "megabytes": most_megabytes(), **said}


if __name__ == "__main__":
    print(json.dumps(carry_out(sys.argv[1], Path(sys.argv[2]), Sizes(*json.loads(sys.argv[3])))))
