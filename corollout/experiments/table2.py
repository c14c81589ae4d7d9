"""The paper's second table: captions of images, with a softmax over all words and with a binary tree of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corollout.config import option
from corollout.estimators import ARS
from corollout.events import Callback
from corollout.experiments.experiment import SweepExperiment
from corollout.files import read_json
from corollout.reports.comparison import MethodSummary
from corollout.reports.curves import read_curves
from corollout.reports.report import Figure, Section, Table
from corollout.reports.rollout_figures import correlation_cells, ranks, read_step_map
from corollout.reports.run_results import MethodRuns
from corollout.reports.tables import NOTHING, number, percent, signed
from corollout.sweeps.analysis import PAIRS, ROLLOUTS, VARIANCE, branching, branching_methods
from corollout.sweeps.report import ReportTexts, SweepResults
from corollout.sweeps.runs import RESULT
from corollout.sweeps.sweep import MLE, Model, Sweep, SweepSpec
from corollout.tasks.captioning.dataset import CaptionData
from corollout.tasks.captioning.metrics import CIDER, NAMES
from corollout.tasks.captioning.scenes import make_scenes
from corollout.tasks.captioning.settings import TreeSettings
from corollout.tasks.captioning.trees import build_tree
from corollout.tasks.task import mean_interval
from corollout.trees import save_tree

_MEASURES = {key: NAMES[key] for key in ("cider", "bleu_4", "bleu_3", "bleu_2", "bleu_1", "rouge_l")}
_PAPER_NAMES = ("CIDEr", "B4", "B3", "B2", "B1", "ROUGE")
_PAPER = {
    "MLE": (93.3, 30.4, 40.2, 53.6, 70.7, 52.2),
    "REINFORCE": (103.6, 31.6, 42.9, 57.8, 74.8, 54.0),
    "SC": (106.5, 32.3, 43.8, 58.7, 75.6, 54.6),
    "ARS-1": (103.6,),
    "ARS-5": (106.1,),
    "ARS-10": (107.7,),
    "ARS-20": (108.4, 32.1, 43.8, 59.0, 76.4, 54.8),
    "tree_RD": (77.5,),
    "tree_WV": (80.2,),
    "tree_DIS": (84.2, 24.9, 35.1, 49.7, 67.6, 50.5),
    "BT-RF": (93.6,),
    "BT-SC": (96.5,),
    "BT-ARSM": (99.2, 29.9, 41.2, 56.2, 73.3, 52.7),
}
_PAPER_NOTE = (
    "The paper's numbers are for COCO's 5,000 test images, after training on 113,287 images with the features of a "
    "larger network. They are for orientation: the order of methods may agree, the numbers need not. The paper's ARS-K "
    "and BT-ARSM complete every rollout with random numbers of its own, as the methods with -own do here; the others "
    "use those of the main sentence."
)
_OWN = {f"{name}-own": f"{name.lower()}:noise=own" for name in ("ARS-1", "ARS-5", "ARS-10", "ARS-20", "BT-ARSM")}
# As in the authors' code: five main sentences for each of ten images, and their mean reward as REINFORCE's baseline.
_AUTHORS = {
    **dict.fromkeys(("REINFORCE", "BT-RF"), "reinforce:baseline=batch,samples=5"),
    **{name: f"{name.lower()}:samples=5" for name in ("ARS-1", "ARS-5", "ARS-10", "ARS-20", "BT-ARSM", "BT-DisARM")},
    **dict.fromkeys(("SC", "BT-SC"), "sc:samples=5"),
    "ARSM": "arsm:budget=2000,samples=5",
    **{name: f"{estimator},samples=5" for name, estimator in _OWN.items()},
}
_PAPER |= {name: _PAPER[name.removesuffix("-own")] for name in _OWN}
_PAIR = ("BT-ARSM", "BT-DisARM")
_DENSITY_OF = ("ARS-20", "ARSM", "BT-ARSM")  # the sequences of the first of these are drawn
_STEPS_NOTE = (
    "Colour: rollouts that depart at a step of the main sentences, per sentence that reaches the step, mean over "
    "updates and seeds; each method has a colour scale of its own, up to its 99th percentile. Beside it the same in "
    "the first and in the last tenth of the updates. A sentence's last step is its end token, unless it was cut."
)
_DEPTHS_NOTE = (
    "The same for the decisions on the path down the tree, the root's being the first: rollouts that leave the path "
    "there, per word of the main sentences that has a decision at that depth."
)
_FIGURES = "corollout.reports.rollout_figures"


@dataclass(frozen=True)
class CaptionDataSettings:
    """A prepared data set, or scenes to be generated."""

    folder: str = option("", "Folder of a prepared data set; without it, scenes are generated.")
    train: int = option(2_000, "Generated images for training.", least=1)
    val: int = option(300, "Generated images for validation.", least=1)
    test: int = option(300, "Generated images for the test.", least=1)
    data_seed: int = option(0, "Seed of the generated images.")
    vectors: str = option("", "File of word vectors for tree_WV; without it, that model is left out.")


def make_data(folder: Path, settings: CaptionDataSettings, on_event: Callback) -> None:
    """Check the data set, or generate it if no folder was given and it does not exist yet."""
    if settings.folder or folder.exists():
        data = CaptionData.open(folder)
        for split in ("train", "val", "test"):
            data.split(split)
    else:
        counts = {"train": settings.train, "val": settings.val, "test": settings.test}
        make_scenes(folder, counts, seed=settings.data_seed, on_event=on_event)


def distilled_tree(file: Path, data: Path, softmax: Path, **_: Any) -> None:
    """tree_DIS: the embeddings of the softmax model of the same seed, clustered."""
    _build(file, data, TreeSettings(f"run:{softmax}"))


def permuted_tree(file: Path, data: Path, softmax: Path, seed: int, **_: Any) -> None:
    """tree_RD: tree_DIS with its leaves permuted."""
    shape = file.with_name(f"{file.stem}-shape.tree")
    distilled_tree(shape, data, softmax)
    _build(file, data, TreeSettings("random", of=shape, seed=seed))


def vector_tree(file: Path, data: Path, softmax: Path, settings: dict[str, Any], **_: Any) -> None:
    """tree_WV: given word vectors, clustered."""
    _build(file, data, TreeSettings(f"vectors:{settings['vectors']}"))


def _build(file: Path, folder: Path, settings: TreeSettings) -> None:
    data = CaptionData.open(folder)
    tree, builder = build_tree(data, settings)
    save_tree(file, tree, builder, data.vocabulary.known)


def lead(results: SweepResults) -> str:
    settings = results.sweep.data
    data = Path(settings.folder).name if settings.folder else f"{settings.train:,} generated scenes"
    return f"The reward is a caption's CIDEr-D. A model learns to caption images ({data})"


def _measures_table(results: SweepResults) -> Table:
    rows = []
    for method in results.methods:
        paper = [f"{value:.1f}" for value in _PAPER.get(method.label, ())]
        rows.append([*_measured(method, ""), *paper, *[NOTHING] * (len(_MEASURES) - len(paper))])
    note = (
        "Greedy captions of the test images, times 100, mean over seeds, ± their standard deviation. The paper's "
        "numbers are for COCO; it does not say how captions were decoded. METEOR, which the paper also reports, needs "
        "Java and is left out here; `corollout score` computes it."
    )
    header = ["method", *_MEASURES.values(), *(f"paper {name}" for name in _PAPER_NAMES)]
    return Table("All measures, test", header, rows, [note])


def _beam_table(results: SweepResults) -> Table:
    rows = [_measured(method, "beam_") for method in results.methods]
    beam = results.sweep.grid.beam
    note = f"The best caption of a beam of {beam}, times 100, mean over seeds, ± their standard deviation."
    return Table("All measures, test, by beam search", ["method", *_MEASURES.values()], rows, [note])


def _measured(method: MethodSummary, prefix: str) -> list[str]:
    """A method's label and its measures on the test images."""
    tests = [read_json(Path(run) / RESULT).get("test", {}) for run in method.runs]
    cells = [method.label]
    for key in _MEASURES:
        values = [test[prefix + key] for test in tests if prefix + key in test]
        if len(values) < len(tests):
            cells.append(NOTHING)
            continue
        spread = f" ± {percent(float(np.std(values, ddof=1)), 1)}" if len(values) > 1 else ""
        cells.append(percent(float(np.mean(values)), 1) + spread)
    return cells


