"""The production controller as an arm: its decide(), guard and plan, ticking once a second of simulated time."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from benchmarks.control.arms.base import Setting
from benchmarks.control.cost import Ints
from benchmarks.control.ours_estimator import Tracker as tracker
from benchmarks.control.ours_estimator import fit
from benchmarks.control.ours_pace import lookup_us, tick_ms
from benchmarks.control.world import StepOutcome
from controlplane.decision.batch_choice import BatchChoice, Counts
from controlplane.decision.decide import DecisionState, Observation, decide
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.telemetry import (
    LOAD_BUCKETS,
    CohortWindow,
    LatencyCell,
    ProfileCell,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
    load_bucket,
)

__all__ = ["Ours", "fit", "lookup_us", "tick_ms", "tracker"]

START_AT = 1_800_000_000.0


def policy_of(setting: Setting, speculation: str) -> Policy:
    """A policy of the profile's cohorts with the shipped guard; the ladder is the profile's."""
    ladder = list(setting.profile.ladder)
    start = min(ladder, key=lambda k: abs(k - 2))
    lines = ["version: 1", "cohorts:"]
    names = [cohort.name for cohort in setting.profile.cohorts]
    for i, name in enumerate(names):
        match = "{}" if i == len(names) - 1 else f"{{headers: {{x-cohort: {name}}}}}"
        lines += [
            f"  - name: {name}",
            f"    match: {match}",
            f"    speculation: {{{speculation}, ladder: {ladder}, start: {start}, fallback: {ladder[0]}}}",
        ]
    return parse_policy("\n".join(lines))


class Ours:
    """What a worker under our controller does: K from the newest plan, a window and a tick every second."""

    name = "kadence"

    def __init__(self, setting: Setting, speculation: str = "tuner: goodput, slots: ragged") -> None:
        self._per_tick = setting.profile.steps_per_second
        self._names = tuple(cohort.name for cohort in setting.profile.cohorts)
        self.state = DecisionState.start(policy_of(setting, speculation))
        self._profile = _measured(setting)
        self._steps: defaultdict[tuple[int, int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
        self._seconds: defaultdict[tuple[int, int, int], float] = defaultdict(float)
        self._latency: defaultdict[tuple[int, int], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        self._context = setting.profile.cost.context
        self._ticks = 0
        self._windows = 0
        self._padded = setting.cost.padded
        self._standing: dict[Counts, dict[str, int]] = {}
        self._known: dict[tuple[int, ...], Ints] = {}
        self._plan = self._draw()

    def choose(self, t: int, running: Ints) -> Ints:
        """K by cohort for step t."""
        counts = tuple(running.tolist())
        k = self._known.get(counts)
        if k is None:
            there = {name: n for name, n in zip(self._names, counts, strict=True) if n}
            chosen = self._plan.k_for(there, START_AT + self._ticks)
            k = self._known[counts] = np.array([chosen.get(name, 0) for name in self._names])
        return k

    def observe(self, t: int, outcome: StepOutcome) -> None:
        """Count the step; close the window and tick when a second of steps is full."""
        running = int(outcome.sequences.sum())
        bucket, positions = load_bucket(running), 0
        for c, (n, k) in enumerate(zip(outcome.sequences.tolist(), outcome.k.tolist(), strict=True)):
            if not n:
                continue
            key = (c, bucket, k)
            counts = self._steps[key]
            for drafted, accepted, sequences in _drafts(outcome, c, k):
                counts[drafted, accepted] += sequences
                positions += sequences * (drafted + 1)
            self._seconds[key] += n * outcome.seconds
        cell = self._latency[running, positions]
        cell[0] += 1
        cell[1] += outcome.seconds
        cell[2] += outcome.draft_seconds
        if (t + 1) % self._per_tick == 0:
            self._tick()

    def _tick(self) -> None:
        self._ticks += 1
        now = START_AT + self._ticks
        tick = decide(self.state, Observation.of([self._window(now)], self._names), now)
        self.state = tick.state
        self._plan = self._draw()

    def _window(self, now: float) -> WorkerWindow:
        by_cohort: defaultdict[int, list[StepCell]] = defaultdict(list)
        for key in sorted(self._steps):
            c, bucket, k = key
            rows = tuple(StepCount(d, a, False, n) for (d, a), n in sorted(self._steps[key].items()))
            by_cohort[c].append(StepCell(bucket, k, rows, self._seconds[key]))
        cohorts = tuple(CohortWindow(self._names[c], tuple(cells)) for c, cells in by_cohort.items())
        latency = tuple(
            LatencyCell(n, positions, steps, seconds, self._context * n * steps, drafting)  # type: ignore[arg-type]
            for (n, positions), (steps, seconds, drafting) in self._latency.items()
        )
        self._windows += 1
        window = WorkerWindow(
            id=WindowId("simulated", 1, self._windows),
            model="simulated", drafter="simulated@1", device="simulated",
            started_at=now - 1.0, ended_at=now, busy_s=1.0, energy_uj=None, energy_source="none",
            plan_version=self._ticks, plan_expired=False, plan_age_s=0.0, running=0, waiting=0, kv_used=0, kv_total=1,
            cohorts=cohorts, latency=latency, profile=self._profile if self._windows == 1 else (),
        )  # fmt: skip
        self._steps.clear()
        self._seconds.clear()
        self._latency.clear()
        return window

    def _draw(self) -> BatchChoice:
        """What a worker makes of the plan."""
        state, now = self.state, START_AT + self._ticks
        plan = Plan(
            epoch=1, version=self._ticks + 1, issued_at=now, expires_at=now + 10.0, fallback={},
            policy_revision=state.table.revision, **state.planned(),
        )  # fmt: skip
        self._known.clear()
        return BatchChoice(plan, padded=self._padded, standing=self._standing)


def _drafts(outcome: StepOutcome, cohort: int, k: int) -> list[tuple[int, int, int]]:
    """(drafted, accepted, sequences) of a cohort's step."""
    if outcome.drafted is None:
        kept = enumerate(outcome.counts[cohort, : k + 1].tolist())
        return [(k, accepted, sequences) for accepted, sequences in kept if sequences]
    joint = outcome.drafted[cohort]
    return [(int(d), int(a), int(joint[d, a])) for d, a in zip(*np.nonzero(joint), strict=True)]


def _measured(setting: Setting) -> tuple[ProfileCell, ...]:
    """The profile that a worker takes at its start."""
    generator = setting.generator("profile")
    return tuple(
        ProfileCell(n, k, int(setting.profile.cost.context), *setting.cost.measured(n, k, generator))
        for n in LOAD_BUCKETS
        for k in setting.profile.ladder
    )
