"""Eight sequences on a small CPU with an n-gram drafter, step times as measured there, texts that draft little or well.

The drafter is silent for most sequences of a step, its drafts are short of what the profile timed, and the profile was
taken while nothing else ran. What acceptance alone would say is wrong here for every text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from controlplane.decision.plan import Plan
from controlplane.policy import CohortPolicy
from controlplane.telemetry import CohortWindow, LatencyCell, ProfileCell, StepCell, StepCount, load_bucket

RUNNING = 8
ALONE_MS = {0: 24.0, 1: 26.0, 2: 27.0, 4: 29.0, 8: 36.0}
LOADED_MS = {0: 65.0, 1: 82.0, 2: 89.0, 4: 108.0, 8: 177.0}
FEW_MS = 75.0
"""A step in which a single sequence has a draft: what verifying costs before its positions do."""

Drafts = Sequence[int]


@dataclass(frozen=True)
class Text:
    """silent: share of a sequence's steps without a draft. first, deeper: conditional acceptance."""

    silent: float
    first: float
    deeper: float

    def draw(self, k: int, rng: np.random.Generator) -> tuple[int, int]:
        """(drafted, accepted) of one sequence."""
        if k == 0 or rng.random() < self.silent:
            return 0, 0
        accepted = 0
        while accepted < k and rng.random() < (self.deeper if accepted else self.first):
            accepted += 1
        return k, accepted


CODE, PROSE, STORY = Text(0.4, 0.65, 0.5), Text(0.8, 0.35, 0.4), Text(0.85, 0.3, 0.3)


def by_positions(drafts: Drafts) -> float:
    """Milliseconds: what all draft tokens together cost."""
    mean = sum(drafts) / RUNNING
    return float(np.interp(mean, [0, 1, 2, 4, 8], [FEW_MS, 82, 89, 108, 177])) if mean else LOADED_MS[0]


def by_the_longest(drafts: Drafts) -> float:
    """Milliseconds where every sequence is padded to the longest draft, which no profile of full drafts shows."""
    return float(np.interp(max(drafts), list(LOADED_MS), list(LOADED_MS.values())))


def profiled(factor: dict[int, float]) -> list[ProfileCell]:
    """A worker's profile; factor: by K, what it says over what is true."""
    cells = []
    for n in (1, 2, 4, 8):
        for k in LOADED_MS:
            ms = ALONE_MS[k] + (LOADED_MS[k] - ALONE_MS[k]) * (n - 1) / (RUNNING - 1)
            cells.append(ProfileCell(n, k, 64, factor.get(k, 1.0) * ms / 1e3, 2e-7 * k))
    return cells


EXACT: dict[int, float] = {}
DEEP_TOO_CHEAP = {1: 0.9, 2: 0.85, 4: 0.8, 8: 0.7}
PLAIN_TOO_DEAR = {0: 1.25}


def fixed(text: Text, k: int, cost: Callable[[Drafts], float]) -> float:
    """Tokens per second under one K."""
    rng = np.random.default_rng(1)
    tokens = seconds = 0.0
    for _ in range(1200):
        steps = [text.draw(k, rng) for _ in range(RUNNING)]
        tokens += RUNNING + sum(accepted for _, accepted in steps)
        seconds += cost([drafted for drafted, _ in steps]) / 1e3
    return tokens / seconds


@dataclass
class Served:
    """tokens_per_s: of the later half of the seconds. ks: by second, as drafted."""

    tokens_per_s: float
    ks: list[int]


def served(
    loop: Any,
    cohort: CohortPolicy,
    text: Text,
    profile: list[ProfileCell],
    cost: Callable[[Drafts], float],
    seconds: int,
) -> Served:
    """Under the controller, a tick and a new plan every second."""
    rng, control = np.random.default_rng(0), loop(cohort)
    ks, tokens, spent = [], 0.0, 0.0
    for second in range(seconds):
        state = control.state
        plan = Plan(
            epoch=1, version=second + 1, issued_at=second, expires_at=second + 10, k=state.k_by_load(), fallback={},
            policy_revision="", survival=state.survival(), price=state.price(), depth=state.depth(),
            probing=state.probing(),
        )  # fmt: skip
        k = plan.k_for(cohort.name, RUNNING, second)
        counts: Counter[tuple[int, int]] = Counter()
        latency: dict[int, tuple[int, float]] = {}
        took = 0.0
        while took < 1.0:
            steps = [text.draw(k, rng) for _ in range(RUNNING)]
            drafts = [drafted for drafted, _ in steps]
            step = cost(drafts) / 1e3 * float(np.exp(rng.normal(0.0, 0.05)))
            before = latency.get(RUNNING + sum(drafts), (0, 0.0))
            latency[RUNNING + sum(drafts)] = (before[0] + 1, before[1] + step)
            counts.update(steps)
            took += step
            if second >= seconds // 2:
                tokens, spent = tokens + RUNNING + sum(accepted for _, accepted in steps), spent + step
        rows = tuple(StepCount(drafted, accepted, False, n) for (drafted, accepted), n in sorted(counts.items()))
        window = CohortWindow(cohort.name, (StepCell(load_bucket(RUNNING), k, rows, took * RUNNING),))
        cells = [LatencyCell(RUNNING, positions, n, s) for positions, (n, s) in latency.items()]
        control.tick(float(second + 1), window, profile=() if second else profile, latency=cells)
        ks.append(k)
    return Served(tokens / spent, ks)


@pytest.fixture
def cohort(cohort_policy: Any) -> CohortPolicy:
    return cohort_policy(tuner="goodput", slots="ragged", start=2, fallback=0)


@pytest.mark.parametrize("factor", [EXACT, DEEP_TOO_CHEAP])
@pytest.mark.parametrize("text", [CODE, STORY])
def test_under_load_every_text_has_nearly_what_its_best_fixed_k_brings(
    loop: Any, cohort: CohortPolicy, text: Text, factor: dict[int, float]
) -> None:
    best = max(fixed(text, k, by_positions) for k in LOADED_MS)
    assert served(loop, cohort, text, profiled(factor), by_positions, 40).tokens_per_s >= 0.97 * best


@pytest.mark.parametrize("text", [STORY, PROSE])
def test_a_plain_step_that_was_profiled_too_dear_is_found_out_by_the_silent_steps(
    loop: Any, cohort: CohortPolicy, text: Text
) -> None:
    """No plain step is planned; but where every sequence is silent, one is made."""
    ks = served(loop, cohort, text, profiled(PLAIN_TOO_DEAR), by_positions, 50).ks
    assert ks[25:].count(0) >= 20  # of 25; probes draft


def test_a_depth_that_turns_out_dear_does_not_close_the_way_back(loop: Any, cohort: CohortPolicy) -> None:
    text = Text(0.7, 0.6, 0.8)
    best = max(fixed(text, k, by_the_longest) for k in LOADED_MS)
    found = served(loop, cohort, text, profiled(EXACT), by_the_longest, 60)
    assert sum(k > 4 for k in found.ks) < 25
    assert found.tokens_per_s >= 0.95 * best
