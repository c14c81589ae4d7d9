"""What the report of the paper's second table says of captions."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from corollout.estimators import ARS
from corollout.reports import pages
from corollout.reports.comparison import Method
from corollout.reports.curves import Group, read_curves
from corollout.reports.rollout_figures import density_figure, fall_figure, step_figures, steps_figure
from corollout.reports.rollouts import Correlation, Sentences, correlation_cells, ranks, read_step_map
from corollout.reports.tables import NOTHING, TextTable, number, percent, signed_percent
from corollout.sweeps.report import Collected, Section, Words
from corollout.sweeps.rollout_analysis import ROLLOUTS, branching, branching_methods
from corollout.sweeps.sweep import Sweep, result_of
from corollout.sweeps.variance_analysis import PAIRS
from corollout.tasks.captioning.metrics import CIDER, NAMES
from corollout.tasks.task import mean_interval

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
_DENSITY_OF = ("ARS-20", "ARSM", "BT-ARSM")  # the method whose sentences are drawn, the first that is there


def _lead(sweep: Sweep) -> str:
    data = Path(sweep.data.folder).name if sweep.data.folder else f"{sweep.data.train:,} generated scenes"
    return f"The reward is a caption's CIDEr-D. A model learns to caption images ({data})"


def _measures_table(found: Collected) -> TextTable:
    names = list(_MEASURES.values())
    rows = []
    for method in found.methods:
        paper = [f"{value:.1f}" for value in _PAPER.get(method.label, ())]
        rows.append([*_measured(method, ""), *paper, *[NOTHING] * (len(names) - len(paper))])
    note = (
        "Greedy captions of the test images, times 100, mean over seeds, ± their standard deviation. The paper's "
        "numbers are of COCO; it does not say how captions were decoded. METEOR, which the paper has, too, is not part "
        "of this: it needs Java; `corollout score` computes it."
    )
    header = ["method", *names, *(f"paper {name}" for name in _PAPER_NAMES)]
    return TextTable("All measures, test", header, rows, [note])


def _beam_table(sweep: Sweep, found: Collected) -> TextTable:
    rows = [_measured(method, "beam_") for method in found.methods]
    note = f"The first caption of a beam of {sweep.beam}, times 100, mean over seeds, ± their standard deviation."
    return TextTable("All measures, test, by beam search", ["method", *_MEASURES.values()], rows, [note])


def _measured(method: Method, prefix: str) -> list[str]:
    """A method's name and its measures on the test images."""
    tests = [result_of(Path(run)).get("test", {}) for run in method.runs]
    jobs = [method.label]
    for key in _MEASURES:
        values = [test[prefix + key] for test in tests if prefix + key in test]
        if len(values) < len(tests):
            jobs.append(NOTHING)
            continue
        spread = f" ± {percent(float(np.std(values, ddof=1)), 1)}" if len(values) > 1 else ""
        jobs.append(percent(float(np.mean(values)), 1) + spread)
    return jobs


_PAIR = ("BT-ARSM", "BT-DisARM")


def _pair_table(sweep: Sweep, found: Collected) -> TextTable:
    """BT-DisARM beside BT-ARSM: the same rollouts, so the variances can be compared pair by pair."""
    measured = found.analyses[PAIRS.name]
    probes = [measured[label] for label in _PAIR if label in measured]
    rows: list[list[str]] = []
    if len(probes) == 2:
        first, second = (np.array(probe["squares"]) for probe in probes)
        interval = mean_interval(second - first) or (float("nan"),) * 2
        scale = probes[0]["variance"]
        less = [signed_percent(value / scale) for value in (float((second - first).mean()), *interval)]
        for label, probe in zip(_PAIR, probes, strict=True):
            change = [less[0], f"{less[1]}…{less[2]}"] if label == _PAIR[1] else [NOTHING, NOTHING]
            rows.append([label, number(probe["rollouts_per_step"]), number(probe["variance"]), *change])
    note = (
        f"At the weights of tree_DIS, seed {sweep.seeds[0]}: {probes[0]['estimates'] if probes else 0} estimates of "
        f"each for the same {sweep.finetune.batch_size} images, with the same noise, hence the same rollouts. "
        "Difference: mean over pairs of the difference of squared norms, which is that of the variances as both are "
        "unbiased, in per cent of BT-ARSM's variance, with its 95 % interval."
    )
    header = ["method", "rollouts a\u00a0step", "variance", "difference,\u00a0%", "95\u00a0% interval"]
    return TextTable("Variance at equal rollouts", header, rows, [note])


