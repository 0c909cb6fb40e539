"""How often a drafter's tokens would be kept: by domain, greedy and sampled, with the share of loops beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from workers.training.answers import Answer
from workers.training.batches import TrainingBatch
from workers.training.features import Example
from workers.training.objective import GREEDY_BELOW, Objective
from workers.training.ranks import RANKS
from workers.training.walk import conditional_acceptance, in_loop, repeated_share, walk

CHAINS = (1, 2, 3, 4, 6, 8)
"""K of the chains whose tokens a step are reported."""

ALL = "all"
SEED = 0


@dataclass(slots=True)
class Acceptance:
    """Sums over the answers of one domain and mode. kept, reached: drafts by position; fresh: [kept, reached] of all
    positions where the text does not repeat itself. loops: shares of repeated 8-grams.
    """

    kept: list[float]
    reached: list[float]
    fresh: list[float] = field(default_factory=lambda: [0.0, 0.0])
    emitted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    steps: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    loops: float = 0.0
    answers: int = 0

    @property
    def by_position(self) -> list[float]:
        """Conditional acceptance of each position that any draft reached."""
        return [kept / reached for kept, reached in zip(self.kept, self.reached, strict=True) if reached]

    @property
    def without_loops(self) -> float | None:
        """Drafts kept over drafts examined where the text does not repeat itself, all positions together."""
        kept, reached = self.fresh
        return kept / reached if reached else None

    def report(self) -> dict[str, object]:
        """As `train evaluate --json` gives it."""
        return {
            "acceptance_by_position": [round(each, 4) for each in self.by_position],
            "acceptance_length": {k: round(self.emitted[k] / steps, 4) for k, steps in self.steps.items() if steps},
            "acceptance_without_loops": None if self.without_loops is None else round(self.without_loops, 4),
            "repeated_8gram_share": round(self.loops / self.answers, 4) if self.answers else None,
            "answers": self.answers,
        }


def mode_of(example: Example) -> str:
    """greedy, or the temperature that the answer was sampled at, such as t0.7."""
    temperature = example.answer.question.temperature
    return "greedy" if temperature < GREEDY_BELOW else f"t{temperature:g}"


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """How drafts would have fared along one answer.

    kept, taught: [depth, tokens], see `walk.conditional_acceptance`. tried, stood: [depth, RANKS], expected children of
    each rank that came up on kept paths, and those that stood; of a sampled answer of draws, of a greedy one of its
    tokens. ranks: [depth, tokens] of a greedy answer's tokens, RANKS for one that is no child; None where sampled.
    """

    answer: Answer
    mode: str
    kept: NDArray[np.float64]
    taught: NDArray[np.bool_]
    tried: NDArray[np.float64] | None = None
    stood: NDArray[np.float64] | None = None
    ranks: NDArray[np.int64] | None = None


def judged(objective: Objective, examples: Iterable[Example], by_rank: bool = False) -> Iterator[JudgedAnswer]:
    """One for each example; the draws of sampled siblings are seeded."""
    generator = torch.Generator().manual_seed(SEED) if by_rank else None
    for example in examples:
        batch = TrainingBatch.of([example])
        judgement = objective.judge(batch, generator)
        # From the answer's first token on, which is known at anchor 0.
        first = example.answer_start - 1
        kept = judgement.kept[:, 0, first:].double().numpy()
        tokens, places = len(example.answer.token_ids), np.arange(kept.shape[1])
        taught = np.stack([places + 1 + position < tokens for position in range(objective.depth)])
        mode = mode_of(example)
        if judgement.by_rank is None:
            yield JudgedAnswer(example.answer, mode, kept, taught)
            continue
        tried, stood = (each[:, 0, first:].double().numpy() for each in judgement.by_rank)
        alive = _alive(stood, taught)[..., None]
        ranks = np.where(stood.any(-1), stood.argmax(-1), RANKS) if mode == "greedy" else None
        yield JudgedAnswer(example.answer, mode, kept, taught, (alive * tried).sum(1), (alive * stood).sum(1), ranks)


def _alive(stood: NDArray[np.float64], taught: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[depth, tokens]: the chance that the parent of each depth was kept, any of RANKS children serving before it."""
    alive = [taught[0].astype(np.float64)]
    for depth in range(1, len(taught)):
        alive.append(alive[-1] * stood[depth - 1].sum(-1) * taught[depth])
    return np.stack(alive)


def evaluate(objective: Objective, examples: Iterable[Example]) -> dict[str, dict[str, Acceptance]]:
    """Domain (and `all`) to mode to what was accepted."""
    return acceptance_of(judged(objective, examples), objective.depth)


def acceptance_of(answers: Iterable[JudgedAnswer], depth: int) -> dict[str, dict[str, Acceptance]]:
    """Domain (and `all`) to mode to what was accepted. The draws of sampled walks are seeded."""
    found: dict[str, dict[str, Acceptance]] = defaultdict(dict)
    rng = np.random.default_rng(SEED)
    for each in answers:
        counts = conditional_acceptance(each.kept, each.taught)
        tokens = each.answer.token_ids
        fresh = conditional_acceptance(each.kept, each.taught & ~_drafted_in_loop(tokens, each.kept.shape))
        walks = {k: walk(each.kept, k, len(tokens), rng) for k in CHAINS if k <= depth}
        for domain in (each.answer.question.domain, ALL):
            sums = found[domain].setdefault(each.mode, Acceptance([0.0] * depth, [0.0] * depth))
            for position, (k, r) in enumerate(counts):
                sums.kept[position] += k
                sums.reached[position] += r
            for k, r in fresh:
                sums.fresh[0] += k
                sums.fresh[1] += r
            for k, (emitted, steps) in walks.items():
                sums.emitted[k] += emitted
                sums.steps[k] += steps
            sums.loops += repeated_share(tokens)
            sums.answers += 1
    return {domain: dict(found[domain]) for domain in sorted(found)}


def _drafted_in_loop(tokens: Sequence[int], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """[depth, anchors]: whether the text repeats itself at the token that the draft there is for."""
    repeats = np.zeros(shape[1] + shape[0] + 1, dtype=bool)
    repeats[: len(tokens)] = in_loop(tokens)
    return np.stack([repeats[1 + depth : 1 + depth + shape[1]] for depth in range(shape[0])])


def summary(acceptance: dict[str, dict[str, Acceptance]], k: int) -> dict[str, float]:
    """Tokens a step of greedy chains of `k`, by domain."""
    return {
        domain: modes["greedy"].emitted[k] / modes["greedy"].steps[k]
        for domain, modes in acceptance.items()
        if "greedy" in modes and modes["greedy"].steps.get(k)
    }


def sample(examples: Sequence[int], most: int) -> list[int]:
    """Evenly spaced ones, at most `most`: for looks in between."""
    step = max(len(examples) / most, 1.0)
    return [examples[int(i * step)] for i in range(min(most, len(examples)))]
