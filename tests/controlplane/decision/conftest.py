"""A small simulated world for the controller: streams of steps with known hazards, obeying the plan a second late."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from controlplane.decision.decide import Decision, DecisionState, Observation, Rates, Tick, decide
from controlplane.decision.observation import Evidence
from controlplane.policy import CohortPolicy, Guard, Match, Policy, Slo, Speculation
from controlplane.telemetry import CohortWindow, LatencyCell, ProfileCell, StepCell, StepCount, WindowId, WorkerWindow


def make_cohort(name: str = "code", **changes: object) -> CohortPolicy:
    """The cohort of the example policy; `changes` go to the speculation or the guard, by field name."""
    guard = {key: changes.pop(key) for key in ("tolerance", "hold_s", "min_samples", "probe_every_s") if key in changes}
    slo = Slo(**{key: changes.pop(key) for key in ("tpot_p95_s", "ttft_p95_s") if key in changes})  # type: ignore[arg-type]
    base: dict[str, object] = {
        "tuner": "threshold",
        "acceptance_floor": 0.5,
        "ladder": (0, 1, 2, 4, 8),
        "start": 2,
        "fallback": 2,
    }
    return CohortPolicy(name, Match(), Speculation(**{**base, **changes}), slo=slo, guard=Guard(**guard))  # type: ignore[arg-type]


def make_window(
    counts: Sequence[tuple[int, int, bool, int]], *, cohort: str = "code", bucket: int = 0, k: int | None = None
) -> CohortWindow:
    """One window with the given (drafted, accepted, ended, steps); k defaults to the most drafted."""
    planned = max((c[0] for c in counts), default=0) if k is None else k
    cell = StepCell(bucket, planned, tuple(StepCount(*c) for c in sorted(counts)), 0.05 * sum(c[3] for c in counts))
    return CohortWindow(cohort, (cell,))


class Loop:
    """Ticks of the production decide() over a few cohorts, by hand.

    tick: the windows of all of them in one second, with what else a worker reports.
    """

    def __init__(self, *cohorts: CohortPolicy, revision: str = "abc", drafter: str = "ngram@1") -> None:
        self.state = DecisionState.start(Policy(1, cohorts, None, revision, ""))
        self.drafter = drafter
        self.last: Tick | None = None
        self._windows = 0

    def tick(
        self,
        now: float,
        *windows: CohortWindow,
        profile: Sequence[ProfileCell] = (),
        latency: Sequence[LatencyCell] = (),
        rates: Rates | None = None,
        joules: float | None = None,
    ) -> tuple[Decision, ...]:
        seen = Observation.of([self.window(now, windows, profile, latency, joules)] if windows else [], self.names)
        self.last = decide(self.state, seen, now, rates or Rates())
        self.state = self.last.state
        return self.last.decisions

    def window(
        self,
        now: float,
        windows: Sequence[CohortWindow],
        profile: Sequence[ProfileCell] = (),
        latency: Sequence[LatencyCell] = (),
        joules: float | None = None,
        worker: str = "w",
    ) -> WorkerWindow:
        self._windows += 1
        return WorkerWindow(
            id=WindowId(worker, 1, self._windows), model="m", drafter=self.drafter, device="cpu",
            started_at=now - 1.0, ended_at=now, busy_s=0.9,
            energy_uj=None if joules is None else round(joules * 1e6),
            energy_source="none" if joules is None else "counter",
            plan_version=1, plan_expired=False, plan_age_s=0.0, running=1, waiting=0, kv_used=0, kv_total=1,
            cohorts=tuple(windows), latency=tuple(latency), profile=tuple(profile),
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        return self.state.table.names

    def k(self, cohort: str = "code") -> tuple[int, ...]:
        """K by load bucket, as the plan would say it."""
        return self.state.k_by_load()[cohort]


@dataclass
class World:
    """One cohort at one load bucket, a second a tick. hazards: second -> conditional acceptance by position."""

    cohort: CohortPolicy
    hazards: Callable[[int], Sequence[float]]
    steps_per_s: int = 25
    silence: float = 0.0
    seed: int = 0
    bucket: int = 0
    loop: Loop = field(init=False)
    ks: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    steps_at: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.loop = Loop(self.cohort)

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
            self.decisions += self.loop.tick(float(now), window)
            self.ks.append(self.loop.k(self.cohort.name)[self.bucket])
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


def make_observation(*windows: CohortWindow, names: Sequence[str] = ("code",)) -> Observation:
    """What one worker's window of these cohorts says to a policy with cohorts of these `names`."""
    return Observation.of([Loop(make_cohort()).window(1.0, windows)], names)


def make_evidence(*counts: tuple[int, int, bool, int], k: int | None = None) -> Evidence:
    """[1, MAX_K]: of one cell of one cohort with the given (drafted, accepted, ended, steps) under the planned `k`."""
    return make_observation(make_window(counts, k=k)).cells.evidence


@pytest.fixture(scope="session")
def observed() -> Callable[..., Observation]:
    return make_observation


@pytest.fixture(scope="session")
def evidence() -> Callable[..., Evidence]:
    return make_evidence


@pytest.fixture(scope="session")
def cohort_policy() -> Callable[..., CohortPolicy]:
    return make_cohort


@pytest.fixture(scope="session")
def window() -> Callable[..., CohortWindow]:
    return make_window


@pytest.fixture(scope="session")
def loop() -> type[Loop]:
    return Loop


@pytest.fixture(scope="session")
def world() -> type[World]:
    return World