def _pair_table(results: SweepResults) -> Table:
    """BT-DisARM next to BT-ARSM: the same rollouts, so the variances can be compared pair by pair."""
    measured, sweep = results.analyses[PAIRS.name], results.sweep
    probes = [measured[label] for label in _PAIR if label in measured]
    rows: list[list[str]] = []
    if len(probes) == 2:
        first, second = (np.array(probe["squares"]) for probe in probes)
        interval = mean_interval(second - first) or (float("nan"),) * 2
        values = (float((second - first).mean()), *interval)
        less, low, high = (signed(100 * (value / probes[0]["variance"]), 2) for value in values)
        for label, probe, change in zip(_PAIR, probes, ([NOTHING] * 2, [less, f"{low}…{high}"]), strict=True):
            rows.append([label, number(probe["rollouts_per_step"]), number(probe["variance"]), *change])
    note = (
        f"At the weights of tree_DIS, seed {sweep.grid.seeds[0]}: {probes[0]['estimates'] if probes else 0} estimates "
        f"of each for the same {sweep.finetune.batch_size} images, with the same noise, hence the same rollouts. "
        "Difference: mean over pairs of the difference of squared norms, which is that of the variances as both are "
        "unbiased, in per cent of BT-ARSM's variance, with its 95 % interval."
    )
    header = ["method", "rollouts per\u00a0step", "variance", "difference,\u00a0%", "95\u00a0% interval"]
    return Table("Variance at equal rollouts", header, rows, [note])


