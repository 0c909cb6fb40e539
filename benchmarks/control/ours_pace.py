"""What the production controller takes: a tick over very many cohorts and workers, and a look-up in the plan."""

from __future__ import annotations

import math
import time
from statistics import median

import numpy as np

from benchmarks.control.cost import Floats
from controlplane.decision.decide import DecisionState, Observation, decide
from controlplane.decision.plan import Plan
from controlplane.policy import CohortPolicy, Match, Policy, Speculation
from controlplane.step_columns import StepColumns
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

COHORTS, WORKERS, TICKS = 1_000, 64, 7
RUNNING, STEPS = 32, 20
"""Sequences on a worker, and steps that each active cohort made on it in the second."""

_LADDER = (0, 1, 2, 4, 6, 8)


def tick_ms() -> float:
    """Median milliseconds of a tick: every cohort active on every worker; windows merged, all decided, plan drawn.

    The first two ticks, in which every cell leaves its start, are left out.
    """
    generator = np.random.default_rng(0)
    hazards = generator.uniform(0.2, 0.95, COHORTS)
    state = DecisionState.start(_policy())
    taken = []
    for tick in range(TICKS):
        k = state.k[:, load_bucket(RUNNING)].tolist()
        windows = [_window(worker, tick, k, hazards, generator) for worker in range(WORKERS)]
        started = time.perf_counter()
        seen = Observation.of(windows, state.table.names)
        state = decide(state, seen, 1000.0 + tick).state
        state.planned()
        taken.append(time.perf_counter() - started)
    return 1e3 * median(taken[2:])


def lookup_us(sequences: int = 8, rounds: int = 20_000) -> float:
    """Microseconds of a step's look-up of K for so many sequences, in a plan that prices its positions."""
    from workers.plan_client import PlanClient  # here, so that the simulator needs nothing of the workers

    names = [f"c{i}" for i in range(COHORTS)]
    plan = Plan(
        epoch=1, version=1, issued_at=time.time(), expires_at=math.inf, policy_revision="",
        k=dict.fromkeys(names, (8,) * len(LOAD_BUCKETS)), fallback=dict.fromkeys(names, 0),
        survival=dict.fromkeys(names, (0.8, 0.6, 0.4, 0.3)), price=tuple(np.linspace(0.1, 0.9, 16)), depth=(8,) * 16,
    )  # fmt: skip
    client = PlanClient(plan, time.time)
    decoding = [_Sequence(f"c{i}") for i in range(sequences)]
    client.k_for(decoding)  # type: ignore[arg-type]
    started = time.perf_counter()
    for _ in range(rounds):
        client.k_for(decoding)  # type: ignore[arg-type]
    return 1e6 * (time.perf_counter() - started) / rounds


class _Sequence:
    """As much of a sequence as a look-up reads."""

    def __init__(self, cohort: str) -> None:
        self.request, self.cohort = self, cohort


def _policy() -> Policy:
    speculation = Speculation("goodput", 0.5, _LADDER, 2, 2, slots="ragged")
    cohorts = tuple(CohortPolicy(f"c{i}", Match(), speculation) for i in range(COHORTS))
    return Policy(1, cohorts, None, "pace", "")


def _window(worker: int, tick: int, k: list[int], hazards: Floats, generator: np.random.Generator) -> WorkerWindow:
    kept = np.minimum(generator.geometric(1.0 - hazards[:, None], (COHORTS, STEPS)) - 1, np.array(k)[:, None])
    cohorts = []
    for c, row in enumerate(kept):
        counts = np.bincount(row)
        rows = tuple(StepCount(k[c], a, False, int(n)) for a, n in enumerate(counts.tolist()) if n)
        cohorts.append(CohortWindow(f"c{c}", (StepCell(load_bucket(RUNNING), k[c], rows, 0.03 * STEPS),)))
    latency = tuple(LatencyCell(RUNNING, RUNNING * n, 5, 0.15 + 0.001 * n) for n in range(1, 10))
    profile = tuple(
        ProfileCell(n, depth, 64, 0.02 + 0.0002 * n * (depth + 1) + 0.001 * depth, 0.001 * depth)
        for n in (1, 2, 4, 8, 16, 32, 64)
        for depth in _LADDER
    )
    return WorkerWindow(
        id=WindowId(f"w{worker}", 1, tick), model="m", drafter="d@1", device="cpu",
        started_at=tick, ended_at=tick + 1.0, busy_s=0.9, energy_uj=None, energy_source="none",
        plan_version=1, plan_expired=False, plan_age_s=0.0, running=RUNNING, waiting=0, kv_used=0, kv_total=1,
        cohorts=tuple(cohorts), latency=latency, profile=profile, columns=StepColumns.of(cohorts),
    )  # fmt: skip