def _sections(sweep: Sweep, found: Collected, folder: Path) -> list[Section]:
    """Figures of rollouts, for the methods whose rollouts adapt; their numbers are kept beside them."""
    adapting = branching_methods(sweep)
    groups = [(place, group) for place, group in enumerate(found.groups) if group.label in adapting]
    sentences = [Sentences.of(label, own) for label, own in found.analyses[ROLLOUTS.name].items() if label in adapting]
    maps = [one for _, group in groups if (one := read_step_map(group)) is not None]
    depths = [one for _, group in groups if (one := read_step_map(group, "rollouts_by_depth")) is not None]
    pages.save(
        folder / "rollouts.json",
        {
            "sentences": found.analyses[ROLLOUTS.name],
            "by_step": [one.table() for one in maps],
            "by_depth": [one.table() for one in depths],
        },
        indent=None,
    )
    sections = []
    if groups:
        sections.append(_fall_section(sweep, found, groups, folder))
    if maps:
        pages.save_figure(folder, "rollouts-steps", steps_figure(maps))
        figures = pages.figures_part(step_figures(maps), "steps")
        words = _STEPS_NOTE + _budget_words(sweep, (one.label for one in maps))
        sections.append(Section("Rollouts by time step", figures + pages.note(words)))
    if depths:
        pages.save_figure(folder, "rollouts-depths", steps_figure(depths, "depth"))
        figures = pages.figures_part(step_figures(depths, "depth"), "depths")
        sections.append(Section("Rollouts by depth in the tree", figures + pages.note(_DEPTHS_NOTE)))
    if sentences:
        sections.append(_density_section(sweep, sentences, folder))
    return sections


_STEPS_NOTE = (
    "Colour: rollouts that depart at a step of the main sentences, for each sentence that has it, mean over updates "
    "and seeds; each method has a scale of its own, up to its 99th percentile. Beside it the same in the first and in "
    "the last tenth of the updates. A sentence's last step is its end, unless it was cut."
)


_DEPTHS_NOTE = (
    "The same for the decisions on the way down the tree, the root's being the first: rollouts that leave the way "
    "there, for each word of the main sentences that has a decision at that depth."
)


def _fall_section(sweep: Sweep, found: Collected, groups: list[tuple[int, Group]], folder: Path) -> Section:
    figure = fall_figure([(place, read_curves(group, "updates")) for place, group in groups])
    pages.save_figure(folder, "rollouts-updates", figure)
    methods = {method.label: method for method in found.methods}
    rows = []
    for _, group in groups:
        method, estimator = methods[group.label], branching(sweep.estimator(group.label))
        references = str(estimator.references or "V") if isinstance(estimator, ARS) else NOTHING
        first, last = method.first_rollouts, method.last_rollouts
        share = last / first if first and last is not None else None
        rows.append([group.label, references, number(first), number(last), number(share)])
    note = (
        "Rollouts per step: unique pseudo-actions other than the action itself, or pseudo bits that differ, for each "
        "token of the main sentences, mean over the first and over the last tenth of the updates, and over seeds. K: "
        f"references of each token, V for all words.{_budget_words(sweep, (group.label for _, group in groups))}"
    )
    table = TextTable(
        "Rollouts along training", ["method", "K", "first tenth", "last tenth", "last /\u00a0first"], rows, [note]
    )
    return Section(table.title, pages.figures_part([figure], "fall"), table)


def _budget_words(sweep: Sweep, labels: Iterable[str]) -> str:
    """Which of the methods may not make all rollouts that they want."""
    limits = [(label, branching(sweep.estimator(label))) for label in labels]
    return "".join(
        f" {label} makes at most {own.budget:,} rollouts an {own.budget_per}; which ones is drawn."
        for label, own in limits
        if own.budget is not None
    )


def _density_section(sweep: Sweep, sentences: list[Sentences], folder: Path) -> Section:
    by_label = {own.label: own for own in sentences}
    chosen = next((by_label[label] for label in _DENSITY_OF if label in by_label), sentences[-1])
    figure = density_figure(chosen, CIDER.name)
    pages.save_figure(folder, "rollouts-cider", figure)
    rows = [
        [
            own.label,
            f"{len(own.scores):,}",
            percent(float(own.scores.mean()), 1),
            number(float(own.rollouts.sum() / own.lengths.sum())),
            *correlation_cells(Correlation.of(own.scores, own.per_token)),
            *correlation_cells(Correlation.of(ranks(own.scores), ranks(own.per_token))),
            *correlation_cells(Correlation.of(own.scores, own.rollouts)),
        ]
        for own in sentences
    ]
    note = (
        f"Sampled main sentences for training images at the best weights of each method, seed {sweep.seeds[0]}: their "
        "CIDEr-D times 100, and the rollouts that the method wants for each token, a budget being left out. r: "
        "Pearson's correlation over sentences of CIDEr-D with rollouts per token; that of their ranks (Spearman's); "
        "and that with all rollouts of a sentence. 95 % intervals and two-sided p by Fisher's z: atanh r is taken as "
        "normal, of variance 1 / (sentences − 3). The figure leaves out what is beyond the 99th percentile of either."
    )
    header = ["method", "sentences", "CIDEr\u2011D", "rollouts a\u00a0token"]
    for name in ("r, per\u00a0token", "r of\u00a0ranks", "r, in\u00a0all"):
        header += [name, "95\u00a0% interval", "p"]
    table = TextTable("Rollouts and CIDEr-D of a sentence", header, rows, [note])
    return Section(table.title, pages.figures_part([figure], "density"), table)


TABLE2_WORDS = Words(
    title="Fine-tuning a captioner",
    lead=_lead,
    paper={method: {"CIDEr": values[0]} for method, values in _PAPER.items()},
    paper_note=(
        "The paper's numbers are of COCO's 5,000 test images, after training on 113,287 images with the "
        "features of a larger network. They are here for orientation: the order of methods may agree, no number "
        "has to."
    ),
    tables=lambda sweep, found: [_measures_table(found), _beam_table(sweep, found), _pair_table(sweep, found)],
    axes=("seconds", "tokens", "updates"),
    sections=_sections,
)
