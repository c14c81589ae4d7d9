"""``corollout lm``: language models of transformers, without a script."""

import json
import shlex
from dataclasses import asdict

import typer
from rich.padding import Padding
from rich.text import Text

from corollout.allocator import keep_pages
from corollout.cli.lab import print_lab
from corollout.cli.progress import show_events
from corollout.cli.terminal import Terminal
from corollout.errors import DiskFullError, InputError, Interrupted
from corollout.events import ignore
from corollout.hf.generate import Generated, generate_completions
from corollout.hf.inspection import inspect_language_model
from corollout.hf.progress import metrics_text
from corollout.hf.quiet import quiet
from corollout.hf.settings import SETTINGS, GenerateSettings, InspectSettings, Training
from corollout.hf.terminal import samples_heading, show_samples
from corollout.hf.training import train_language_model
from corollout.lab.on_language_model import lab_of_language_model
from corollout.lab.settings import LanguageModelLabSettings


def generate(settings: GenerateSettings) -> None:
    """Complete prompts: greedily, by beam search, or by sampling; with rewards, if they are named."""
    console, shown = Terminal(), -1
    with show_events() as on_event, quiet(on_event):
        # In a terminal, what is printed shows how far it is.
        for generated in generate_completions(settings, ignore if console.is_terminal else on_event):
            if settings.json:
                typer.echo(json.dumps(asdict(generated)))
                continue
            if generated.number != shown:
                shown = generated.number
                console.rule(f"prompt {shown}", align="left")
                console.print(Padding(Text(_plain(generated.prompt), "dim"), (1, 2, 0, 2)))
            console.print(Padding(_shown(generated), (1, 2, 0, 2)))


def train(settings: Training) -> None:
    """Fine-tune a language model on rewards, with any estimator: in a folder, from which it can be resumed."""
    keep_pages()
    out = shlex.quote(str(settings.out))
    again = f"Continue with: corollout lm train --resume --out {out}"
    try:
        with show_events() as on_event, quiet(on_event):
            trained = train_language_model(settings.training, settings.out, settings.resume, on_event)
    except DiskFullError as error:
        raise InputError(f"{error}. {again}") from error
    except Interrupted as error:
        raise Interrupted(f"{error}. {again}") from None
    except KeyboardInterrupt:
        kept = again if (settings.out / SETTINGS).exists() else "Nothing was begun: run the same command again."
        raise Interrupted(f"Stopped. {kept}") from None
    console = Terminal(soft_wrap=True)
    console.print(". ".join(filter(None, [f"{trained.steps} steps", metrics_text(trained.metrics)])))
    console.print(f"Model: {trained.model}")
    console.print(f"What it writes: corollout lm generate --model {out} --prompt …")
    if settings.training.samples_steps:
        console.print(f"Where it went wrong: corollout lm inspect {out}")


def lab(settings: LanguageModelLabSettings) -> None:
    """Measure gradient estimators on your model, prompts and reward: variance, cost, and variance × cost."""
    keep_pages()
    try:
        with show_events() as on_event, quiet(on_event):
            result = lab_of_language_model(settings, on_event)
    except KeyboardInterrupt:
        kept = f"measurements are kept in {settings.folder}, and the same command continues"
        raise Interrupted(f"Stopped; {kept}.") from None
    print_lab(result)


def inspect(settings: InspectSettings) -> None:
    """Show completions with the credit of every token: those that a training has kept, or a fresh estimate's."""
    with show_events() as on_event, quiet(on_event):
        inspected = inspect_language_model(settings)
    if settings.json:
        for record in inspected.records:
            typer.echo(json.dumps(asdict(record)))
        return
    console = Terminal()
    console.rule(samples_heading(inspected.shown), align="left")
    console.print(Padding(show_samples(inspected.shown), (1, 0, 0, 0)))
    console.print(f"Page: {inspected.page}", soft_wrap=True)


def _shown(generated: Generated) -> Text:
    facts = [f"{generated.tokens} tokens", f"log-probability {generated.log_probability:.2f}"]
    if not generated.finished:
        facts.append("cut at the longest length")
    if generated.rewards:
        parts = generated.rewards if len(generated.rewards) > 1 else {}
        numbers = {"reward": generated.reward, **parts}
        facts[:0] = [f"{name} {'none' if value is None else f'{value:.4g}'}" for name, value in numbers.items()]
    text = Text(_plain(generated.completion).strip())
    return text.append(f"\n{', '.join(facts)}", "cyan")


def _plain(content: object) -> str:
    """A string, or the messages of a chat, as lines."""
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    if len(content) == 1:
        return str(content[0]["content"])
    return "\n".join(f"{message['role']}: {message['content']}" for message in content)
