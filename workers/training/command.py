"""`kadence train`: a drafter for one's own model, from its own answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from workers.proposers.drafter_folder import Kind
from workers.training.run import Order, Outcome, Report

train_app = typer.Typer(no_args_is_help=True, help="Train drafters for a model on its own answers.")

Model = Annotated[str, typer.Option(help="The target: a known name, a local folder or a hub id.")]
Out = Annotated[Path, typer.Option(help="Folder of the drafter, its curves and its checkpoint.")]
Prompts = Annotated[Path | None, typer.Option(help="JSON lines with `prompt`, `domain`, `held_out`; default: shipped.")]
Budget = Annotated[str, typer.Option(help="Time for all of it, answers included: 30m, 2h.")]
Steps = Annotated[int, typer.Option(min=0, help="Optimiser steps; 0: as many as the budget has room for.")]
Seed = Annotated[int, typer.Option(help="Of weights, order and sampled answers' seeds.")]
Limit = Annotated[int, typer.Option(min=0, help="Take only so many prompts of each domain and split; 0: all.")]
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
        learning_rate: Rate = 1e-3,
        model_cache: Cache = None,
        as_json: AsJson = False,
    ) -> None:
        _run(kind, out, model, prompts, budget, steps, seed, limit, learning_rate, model_cache, as_json)

    return command


for _kind, _help in (
    ("eagle", "One decoder layer that continues the target's features, unrolled on its own."),
    ("medusa", "Residual heads over the target's last hidden state."),
):
    train_app.command(_kind, help=_help)(_command(cast("Kind", _kind)))


def _run(
    kind: Kind,
    out: Path,
    model: str,
    prompts: Path | None,
    budget: str,
    steps: int,
    seed: int,
    limit: int,
    learning_rate: float,
    model_cache: Path | None,
    as_json: bool,
) -> None:
    from controlplane.settings import load_settings, physical_cores
    from workers.models.resolve import resolve_model
    from workers.training.loop import Recipe
    from workers.training.prompts import limited, read_prompts, shipped_prompts
    from workers.training.run import train_drafter

    budget_s = seconds(budget)
    asked = limited(shipped_prompts() if prompts is None else read_prompts(prompts), limit)
    cache = load_settings(model_cache=model_cache).model_cache
    recipe = Recipe(steps=steps, learning_rate=learning_rate, seed=seed)
    folder = resolve_model(model, cache)
    order = Order(
        kind, folder, model, cache, out, asked, recipe, budget_s, processes=physical_cores(), seeds=(seed + 1,)
    )
    with _Bars() as bars:
        outcome = train_drafter(order, bars)
    if as_json:
        typer.echo(json.dumps(result(outcome, out)))
    else:
        Console().print(table(outcome))


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


def table(outcome: Outcome) -> Table:
    """Tokens a step and acceptance by position, a row for each domain and mode."""
    made = Table(title=f"{outcome.card.kind} for {outcome.card.target.name}, held-out prompts")
    for name in ("domain", "mode", "acceptance by position", "tokens a step at K", "repeated 8-grams"):
        made.add_column(name)
    for domain, modes in outcome.acceptance.items():
        for mode, sums in sorted(modes.items()):
            positions = " ".join(f"{each:.2f}" for each in sums.by_position)
            lengths = " ".join(f"{k}: {sums.emitted[k] / steps:.2f}" for k, steps in sums.steps.items() if steps)
            made.add_row(domain, mode, positions, lengths, f"{sums.loops / max(sums.answers, 1):.0%}")
    return made


class _Bars(Report):
    """A bar a stage on a terminal, a line a stage elsewhere."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total}"))
        console = Console(stderr=True)
        self._bars = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._is_terminal = console.is_terminal
        self._task: TaskID | None = None

    def __enter__(self) -> _Bars:
        if self._is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int) -> None:
        if self._is_terminal:
            self._task = self._bars.add_task(name, total=total or None)
        else:
            print(f"kadence: {name}" + (f" ({total})" if total else ""), file=sys.stderr, flush=True)

    def advance(self, by: int, text: str = "") -> None:
        if self._task is not None:
            self._bars.advance(self._task, by)
            if text:
                self._bars.update(self._task, description=text)
