"""``corollout score``: captions in files, by the measures of the literature."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from corollout.cli.tables import plain_table
from corollout.errors import InputError
from corollout.tasks.captioning.meteor import MeteorError, meteor
from corollout.tasks.captioning.scoring import (
    ImageId,
    Lexicon,
    TextScores,
    frequencies_of,
    read_frequencies,
    read_hypotheses,
    read_references,
    score_words,
    write_frequencies,
)

NAMES = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "rouge_l": "ROUGE-L",
    "cider_d": "CIDEr-D",
    "cider": "CIDEr",
    "meteor": "METEOR",
}
_LISTED = 5  # images that an error names


def score(
    refs: Annotated[
        Path, typer.Option(metavar="<file>", help="References: COCO's annotations, JSON.", show_default=False)
    ],
    hyps: Annotated[
        Path | None,
        typer.Option(metavar="<file>", help="Captions to score: COCO's results, JSON.", show_default=False),
    ] = None,
    df: Annotated[
        Path | None,
        typer.Option(
            metavar="<file>",
            help="Document frequencies: those of other annotations, or a file of --write-df. [default: of --refs]",
            show_default=False,
        ),
    ] = None,
    write_df: Annotated[
        Path | None,
        typer.Option(
            metavar="<file>", help="Write the document frequencies of the references to a file.", show_default=False
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out images that have references but no caption.")
    ] = False,
    per_example: Annotated[
        bool, typer.Option("--per-example", help="Print the values of each caption as well.")
    ] = False,
    no_meteor: Annotated[
        bool, typer.Option("--no-meteor", help="Leave out METEOR, which takes longer than all the others.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON, not times 100.")] = False,
) -> None:
    """Score captions: BLEU, ROUGE-L, CIDEr-D, CIDEr, and METEOR where its Java program is installed.

    The values are those of the public evaluation of COCO captions, tokenisation included, whose CIDEr is CIDEr-D.
    """
    if hyps is None and write_df is None:
        raise InputError("nothing to do: name captions to score with --hyps, or a file with --write-df")
    lexicon = Lexicon()
    references = read_references(refs)
    if write_df is not None:
        write_frequencies(write_df, frequencies_of(references, lexicon), lexicon)
    if hyps is None:
        return
    hypotheses = read_hypotheses(hyps)
    _check_same_images(references, hypotheses, refs, hyps, partial)
    frequencies = None if df is None else read_frequencies(df, lexicon)
    images = list(hypotheses)
    groups, captions = [references[image] for image in images], [hypotheses[image] for image in images]
    scores = score_words(groups, captions, lexicon, frequencies)
    absent = "it was left out by --no-meteor"
    if not no_meteor:
        try:
            with Console(stderr=True).status("METEOR …"):
                scores = scores.with_measure("meteor", *meteor(groups, captions))
        except MeteorError as error:
            absent = str(error)
    if as_json:
        _print_json(images, scores, absent, per_example)
    else:
        _print_tables(hypotheses, scores, absent, per_example, hyps)


def _check_same_images(
    references: Mapping[ImageId, Any], hypotheses: Mapping[ImageId, Any], refs: Path, hyps: Path, partial: bool
) -> None:
    if strange := [image for image in hypotheses if image not in references]:
        raise InputError(f"{hyps} has captions of images without references in {refs}: {_listed(strange)}")
    missing = [image for image in references if image not in hypotheses]
    if missing and not partial:
        raise InputError(
            f"{hyps} has no captions of {len(missing):,} of the {len(references):,} images in {refs}: "
            f"{_listed(missing)}; give each a caption, or leave them out with --partial"
        )


def _listed(images: list[ImageId]) -> str:
    return ", ".join(repr(image) for image in images[:_LISTED]) + (", …" if len(images) > _LISTED else "")


def _print_json(images: list[ImageId], scores: TextScores, absent: str, per_example: bool) -> None:
    """``absent`` is why METEOR is, if it is."""
    result: dict[str, Any] = {"images": len(images), **scores.corpus}
    if "meteor" not in scores.corpus:
        result |= {"meteor": None, "meteor_absent": absent}
    if per_example:
        result["examples"] = [
            {"image_id": image, **{name: float(values[place]) for name, values in scores.each.items()}}
            for place, image in enumerate(images)
        ]
    typer.echo(json.dumps(result, indent=2))


def _print_tables(
    hypotheses: Mapping[ImageId, list[str]], scores: TextScores, absent: str, per_example: bool, source: Path
) -> None:
    console = Console(highlight=False)
    if per_example:
        shown = ("cider_d", "bleu_4", "rouge_l", "meteor")
        columns = {NAMES[name]: scores.each[name] for name in shown if name in scores.each}
        rows = [
            [" ".join(words), str(image), *(f"{100 * values[place]:.1f}" for values in columns.values())]
            for place, (image, words) in enumerate(hypotheses.items())
        ]
        console.print(plain_table("", ["caption", "image", *columns], rows))
    rows = [[name, f"{100 * scores.corpus[key]:.2f}"] for key, name in NAMES.items() if key in scores.corpus]
    console.print(Text(f"{source}: {len(hypotheses):,} captions, values times 100", "bold"), soft_wrap=True)
    console.print(plain_table("", ["measure", "value"], rows))
    if "meteor" not in scores.corpus:
        console.print(Text(f"METEOR is absent: {absent}.", "dim"), soft_wrap=True)
