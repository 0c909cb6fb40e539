"""`kadence train import`: a drafter that others published, in the form that the engine takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MODEL = "smollm2-135m-instruct"


def import_command(
    published: Annotated[Path, typer.Argument(help="Folder with config.json and weights.")],
    out: Annotated[Path, typer.Option(help="Folder of the drafter to write.")],
    model: Annotated[str, typer.Option(help="Its target: a known name, a folder or a hub id.")] = DEFAULT_MODEL,
    model_cache: Annotated[
        Path | None, typer.Option(help="Folder of fetched models. [~/.cache/kadence/models]")
    ] = None,
) -> None:
    """Take over Medusa's heads, an EAGLE-3 layer or a `speculators` checkpoint of it, as they are published.

    Such a checkpoint does not say which weights its target had: sizes are compared, and `kadence train evaluate` shows
    whether it drafts for this model.
    """
    from controlplane.settings import load_settings
    from workers.models.resolve import resolve_model
    from workers.proposers.drafter_folder import identify, save_drafter
    from workers.proposers.published import layers_of, read_published

    cache = load_settings(model_cache=model_cache).model_cache
    folder = resolve_model(model, cache)
    found = read_published(published, identify(model, folder, cache), layers_of(folder))
    save_drafter(out, found.card, found.tensors, found.vocabulary)
    typer.echo(f"{out}: {found.card.kind} for {model}, {len(found.vocabulary)} draft tokens; see what it is worth:")
    typer.echo(f"  kadence train evaluate {out} --model {model}")
