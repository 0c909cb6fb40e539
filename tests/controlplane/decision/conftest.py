"""A small simulated world for the controller: streams of steps with known hazards, obeying the plan a second late."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from controlplane.decision.decide import CohortState, Decision, decide, k_by_load
from controlplane.policy import CohortPolicy, Guard, Match, Speculation
from controlplane.telemetry import CohortWindow, StepCell, StepCount


def make_cohort(name: str = "code", **changes: object) -> CohortPolicy:
    """The cohort of the example policy; `changes` go to the speculation or the guard, by field name."""
    guard = {key: changes.pop(key) for key in ("tolerance", "hold_s", "min_samples", "probe_every_s") if key in changes}
    base: dict[str, object] = {
        "tuner": "threshold",
        "acceptance_floor": 0.5,
        "ladder": (0, 1, 2, 4, 8),
        "start": 2,
        "fallback": 2,
    }
    return CohortPolicy(name, Match(), Speculation(**{**base, **changes}), guard=Guard(**guard))  # type: ignore[arg-type]


def make_window(
    counts: Sequence[tuple[int, int, bool, int]], *, cohort: str = "code", bucket: int = 0, k: int | None = None
) -> CohortWindow:
    """One window with the given (drafted, accepted, ended, steps); k defaults to the most drafted."""
    planned = max((c[0] for c in counts), default=0) if k is None else k
    cell = StepCell(bucket, planned, tuple(StepCount(*c) for c in sorted(counts)), 0.05 * sum(c[3] for c in counts))
    return CohortWindow(cohort, (cell,))


@dataclass
class World:
    """One cohort at one load bucket, a second a tick. hazards: second -> conditional acceptance by position."""

    cohort: CohortPolicy
    hazards: Callable[[int], Sequence[float]]
    steps_per_s: int = 25
    silence: float = 0.0
    seed: int = 0
    bucket: int = 0
    state: CohortState = field(default_factory=CohortState)
    ks: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    steps_at: Counter[int] = field(default_factory=Counter)

    def run(self, seconds: int) -> World:
        rng = random.Random(self.seed + len(self.ks))
        for _ in range(seconds):
            now = len(self.ks)
            late_k = self.ks[-1] if self.ks else self.cohort.speculation.start
            counts = Counter(self._step(rng, late_k, self.hazards(now)) for _ in range(self.steps_per_s))
            self.steps_at[late_k] += self.steps_per_s
            window = make_window(
                [(drafted, accepted, False, n) for (drafted, accepted), n in counts.items()],
                cohort=self.cohort.name,
                bucket=self.bucket,
                k=late_k,
            )
            made, self.state = decide(self.cohort, self.state, window, float(now))
            self.decisions += made
            self.ks.append(k_by_load(self.cohort, self.state)[self.bucket])
        return self

    def _step(self, rng: random.Random, k: int, hazards: Sequence[float]) -> tuple[int, int]:
        if k == 0 or rng.random() < self.silence:
            return 0, 0
        accepted = 0
        while accepted < k and rng.random() < hazards[accepted]:
            accepted += 1
        return k, accepted

    @property
    def changes(self) -> int:
        return sum(a != b for a, b in zip(self.ks, self.ks[1:], strict=False))


@pytest.fixture
def cohort_policy() -> Callable[..., CohortPolicy]:
    return make_cohort


@pytest.fixture
def window() -> Callable[..., CohortWindow]:
    return make_window


@pytest.fixture
def world() -> type[World]:
    return World
