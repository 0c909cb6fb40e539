"""How often a drafter's tokens would be kept: by domain, greedy and sampled, with the share of loops beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workers.training.batches import TrainingBatch
from workers.training.features import Example
from workers.training.objective import GREEDY_BELOW, Objective
from workers.training.walk import conditional_acceptance, repeated_share, walk

CHAINS = (1, 2, 3, 4, 6, 8)
"""K of the chains whose tokens a step are reported."""

ALL = "all"
SEED = 0


@dataclass(slots=True)
class Acceptance:
    """Sums over the answers of one domain and mode. kept, reached: drafts by position. loops: their shares."""

    kept: list[float]
    reached: list[float]
    emitted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    steps: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    loops: float = 0.0
    answers: int = 0

    @property
    def by_position(self) -> list[float]:
        """Conditional acceptance of each position that any draft reached."""
        return [kept / reached for kept, reached in zip(self.kept, self.reached, strict=True) if reached]

    def report(self) -> dict[str, object]:
        """As `train evaluate --json` gives it."""
        return {
            "acceptance_by_position": [round(each, 4) for each in self.by_position],
            "acceptance_length": {k: round(self.emitted[k] / steps, 4) for k, steps in self.steps.items() if steps},
            "repeated_8gram_share": round(self.loops / self.answers, 4) if self.answers else None,
            "answers": self.answers,
        }


def mode_of(example: Example) -> str:
    """greedy, or the temperature that the answer was sampled at, such as t0.7."""
    temperature = example.answer.question.temperature
    return "greedy" if temperature < GREEDY_BELOW else f"t{temperature:g}"


def evaluate(objective: Objective, examples: Iterable[Example]) -> dict[str, dict[str, Acceptance]]:
    """Domain (and `all`) to mode to what was accepted. The draws of sampled walks are seeded."""
    found: dict[str, dict[str, Acceptance]] = defaultdict(dict)
    rng = np.random.default_rng(SEED)
    for example in examples:
        kept, taught = anchors(objective, example)
        counts = conditional_acceptance(kept, taught)
        tokens = example.answer.token_ids
        walks = {k: walk(kept, k, len(tokens), rng) for k in CHAINS if k <= objective.depth}
        for domain in (example.answer.question.domain, ALL):
            empty = Acceptance([0.0] * objective.depth, [0.0] * objective.depth)
            sums = found[domain].setdefault(mode_of(example), empty)
            for position, (k, r) in enumerate(counts):
                sums.kept[position] += k
                sums.reached[position] += r
            for k, (emitted, steps) in walks.items():
                sums.emitted[k] += emitted
                sums.steps[k] += steps
            sums.loops += repeated_share(tokens)
            sums.answers += 1
    return {domain: dict(found[domain]) for domain in sorted(found)}


def anchors(objective: Objective, example: Example) -> tuple[np.ndarray, np.ndarray]:
    """(kept, taught), [depth, tokens] each, from the answer's first token on, which is known at anchor 0."""
    batch = TrainingBatch.of([example])
    kept = objective.acceptance(batch)[:, 0, example.answer_start - 1 :].double().numpy()
    tokens = len(example.answer.token_ids)
    places = np.arange(kept.shape[1])
    taught = np.stack([places + 1 + position < tokens for position in range(objective.depth)])
    return kept, taught


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
