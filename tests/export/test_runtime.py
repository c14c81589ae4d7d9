"""The NumPy runtime generates the tokens of PyTorch and needs nothing but NumPy."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
import safetensors.numpy

from corollout.export import runtime
from corollout.tasks.captioning.export import write_export
from corollout.trees import balanced_tree
from corollout.types import Sampler
from tests.support.random_captioners import LONGEST, TREES, VOCAB, WIDTH, WORDS, by_pytorch, captioner, features

SIGNS = np.array([0, 1, 63, -1, 2**62, -(2**63), 2**63 - 1])


class Exported:
    def __init__(self, name: str, folder: Path):
        self.engine, self.folder = captioner(TREES[name]), folder
        write_export(folder, self.engine, WORDS)
        self.plain, self.compiled = (runtime.Captioner.load(folder, compiled=compiled) for compiled in (False, True))


@pytest.fixture(scope="module", params=list(TREES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(request.param, tmp_path_factory.mktemp("exported") / request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export, which tests do not change."""
    return write_export(tmp_path_factory.mktemp("exported") / "tree", captioner(TREES["balanced"]), WORDS).folder


@pytest.fixture(scope="module")
def outside(folder: Path) -> ModuleType:
    """The exported file, imported on its own, without type checks."""
    spec = importlib.util.spec_from_file_location("exported_runtime", folder / "runtime.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["numpy", "numba"])
def ours(request: pytest.FixtureRequest, model: Exported) -> runtime.Captioner:
    return model.plain if request.param == "numpy" else model.compiled


@pytest.mark.parametrize("rows", [1, 64, 300])
@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_captions_are_pytorchs(model: Exported, ours: runtime.Captioner, mode: Any, rows: int):
    given = features(rows)
    expected = [group[0].tokens for group in by_pytorch(model.engine, given, Sampler(mode), seed=5)]
    captions = ours.generate(given, mode, seed=5)
    assert [caption.tokens for caption in captions] == expected
    assert [caption.text for caption in captions] == [" ".join(WORDS[token] for token in tokens) for tokens in expected]
    if rows == 300:
        assert {0, 1, 2, LONGEST} <= {len(tokens) for tokens in expected}
        assert len(set(map(tuple, expected))) > 80


@pytest.mark.parametrize("size", [1, 4])
def test_beams_are_pytorchs(model: Exported, ours: runtime.Captioner, size: int):
    for rows in (1, 70):
        given = features(rows, seed=1)
        expected = by_pytorch(model.engine, given, Sampler("beam", size))
        found = ours.beams(given, size)
        for group, wanted in zip(found, expected, strict=True):
            assert [one.tokens for one in group] == [one.tokens for one in wanted]
            values = [one.log_probability for one in wanted]
            assert [one.log_probability for one in group] == pytest.approx(values, abs=1e-3)
        assert ours.generate(given, beam=size) == [group[0] for group in found]


def test_a_beam_that_is_wider_than_the_vocabulary(tmp_path: Path):
    for name, tree in (("softmax", None), ("tree", balanced_tree(5))):
        engine = captioner(tree, vocab=5, longest=2)
        write_export(tmp_path / name, engine, WORDS[:5])
        (expected,) = by_pytorch(engine, features(1), Sampler("beam", 30))
        (found,) = runtime.Captioner.load(tmp_path / name, compiled=False).beams(features(1), 30)
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert len(found) == 1 + 4 * 5


def test_samples_depend_on_the_seed_and_the_id_alone(model: Exported, ours: runtime.Captioner):
    given, ids = features(len(SIGNS), seed=2), SIGNS

    def sampled(order: Any = slice(None), seed: int = 7) -> list[list[int]]:
        return [one.tokens for one in ours.generate(given[order], "sample", seed=seed, ids=ids[order])]

    expected = [found[0].tokens for found in by_pytorch(model.engine, given, Sampler(), seed=7, ids=ids)]
    assert sampled() == expected
    assert sampled([4, 0, 2]) == [expected[row] for row in (4, 0, 2)]
    assert sampled(seed=8) != expected
    assert ours.generate(given, "sample") != ours.generate(given, "sample", ids=ids.tolist())
    for seed in (-3, 2**63, 2**64 + 1):
        assert sampled(seed=seed) == [one[0].tokens for one in by_pytorch(model.engine, given, Sampler(), seed, ids)]


def test_any_array_of_numbers_will_do(model: Exported):
    whole = features(6).round()
    expected = model.plain.generate(whole)
    assert all(model.plain.generate(whole.astype(dtype)) == expected for dtype in (np.float16, np.int64))
    assert model.plain.generate(np.asfortranarray(whole.astype(np.float64))[::2]) == expected[::2]
    assert model.plain.generate(whole[:0]) == model.plain.beams(whole[:0], 2) == []


def test_compiled_code_that_cannot_be_kept_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch):
    def njit(**options: Any) -> Any:
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function.__name__, options)

    monkeypatch.setattr(numba, "njit", njit)
    loops = runtime._compiled_loops.__wrapped__()
    assert [name for name, _ in loops] == ["_race_loop", "_walk_loop", "_best"]  # pyright: ignore[reportGeneralTypeIssues]


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numba", "corollout", "safetensors", "scipy"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
"""


def alone(place: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run Python where only NumPy can be imported."""
    (place / "sitecustomize.py").write_text(BLOCK)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=False)