def _rollout_sections(results: SweepResults) -> list[Section]:
    """Figures of rollouts, for the methods whose rollouts adapt."""
    adapting = branching_methods(results.sweep)
    groups = [(index, group) for index, group in enumerate(results.groups) if group.label in adapting]
    sections = [_decline_section(results, groups)] if groups else []
    for name, key, axis, title, note in (
        ("rollouts-steps", "rollouts_by_step", "step", "Rollouts by time step", _STEPS_NOTE),
        ("rollouts-depths", "rollouts_by_depth", "depth", "Rollouts by depth in the tree", _DEPTHS_NOTE),
    ):
        if maps := [one for _, group in groups if (one := read_step_map(group, key)) is not None]:
            text = note + (_budget_text(results.sweep, (one["label"] for one in maps)) if axis == "step" else "")
            figure = Figure(name, f"{_FIGURES}:steps_figure", {"maps": maps, "axis": axis}, text, wide=True)
            sections.append(Section(title, [figure]))
    measured = {label: own for label, own in results.analyses[ROLLOUTS.name].items() if label in adapting}
    return [*sections, _density_section(results, measured)] if measured else sections


def _decline_section(results: SweepResults, groups: Sequence[tuple[int, MethodRuns]]) -> Section:
    methods = {method.label: method for method in results.methods}
    curves, rows = [], []
    for index, group in groups:
        band = read_curves(group, "updates").bands["rollouts_per_step"]
        curves.append({"index": index, "label": group.label, **vars(band)})
        method, estimator = methods[group.label], branching(results.sweep.estimator(group.label))
        references = str(estimator.references or "V") if isinstance(estimator, ARS) else NOTHING
        first, last = method.first_rollouts, method.last_rollouts
        share = last / first if first and last is not None else None
        rows.append([group.label, references, number(first), number(last), number(share)])
    note = (
        "Rollouts per step: unique pseudo-actions other than the action itself, or pseudo bits that differ, for each "
        "token of the main sentences, mean over the first and over the last tenth of the updates, and over seeds. K: "
        f"references of each token, V for all words.{_budget_text(results.sweep, (group.label for _, group in groups))}"
    )
    header = ["method", "K", "first tenth", "last tenth", "last /\u00a0first"]
    table = Table("Rollouts along training", header, rows, [note])
    figure = Figure("rollouts-updates", f"{_FIGURES}:rollouts_figure", {"curves": curves})
    return Section(table.title, [figure, table])


