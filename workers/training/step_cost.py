"""What drafting costs on this machine: steps of the real engine with the drafter attached, one sequence, by K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from controlplane.policy import parse_policy
from controlplane.settings import load_settings
from controlplane.telemetry import ProfileCell
from workers.build import build_engine
from workers.latency_profile import LatencyProfile, StepSize
from workers.proposers.drafter_folder import read_card, write_card
from workers.training.evaluate import Acceptance
from workers.training.generate import PLAIN
from workers.training.model_card import write_model_card
from workers.training.ngram_first import Walked

CONTEXT = 256


@dataclass(frozen=True, slots=True)
class StepCost:
    """A step of one sequence. seconds: of all of it, draft_seconds: of drafting k tokens in it."""

    k: int
    seconds: float
    draft_seconds: float


def measure_steps(
    model: str, drafter: str, cache: Path, ks: Sequence[int], threads: int, budget_s: float
) -> list[StepCost]:
    """Medians of interleaved steps, K = 0 first; sizes that the drafter cannot fill are left out.

    drafter: as `--drafter` takes it. Raises as `build_engine`.
    """
    settings = load_settings(model=model, drafter=drafter, model_cache=cache, threads=threads, max_sequences=1)
    engine, _ = build_engine(settings, parse_policy(PLAIN), "evaluate")
    try:
        sizes = [StepSize(1, k, CONTEXT) for k in sorted({0, *ks})]
        profile = LatencyProfile(sizes, engine.rehearse, budget_s)
        while profile.advance():
            pass
    finally:
        if engine.energy is not None:
            engine.energy.stop()
    return [step_cost(cell) for cell in profile.cells]


def keep_cost(folder: Path, costs: Sequence[StepCost], threads: int) -> None:
    """In the drafter's folder: drafter.json, and the model card that follows from it."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    steps = [
        {"k": each.k, "seconds": round(each.seconds, 5), "draft_seconds": round(each.draft_seconds, 6)}
        for each in costs
    ]
    cost = {"threads": threads, "sku": load_settings(threads=threads).price_key(gpu), "steps": steps}
    write_card(folder, replace(read_card(folder), cost=cost))
    write_model_card(folder)


def step_cost(cell: ProfileCell) -> StepCost:
    return StepCost(cell.k, cell.seconds, cell.draft_seconds)


def drafting_share(costs: Sequence[StepCost]) -> dict[int, float]:
    """By K: seconds of drafting one token over those of a step without drafting."""
    plain = next((cost.seconds for cost in costs if cost.k == 0), None)
    if plain is None:
        return {}
    return {cost.k: cost.draft_seconds / cost.k / plain for cost in costs if cost.k}


def speed_ups(acceptance: Acceptance, costs: Sequence[StepCost]) -> dict[int, float]:
    """By K: tokens a second of a sequence over those without drafting, as the steps measured here would give them."""
    plain = next((cost.seconds for cost in costs if cost.k == 0), None)
    lengths = {k: acceptance.emitted[k] / steps for k, steps in acceptance.steps.items() if steps}
    if plain is None:
        return {}
    return {cost.k: lengths[cost.k] * plain / cost.seconds for cost in costs if cost.k in lengths}


def speed_ups_together(walked: Walked, costs: Sequence[StepCost]) -> dict[int, float]:
    """As `speed_ups`, with the n-gram index first: a step in which it speaks takes no time for drafting."""
    plain = next((cost.seconds for cost in costs if cost.k == 0), None)
    if plain is None:
        return {}
    found = {}
    for cost in costs:
        if walked.steps.get(cost.k):
            seconds = walked.steps[cost.k] * cost.seconds - walked.spoken[cost.k] * cost.draft_seconds
            found[cost.k] = walked.emitted[cost.k] * plain / seconds
    return found
