"""The training loop of every drafter: the same steps whether or not it was interrupted."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from workers.training.batches import TrainingBatch, endless_batches
from workers.training.features import Example
from workers.training.objective import Objective
from workers.training.optimizers import optimizers_of, step_all

TIMED_STEPS = 8
"""Steps by which a budget in seconds is turned into a number of steps."""


class TrainingError(RuntimeError):
    """Training cannot go on; one line with the reason."""


class Examples(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. steps: optimiser steps, 0 = as many as budget_s has room for, fixed after the first few.

    learning_rate: peak, after `warmup` steps, then a cosine down to a tenth. decay: weight of position j is decay^j.
    checkpoint_every: steps.
    """

    steps: int = 0
    budget_s: float = 1800.0
    batch_size: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 50
    decay: float = 0.8
    seed: int = 0
    checkpoint_every: int = 50

    def rate(self, step: int) -> float:
        """Learning rate of the 0-based step."""
        progress = min(step / max(self.steps, 1), 1.0)
        cosine = 0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * progress))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * cosine


@dataclass(frozen=True, slots=True)
class Progress:
    """After one step. losses: by position. seconds: of all steps so far, those before a break included."""

    step: int
    steps: int
    losses: tuple[float, ...]
    tokens: int
    seconds: float


def train(
    objective: Objective,
    examples: Examples,
    lengths: Sequence[int],
    recipe: Recipe,
    checkpoint: Path,
    identity: str,
    on_step: Callable[[Progress], None] = lambda progress: None,
    stop_after: int | None = None,
) -> Recipe:
    """Train the objective's model in place; the recipe with the steps that it came to.

    checkpoint: a file, written now and then and at the end; where it is there already, training goes on from it with
    the very next batch, so that the result is that of a run without a break. identity: what the checkpoint must be of
    (data, model, shape). stop_after: return after that many steps in all (for tests). Raises TrainingError where the
    checkpoint is of something else, or the loss is no number any more.
    """
    torch.manual_seed(recipe.seed)
    parameters = [p for p in objective.model.parameters() if p.requires_grad]
    optimizers = optimizers_of(objective.model, recipe.weight_decay)
    step, tokens, spent = 0, 0, 0.0
    if checkpoint.exists():
        recipe, step, tokens, spent = _resume(checkpoint, objective, optimizers, recipe, identity)
    began = time.monotonic() - spent
    batches = endless_batches(lengths, recipe.batch_size, recipe.seed, step)
    objective.model.train()
    while recipe.steps == 0 or step < recipe.steps:
        batch = TrainingBatch.of([examples[i] for i in next(batches)])
        with torch.autocast("cpu", torch.bfloat16):
            losses = objective.losses(batch)
        loss = torch.stack([recipe.decay**j * each for j, each in enumerate(losses)]).sum()
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is {float(loss.detach())} at step {step}: lower the learning rate")
        objective.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        step_all(optimizers, recipe.rate(step))
        step, tokens, seconds = step + 1, tokens + batch.answer_tokens, time.monotonic() - began
        if recipe.steps == 0 and step == TIMED_STEPS:
            # From here on the number of steps is fixed, and so is the learning rate of each.
            recipe = replace(recipe, steps=max(int(recipe.budget_s / seconds * step), step + 1))
        on_step(Progress(step, recipe.steps, tuple(float(each.detach()) for each in losses), tokens, seconds))
        is_last = step == recipe.steps or step == stop_after
        if is_last or (recipe.steps and step % recipe.checkpoint_every == 0):
            _save(checkpoint, objective, optimizers, recipe, identity, step, tokens, seconds)
        if is_last:
            break
    objective.model.train(False)
    return recipe


def _save(
    path: Path,
    objective: Objective,
    optimizers: Sequence[torch.optim.Optimizer],
    recipe: Recipe,
    identity: str,
    step: int,
    tokens: int,
    seconds: float,
) -> None:
    """Beside the old one first, so that a crash while writing costs nothing."""
    state = {
        "identity": identity,
        "recipe": asdict(recipe),
        "step": step,
        "tokens": tokens,
        "seconds": seconds,
        "model": objective.model.state_dict(),
        "optimizers": [each.state_dict() for each in optimizers],
    }
    beside = path.with_suffix(".new")
    torch.save(state, beside)
    os.replace(beside, path)


def _resume(
    path: Path, objective: Objective, optimizers: Sequence[torch.optim.Optimizer], recipe: Recipe, identity: str
) -> tuple[Recipe, int, int, float]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        is_ours = state["identity"] == identity
        begun, moments = Recipe(**state["recipe"]), state["optimizers"]
    except Exception as error:  # pickle's, zip's and torch's own
        raise TrainingError(f"checkpoint {path} cannot be read ({error}); delete it to begin anew") from error
    if not is_ours:
        raise TrainingError(
            f"checkpoint {path} is of other data, another model or shape; delete it, or use another --out"
        )
    asked = replace(recipe, steps=begun.steps) if recipe.steps == 0 else recipe
    if asked != begun:
        differs = next(name for name, value in asdict(asked).items() if value != getattr(begun, name))
        raise TrainingError(
            f"checkpoint {path} was begun with {differs} = {getattr(begun, differs)}, not {getattr(asked, differs)}; "
            "go on as it was begun, or delete it"
        )
    objective.model.load_state_dict(state["model"])
    for optimizer, its in zip(optimizers, moments, strict=True):
        optimizer.load_state_dict(its)
    return begun, state["step"], state["tokens"], state["seconds"]
