"""What the ledger costs on an engine's thread: counting, closing windows and handing reports over, with the real parts.

The steps are not computed: their counting is, with requests that come and go as in a worker at its own rate.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from benchmarks.ledger.traffic import SEQUENCES, STEP_S, STEPS_PER_REQUEST
from controlplane.decision.plan import Plan
from controlplane.telemetry import Report, RequestRecord
from workers.commit import Committed
from workers.meter import Gauges, Meter
from workers.reporter import Reporter
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.worker_totals import WorkerTotals

K, PROMPT_TOKENS, CONTEXT = 4, 24, 4096
COHORTS = ("chat", "code", "json", "default")
TENANTS = 100
KEPT = 8
"""Reports that are kept for the recording; a worker keeps none once they are sent."""
GAUGES = Gauges(
    plan_version=1, plan_expired=False, plan_age_s=0.5, running=SEQUENCES, waiting=0, kv_used=0, kv_total=CONTEXT
)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Of all steps, milliseconds: the thread's own time, mean and per step of 60 ms in percent; and by the wall clock.

    Neighbours on the machine are in the wall clock's figures. max_ms is of a step that closed a window.
    """

    mean_ms: float
    p99_ms: float
    max_ms: float
    steps: int

    @property
    def percent(self) -> float:
        return 100.0 * self.mean_ms / 1000.0 / STEP_S


@dataclass
class EngineThread:
    """The counting of one worker's engine. Its clock moves by a step at a time."""

    seed: int = 0
    now: float = 1_790_000_000.0
    reports: deque[Report] = field(default_factory=lambda: deque(maxlen=KEPT))

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._meter = Meter("worker-0", 1, "model", "ngram@1", "bench-gpu", lambda: self.now)
        self._records: list[RequestRecord] = []
        self._totals = WorkerTotals()
        self._started = 0
        self._running = [self._sequence() for _ in range(SEQUENCES)]
        self._closes_at = self.now + 1.0

    def step(self, reporter: Reporter) -> tuple[int, int]:
        """One step; nanoseconds that its counting took, of this thread and by the wall clock."""
        per_step = SEQUENCES // STEPS_PER_REQUEST
        coming, going = [self._sequence() for _ in range(per_step)], self._running[:per_step]
        committed = [self._committed(sequence) for sequence in self._running]
        positions = [c.drafted for c in committed]
        self.now += STEP_S
        wall, own = time.perf_counter_ns(), time.thread_time_ns()
        for sequence in coming:
            self._meter.count_start(sequence)
            self._meter.count_prefill(sequence, PROMPT_TOKENS, 0.001, PROMPT_TOKENS)
            self._meter.count_first_token(sequence, 0.08)
        self._meter.count_step(committed, positions, STEP_S - 0.002, 0.004, SEQUENCES * PROMPT_TOKENS)
        for sequence in going:
            record = sequence.record(self.now, "length", self._meter)
            self._meter.count_end(sequence, record.tpot_s, failed=False)
            self._records.append(record)
        if self.now >= self._closes_at:
            report = Report(self._meter.close(GAUGES), tuple(self._records))
            reporter.put(report)
            self._totals.add(report.window, report.canary)
            self._records = []
            self._closes_at += 1.0
            self.reports.append(report)
        spent = time.thread_time_ns() - own, time.perf_counter_ns() - wall
        self._running = [*self._running[per_step:], *coming]
        return spent

    def _sequence(self) -> Sequence:
        self._started += 1
        cohort, tenant = self._random.choice(COHORTS), f"tenant-{self._random.randrange(TENANTS)}"
        request = EngineRequest(
            request_id=f"request-{self._started}",
            prompt_token_ids=(1,) * PROMPT_TOKENS,
            sampling=SamplingParams(max_tokens=64),
            cohort=cohort,
            tenant=tenant,
            route="/v1/completions",
            created_at=self.now,
        )
        # Nothing that counts looks at text.
        sequence = Sequence(request, [1] * (PROMPT_TOKENS + 13), 0, cast(Any, None))
        sequence.spec_steps, sequence.draft_tokens, sequence.accepted_tokens = STEPS_PER_REQUEST, 16, 8
        sequence.first_token_at, sequence.prefill_positions = self.now + 0.08, PROMPT_TOKENS
        sequence.verify_positions, sequence.draft_positions, sequence.max_k = 20, 16, K
        return sequence

    def _committed(self, sequence: Sequence) -> Committed:
        drafted = self._random.choice((0, 2, K, K))
        accepted = self._random.randint(0, drafted)
        acceptance = (0.9, 0.8, 0.7, 0.6)[: min(accepted + 1, drafted)]
        return Committed(sequence, (1,) * (accepted + 1), "", drafted, accepted, False, False, K, None, acceptance)


def measure_steps(steps: int, plan: Plan, seed: int = 0) -> tuple[StepCost, list[Report]]:
    """The cost over so many steps, after a tenth of them more as a warm-up, and the reports of whole seconds."""
    thread = EngineThread(seed)
    reporter = Reporter(lambda reports: plan, lambda plan: None)
    try:
        for _ in range(steps // 10):
            thread.step(reporter)
        spent = [thread.step(reporter) for _ in range(steps)]
    finally:
        reporter.stop()
    own, wall = [each[0] for each in spent], sorted(each[1] for each in spent)
    cost = StepCost(_ms(sum(own) / steps), _ms(wall[int(0.99 * (steps - 1))]), _ms(wall[-1]), steps)
    return cost, list(thread.reports)


def _ms(ns: float) -> float:
    return round(ns / 1e6, 4)