def _budget_text(sweep: Sweep, labels: Iterable[str]) -> str:
    """Which of the methods may not make all rollouts that they want."""
    estimators = {label: branching(sweep.estimator(label)) for label in labels}
    return "".join(
        f" {label} makes at most {one.budget:,} rollouts per {one.budget_per}, drawn at random."
        for label, one in estimators.items()
        if one.budget is not None
    )


def _density_section(results: SweepResults, measured: dict[str, dict[str, list[float]]]) -> Section:
    drawn = next((label for label in _DENSITY_OF if label in measured), list(measured)[-1])
    data = {name: measured[drawn][name] for name in ("scores", "lengths", "rollouts")}
    figure = Figure("rollouts-cider", f"{_FIGURES}:density_figure", {"label": drawn, "metric": CIDER.name, **data})
    rows = []
    for label, entry in measured.items():
        scores, lengths, rollouts = (np.array(entry[key], dtype=float) for key in ("scores", "lengths", "rollouts"))
        per_token = rollouts / lengths
        cells = [f"{len(scores):,}", percent(float(scores.mean()), 1), number(float(rollouts.sum() / lengths.sum()))]
        for x, y in ((scores, per_token), (ranks(scores), ranks(per_token)), (scores, rollouts)):
            cells += correlation_cells(x, y)
        rows.append([label, *cells])
    note = (
        f"Sampled main sentences for training images at the best weights of each method, seed "
        f"{results.sweep.grid.seeds[0]}: their CIDEr-D times 100, and the rollouts that the method wants for each "
        "token, without a budget. r: Pearson's correlation over sentences of CIDEr-D with rollouts per token; that of "
        "their ranks (Spearman's); and that with all rollouts of a sentence. 95 % intervals and two-sided p by "
        "Fisher's z: atanh r is taken as normal, of variance 1 / (sentences − 3). The figure omits what is beyond the "
        "99th percentile of either."
    )
    header = ["method", "sentences", "CIDEr\u2011D", "rollouts per\u00a0token"]
    for name in ("r, per\u00a0token", "r of\u00a0ranks", "r, in\u00a0total"):
        header += [name, "95\u00a0% interval", "p"]
    table = Table("Rollouts and CIDEr-D of a sentence", header, rows, [note])
    return Section(table.title, [figure, table])


DIS = "tree_DIS"
_HERE = "corollout.experiments.table2"

TABLE2 = SweepExperiment(
    SweepSpec(
        "table2",
        "captions",
        {
            "REINFORCE": "reinforce",
            "SC": "sc",
            "RLOO": "rloo-5",
            "ARS-1": "ars-1",
            "ARS-5": "ars-5",
            "ARS-10": "ars-10",
            "ARS-20": "ars-20",
            "ARSM": "arsm:budget=2000",
            "BT-RF": "reinforce",
            "BT-SC": "sc",
            "BT-RLOO": "rloo-5",
            "BT-ARSM": "bt-arsm",
            "BT-DisARM": "bt-disarm",
            **_OWN,
        },
        {
            "tiny": {"rates": [1e-3], "seeds": [0], "beam": 3, "probes": 10},
            "small": {"rates": [5e-5], "seeds": [0, 1], "beam": 3, "probes": 20},
            "paper": {"rates": [5e-5], "seeds": [0, 1, 2], "beam": 3, "probes": 40},
        },
        CaptionDataSettings,
        make_data,
        (VARIANCE, PAIRS, ROLLOUTS),
        (
            Model(MLE, "mle"),
            Model("tree_RD", "tree-rd", f"{_HERE}:permuted_tree", after=MLE),
            Model("tree_WV", "tree-wv", f"{_HERE}:vector_tree", needs="vectors"),
            Model(DIS, "tree-dis", f"{_HERE}:distilled_tree", after=MLE),
        ),
        dict.fromkeys(("BT-RF", "BT-SC", "BT-RLOO", "BT-ARSM", "BT-DisARM", "BT-ARSM-own"), DIS),
        at_scale={"paper": _AUTHORS},
    ),
    ReportTexts(
        "Fine-tuning a captioner",
        lead,
        (_measures_table, _beam_table, _pair_table),
        _rollout_sections,
        {method: {"CIDEr": values[0]} for method, values in _PAPER.items()},
        _PAPER_NOTE,
        axes=("seconds", "tokens", "updates"),
    ),
)
