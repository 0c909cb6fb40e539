"""`kadence train`: a drafter for one's own model, from its own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console

from workers.proposers.drafter_folder import Kind
from workers.training.evaluate_command import evaluate_command
from workers.training.import_command import import_command
from workers.training.plots import MISSING, can_plot, plot_training
from workers.training.progress import Bars
from workers.training.run import Order, Outcome
from workers.training.tables import acceptance_table

train_app = typer.Typer(no_args_is_help=True, help="Train drafters for a model on its own answers.")

Model = Annotated[str, typer.Option(help="The target: a known name, a local folder or a hub id.")]
Out = Annotated[Path, typer.Option(help="Folder of the drafter, its curves and its checkpoint.")]
Prompts = Annotated[Path | None, typer.Option(help="JSON lines with `prompt`, `domain`, `held_out`; default: shipped.")]
Budget = Annotated[str, typer.Option(help="Time for all of it, answers included: 30m, 2h.")]
Steps = Annotated[int, typer.Option(min=0, help="Optimiser steps; 0: as many as the budget has room for.")]
Seed = Annotated[int, typer.Option(help="Of weights, order and sampled answers' seeds.")]
Limit = Annotated[int, typer.Option(min=0, help="Take only so many prompts of each domain and split; 0: all.")]
Answers = Annotated[
    int,
    typer.Option(min=0, help="Take so many answers, of an order in which any part represents all; 0: by the budget."),
]
Samples = Annotated[int, typer.Option(min=1, help="Sampled answers to each prompt, besides the greedy one.")]
Rate = Annotated[float, typer.Option(min=1e-6, max=1.0, help="Peak learning rate.")]
Cache = Annotated[Path | None, typer.Option(help="Folder of fetched models. [~/.cache/kadence/models]")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@train_app.callback()
def train() -> None:
    """Train drafters for a model on its own answers."""


def _command(kind: Kind) -> Callable[..., None]:
    """A command with every option of training."""

    def command(
        out: Out,
        model: Model = "smollm2-135m-instruct",
        prompts: Prompts = None,
        budget: Budget = "30m",
        steps: Steps = 0,
        seed: Seed = 0,
        limit: Limit = 0,
        answers: Answers = 0,
        samples: Samples = 1,
        learning_rate: Rate = 1e-3,
        model_cache: Cache = None,
        as_json: AsJson = False,
    ) -> None:
        taken = (limit, answers, samples)
        _run(kind, out, model, prompts, budget, steps, seed, *taken, learning_rate, model_cache, as_json)

    return command


for _kind, _help in (
    ("eagle", "One decoder layer that continues the target's features, unrolled on its own."),
    ("medusa", "Residual heads over the target's last hidden state."),
    ("draft", "A student of two of the target's layers, distilled, between its embeddings and LM head."),
):
    train_app.command(_kind, help=_help)(_command(cast("Kind", _kind)))
train_app.command("evaluate")(evaluate_command)
train_app.command("import")(import_command)


def _run(
    kind: Kind,
    out: Path,
    model: str,
    prompts: Path | None,
    budget: str,
    steps: int,
    seed: int,
    limit: int,
    answers: int,
    samples: int,
    learning_rate: float,
    model_cache: Path | None,
    as_json: bool,
) -> None:
    from controlplane.settings import load_settings, physical_cores
    from workers.models.resolve import resolve_model
    from workers.training.generate import sampled_seeds
    from workers.training.loop import Recipe
    from workers.training.prompts import limited, read_prompts, shipped_prompts
    from workers.training.run import train_drafter

    budget_s = seconds(budget)
    asked = limited(shipped_prompts() if prompts is None else read_prompts(prompts), limit)
    cache = load_settings(model_cache=model_cache).model_cache
    recipe = Recipe(steps=steps, learning_rate=learning_rate, seed=seed)
    folder = resolve_model(model, cache)
    order = Order(
        kind,
        folder,
        model,
        cache,
        out,
        asked,
        recipe,
        budget_s,
        processes=physical_cores(),
        seeds=sampled_seeds(seed, samples),
        answers=answers,
        has_own=prompts is not None,
    )
    with Bars() as bars:
        outcome = train_drafter(order, bars)
    if can_plot():
        plot_training(out)
    else:
        typer.echo(f"kadence: {MISSING}", err=True)
    if as_json:
        typer.echo(json.dumps(result(outcome, out)))
    else:
        Console().print(acceptance_table(outcome.card, outcome.acceptance))


def seconds(text: str) -> float:
    """30m, 2h, 90s in seconds. Raises typer.BadParameter naming the option."""
    number, unit = text[:-1], text[-1:]
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(unit)
    try:
        value = float(number) * (scale or 0.0)
    except ValueError:
        value = 0.0
    if not 1.0 <= value < 7 * 86400:
        raise typer.BadParameter(f"{text!r} is no duration such as 90s, 30m or 2h", param_hint="--budget")
    return value


def result(outcome: Outcome, out: Path) -> dict[str, object]:
    """As `--json` gives it."""
    card = outcome.card
    return {
        "target": card.target.name,
        "drafter": str(out),
        "kind": card.kind,
        "recipe": dict(card.recipe),
        "domains": dict(card.acceptance),
    }