def test_numpy_is_enough(model: Exported, tmp_path: Path):
    given, ids = features(12, seed=3), np.arange(12)[::-1] * 7 - 20
    np.save(tmp_path / "features.npy", given)
    np.save(tmp_path / "ids.npy", ids)
    files = "--features", tmp_path / "features.npy", "--ids", tmp_path / "ids.npy"
    assert "torch is blocked" in alone(tmp_path, "-c", "import torch").stderr
    done = alone(tmp_path, model.folder / "runtime.py", *files, "--sample", "--seed", 4, "--first", 9, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [one[0].tokens for one in by_pytorch(model.engine, given, Sampler(), 4, ids.copy())][:9]
    assert [line["tokens"] for line in found] == expected
    assert [(line["row"], line["rank"]) for line in found] == [(row, 0) for row in range(9)]


def test_what_the_command_prints(folder: Path, outside: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = features(4)
    np.save(tmp_path / "features.npy", given)
    captioner = outside.Captioner.load(compiled=False)

    def printed(*options: str) -> list[str]:
        assert outside.main(["--features", str(tmp_path / "features.npy"), "--no-numba", *options]) == 0
        return capsys.readouterr().out.splitlines()

    assert printed() == [one.text for one in captioner.generate(given)]
    expected = captioner.beams(given, 2)
    rows = [(row, one) for row, group in enumerate(expected) for one in group]
    assert printed("--beam", "2") == [f"{row}\t{one.log_probability:.2f}\t{one.text}" for row, one in rows]
    lines = [json.loads(line) for line in printed("--beam", "2", "--json", "--first", "1")]
    assert [line["log_probability"] for line in lines] == pytest.approx([one.log_probability for one in expected[0]])
    assert [line["rank"] for line in lines] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--features", "{absent}"], "cannot read the features {absent}: No such file or directory"),
        (["--features", "{text}"], "cannot read the features {text}: "),
        (["--features", "{objects}"], "cannot read the features {objects}: "),
        (["--features", "{narrow}"], f"features are {WIDTH} numbers for each image, not an array of float32 and shape"),
        (["--features", "{flat}"], "shape [10]"),
        (["--features", "{words}"], "not an array of <U1"),
        (["--features", "{infinite}"], "row 2 of the features has numbers that are not finite"),
        (["--features", "{sound}", "--first", "0"], "--first takes a number from 1 on"),
        (["--features", "{sound}", "--beam", "0"], "--beam takes a number from 1 on"),
        (["--features", "{sound}", "--beam", "2", "--sample"], "no --sample beside it"),
        (["--features", "{sound}", "--sample", "--ids", "{sound}"], "ids are whole numbers, one for each of the 3"),
        (["--features", "{sound}", "--sample", "--ids", "{absent}"], "cannot read the ids {absent}: No such file"),
    ],
)
def test_bad_input(
    options: list[str], message: str, outside: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = {"objects": np.array([{}, None]), "narrow": np.zeros((3, 4), np.float32), "flat": np.zeros(WIDTH)}
    arrays |= {"words": np.full((2, WIDTH), "x"), "sound": np.zeros((3, WIDTH))}
    arrays["infinite"] = np.where(np.arange(3)[:, None] == 2, 1e300, arrays["sound"])
    paths = {name: str(tmp_path / f"{name}.npy") for name in ("absent", "text", *arrays)}
    for name, array in arrays.items():
        np.save(paths[name], array)
    Path(paths["text"]).write_text("no array")
    assert outside.main([*(option.format(**paths) for option in options), "--no-numba"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert printed.err.startswith("error: ")
    assert message.format(**paths) in printed.err


def test_bad_arguments(outside: ModuleType, monkeypatch: pytest.MonkeyPatch):
    captioner, given = outside.Captioner.load(compiled=False), features(2)
    for call, message in (
        (lambda: captioner.generate(given, "beam"), "by mode 'greedy' or 'sample', not 'beam'"),
        (lambda: captioner.generate(given, "sample", beam=2), "choose one"),
        (lambda: captioner.beams(given, 0), "at least one caption, not 0"),
        (lambda: captioner.generate(given, "sample", ids=[1]), "one for each of the 2 rows"),
        (lambda: captioner.generate(np.full((1, WIDTH), 3e38)), "the model's numbers overflow"),
    ):
        with pytest.raises(outside.ExportError, match=message):
            call()
    monkeypatch.setitem(sys.modules, "numba", None)
    assert outside.Captioner.load().generate(given) == captioner.generate(given)
    with pytest.raises(outside.ExportError, match="numba is not installed"):
        outside.Captioner.load(compiled=True)


def rewritten(path: Path, **changed: Any) -> None:
    """Replace some arrays of the weights, or remove those that are None."""
    arrays = {**safetensors.numpy.load_file(path), **changed}
    path.write_bytes(safetensors.numpy.save({name: array for name, array in arrays.items() if array is not None}))


def header(path: Path, old: str, new: str) -> None:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    changed = data[8 : 8 + size].replace(old.encode(), new.encode())
    assert changed != data[8 : 8 + size]
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + size :])


CHAIN = np.stack([-1 - np.arange(VOCAB - 1), 1 + np.arange(VOCAB - 1)], 1).astype(np.int32)
DAMAGES: list[tuple[Any, str]] = [
    (lambda w: w.unlink(), "cannot read {w}: No such file or directory"),
    (lambda w: w.write_bytes(b""), "cannot read {w}: "),
    (lambda w: w.write_bytes(b"short"), "damaged or not a safetensors file: it ends within its header"),
    (lambda w: w.write_bytes(w.read_bytes()[:200]), "damaged or not a safetensors file: it ends within its header"),
    (lambda w: w.write_bytes(w.read_bytes()[:-3]), "damaged or not a safetensors file: it ends within 'children'"),
    (lambda w: w.write_bytes((2).to_bytes(8, "little") + b"[]"), "{w} is damaged or no"),
    (lambda w: w.write_bytes((2).to_bytes(8, "little") + b"\xff\xff"), "{w} is damaged or no"),
    (
        lambda w: header(w, '"shape"', '"shapes"'),
        "safetensors file: its header is not valid (KeyError: 'shape')",
    ),
    (lambda w: header(w, f'"shape":[{WIDTH}]', f'"shape":[{WIDTH + 1}]'), "is not as long as its shape"),
    (lambda w: rewritten(w, bias=np.zeros(120)), "{w}: 'bias' has the type 'F64', but only F32 and I32 are supported"),
    (lambda w: rewritten(w, bias=np.zeros(120, np.int32)), "{w}: 'bias' is int32 of shape [120], but should be F32"),
    (lambda w: rewritten(w, bias=np.zeros(7, np.float32)), "'bias' is float32 of shape [7], but should be F32 of"),
    (lambda w: rewritten(w, shift=None), "{w} has no 'shift': export it again"),
    (lambda w: rewritten(w, children=CHAIN), "{w}: 'children' is not a tree"),  # its last child is no node
    (lambda w: rewritten(w, children=np.zeros_like(CHAIN)), "{w}: 'children' is not a tree"),  # a walk never ends
    (lambda w: rewritten(w, children=np.full_like(CHAIN, -VOCAB - 1)), "{w}: 'children' is not a tree"),  # no such word
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_weights_are_refused(damage: Any, message: str, folder: Path, outside: ModuleType, tmp_path: Path):
    weights = copied(folder, tmp_path) / "weights.safetensors"
    damage(weights)
    with pytest.raises(outside.ExportError) as caught:
        outside.Captioner.load(weights.parent, compiled=False, verify=False)
    assert message.format(w=weights) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_are_checked_too(folder: Path, outside: ModuleType, tmp_path: Path):
    def refused(said: str, name: str, text: str, **options: Any) -> None:
        (copied(folder, tmp_path) / name).write_text(text)
        with pytest.raises(outside.ExportError, match=said):
            outside.Captioner.load(tmp_path, **options)

    model = json.loads((folder / "model.json").read_text())
    words = (folder / "vocabulary.txt").read_text()
    refused("is not valid JSON", "model.json", "{")
    refused("does not belong to an exported captioner", "model.json", "[]")
    refused("has version 2, but this runtime reads version 1", "model.json", json.dumps({**model, "version": 2}))
    short = {name: entry for name, entry in model.items() if name != "longest"}
    refused("does not have the sizes of a model", "model.json", json.dumps(short))
    for said, change in (
        ("does not have the sizes of a model", {"sizes": []}),
        ("does not have the sizes of a model", {"sizes": {**model["sizes"], "hidden": "8"}}),
        ("does not have the sizes of a model", {"longest": -1}),
        ("does not name the tokens of start and end", {"bos": 10**6}),
        ("does not name the tokens of start and end", {"eos": None}),
        ("does not name a head", {"head": ["tree"]}),
        ("has no digests", {"digests": []}),
    ):
        refused(said, "model.json", json.dumps({**model, **change}))
    refused("is not valid JSON", "model.json", "[" * 100_000)
    refused("weights.safetensors is not what was exported", "weights.safetensors", "x")
    refused("vocabulary.txt is not what was exported", "vocabulary.txt", words.replace("w1\n", "w-1\n"))
    refused("has 119 words", "vocabulary.txt", words.replace("w1\n", ""), verify=False)
    with pytest.raises(outside.ExportError, match=r"cannot read .*absent/model.json: No such file or directory"):
        outside.Captioner.load(tmp_path / "absent")


def copied(folder: Path, place: Path) -> Path:
    for name in ("model.json", "weights.safetensors", "vocabulary.txt"):
        (place / name).write_bytes((folder / name).read_bytes())
    return place
