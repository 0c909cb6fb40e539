"""`kadence train evaluate`: what a drafter is worth, on prompts that it never saw and on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from workers.logs import log_to_stderr
from workers.training.plots import MISSING, can_plot, plot_evaluation
from workers.training.progress import Bars
from workers.training.step_cost import StepCost, drafting_share, speed_ups, speed_ups_together
from workers.training.tables import acceptance_table, cost_table, ngram_first_table, tree_table

KS = (1, 2, 4, 8)
COST_S = 30.0


def evaluate_command(
    drafter: Annotated[Path, typer.Argument(help="Folder of a trained drafter.")],
    model: Annotated[
        str, typer.Option(help="The target: a known name, a folder or a hub id.")
    ] = "smollm2-135m-instruct",
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with `prompt`, `domain`, `held_out`; default: shipped.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The one that it was trained with: its sampled answers are there.")] = 0,
    limit: Annotated[int, typer.Option(min=0, help="Take only so many prompts of each domain; 0: all.")] = 0,
    answers: Annotated[
        int, typer.Option(min=0, help="As it was trained with: judge by those held out of them; 0: by all.")
    ] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Sampled answers to each prompt, as it was trained with.")] = 1,
    cost: Annotated[bool, typer.Option(help="Measure steps of the engine; wants an idle machine.")] = True,
    model_cache: Annotated[
        Path | None, typer.Option(help="Folder of fetched models. [~/.cache/kadence/models]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Acceptance of a drafter by domain, position and rank, alone and behind the n-gram index, its best trees, and the
    speed-up to expect here.

    Trees and the index's best shortest match are stored in the drafter's folder, and evaluation.png beside them.
    """
    from controlplane.settings import load_settings, physical_cores
    from workers.models.resolve import resolve_model
    from workers.training.assess import AssessmentOrder, assess_drafter
    from workers.training.generate import sampled_seeds
    from workers.training.prompts import limited, read_prompts, shipped_prompts
    from workers.training.step_cost import keep_cost, measure_steps

    log_to_stderr()
    asked = limited(shipped_prompts() if prompts is None else read_prompts(prompts), limit)
    cache, cores = load_settings(model_cache=model_cache).model_cache, physical_cores()
    order = AssessmentOrder(
        drafter,
        resolve_model(model, cache),
        model,
        cache,
        asked,
        cores,
        seeds=sampled_seeds(seed, samples),
        answers=answers,
    )
    costs: list[StepCost] = []
    with Bars() as bars:
        found = assess_drafter(order, bars)
        if cost:
            bars.stage("steps", 0)
            costs = measure_steps(model, f"{found.card.kind}:{drafter}", cache, KS, cores, COST_S)
            keep_cost(drafter, costs, cores)
    if can_plot():
        plot_evaluation(drafter / "evaluation.png", found.acceptance)
    else:
        typer.echo(f"kadence: {MISSING}", err=True)
    if not as_json:
        console = Console()
        console.print(acceptance_table(found.card, found.acceptance))
        console.print(ngram_first_table(found.together, found.acceptance))
        console.print(tree_table(found.trees, found.acceptance))
        if costs:
            console.print(cost_table(costs, found.acceptance))
        return
    share = drafting_share(costs)
    said = {
        "target": found.card.target.name,
        "drafter": str(drafter),
        "kind": found.card.kind,
        "answers": found.answers,
        "domains": dict(found.card.acceptance),
        "ngram_first": found.together.report(),
        "rank_acceptance": found.ranks.round(4).tolist(),
        "trees": {str(nodes): worth.report() for nodes, worth in found.trees.items()},
        "steps": [
            {"k": c.k, "seconds": c.seconds, "draft_seconds": c.draft_seconds, "share_a_token": share.get(c.k)}
            for c in costs
        ],
        "speed_up": {
            domain: {mode: speed_ups(sums, costs) for mode, sums in modes.items()}
            for domain, modes in found.acceptance.items()
        },
        "speed_up_ngram_first": {
            domain: {mode: speed_ups_together(sums, costs) for mode, sums in modes.items()}
            for domain, modes in found.together.first.items()
        },
    }
    typer.echo(json.dumps(said))
