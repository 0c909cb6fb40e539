"""Counts what was committed into the open window: integers and seconds only, on the engine's thread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controlplane.telemetry import (
    CohortWindow,
    EnergySource,
    LatencyCell,
    LatencyHistogram,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
    load_bucket,
)
from workers.commit import Committed
from workers.sequence import Sequence


@dataclass(slots=True)
class _OpenCohort:
    """One cohort's open window, mutable until it closes."""

    steps: Counter[tuple[int, int, int, int, bool]] = field(default_factory=Counter)
    step_seconds: defaultdict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    prefill_positions: int = 0
    draft_positions: int = 0
    first_tokens: int = 0
    started: int = 0
    finished: int = 0
    failed: int = 0
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    tpot: LatencyHistogram = field(default_factory=LatencyHistogram)

    def close(self, cohort: str) -> CohortWindow:
        counts: defaultdict[tuple[int, int], list[StepCount]] = defaultdict(list)
        for (bucket, k, drafted, accepted, ended), steps in sorted(self.steps.items()):
            counts[bucket, k].append(StepCount(drafted, accepted, ended, steps))
        cells = tuple(StepCell(*key, tuple(cell), self.step_seconds[key]) for key, cell in counts.items())
        return CohortWindow(
            cohort,
            cells,
            self.prefill_positions,
            self.draft_positions,
            self.first_tokens,
            self.started,
            self.finished,
            self.failed,
            self.ttft,
            self.tpot,
        )


@dataclass(frozen=True, slots=True)
class Gauges:
    """The worker's state as a window closes."""

    plan_version: int
    plan_expired: bool
    plan_age_s: float
    running: int
    waiting: int
    kv_used: int
    kv_total: int


class Meter:
    """Open window of one worker.

    Identity: worker, epoch (unix nanoseconds of its start), and a sequence number that rises with each closed window.
    `read_energy` gives the microjoules since its last call, None where they cannot be known, and their source.
    """

    def __init__(
        self,
        worker: str,
        epoch: int,
        model: str,
        drafter: str,
        device: str,
        clock: Callable[[], float],
        read_energy: Callable[[], tuple[int | None, EnergySource]] = lambda: (None, "none"),
    ) -> None:
        self.worker, self.model, self.drafter, self.device = worker, model, drafter, device
        self._epoch = epoch
        self._clock = clock
        self._read_energy = read_energy
        self._sequence = 0
        self._reset(clock())

    def _reset(self, now: float) -> None:
        self._started_at = now
        self._busy_s = 0.0
        self._cohorts: defaultdict[str, _OpenCohort] = defaultdict(_OpenCohort)
        self._latency: dict[tuple[int, int], tuple[int, float]] = {}

    def count_start(self, sequence: Sequence) -> None:
        self._cohorts[sequence.request.cohort].started += 1

    def count_prefill(self, sequence: Sequence, positions: int, seconds: float) -> None:
        self._cohorts[sequence.request.cohort].prefill_positions += positions
        self._busy_s += seconds

    def count_step(self, committed: Iterable[Committed], draft_positions: Iterable[int], seconds: float) -> None:
        """One step's decoding sequences, `seconds` of wall time without prefill."""
        rounds = [c for c in committed if not c.from_prefill]
        bucket = load_bucket(len(rounds))
        positions = 0
        for c, drafting in zip(rounds, draft_positions, strict=True):
            cohort = self._cohorts[c.sequence.request.cohort]
            cohort.steps[bucket, c.planned_k, c.drafted, c.accepted, c.ended] += 1
            cohort.step_seconds[bucket, c.planned_k] += seconds
            cohort.draft_positions += drafting
            positions += c.drafted + 1
        self._busy_s += seconds
        if rounds:
            steps, total = self._latency.get((len(rounds), positions), (0, 0.0))
            self._latency[len(rounds), positions] = steps + 1, total + seconds

    def count_first_token(self, sequence: Sequence, ttft_s: float) -> None:
        cohort = self._cohorts[sequence.request.cohort]
        cohort.first_tokens += 1
        cohort.ttft = cohort.ttft.observe(ttft_s)

    def count_end(self, sequence: Sequence, tpot_s: float | None, failed: bool) -> None:
        cohort = self._cohorts[sequence.request.cohort]
        cohort.finished += not failed
        cohort.failed += failed
        if tpot_s is not None:
            cohort.tpot = cohort.tpot.observe(tpot_s)

    def close(self, gauges: Gauges) -> WorkerWindow:
        """Close the open window and start the next one where it ends."""
        # A clock that was set back must not make a window of negative length: its rows would be refused.
        read = self._clock()
        now = max(read, self._started_at)
        energy_uj, source = self._read_energy()
        self._sequence += 1
        window = WorkerWindow(
            id=WindowId(self.worker, self._epoch, self._sequence),
            model=self.model,
            drafter=self.drafter,
            device=self.device,
            started_at=self._started_at,
            ended_at=now,
            # A step that ends as the window closes may have begun before it: never more busy than long.
            busy_s=min(self._busy_s, now - self._started_at),
            energy_uj=energy_uj,
            energy_source=source,
            plan_version=gauges.plan_version,
            plan_expired=gauges.plan_expired,
            plan_age_s=gauges.plan_age_s,
            running=gauges.running,
            waiting=gauges.waiting,
            kv_used=gauges.kv_used,
            kv_total=gauges.kv_total,
            cohorts=tuple(open_cohort.close(name) for name, open_cohort in sorted(self._cohorts.items())),
            latency=tuple(LatencyCell(*cell, *sums) for cell, sums in sorted(self._latency.items())),
        )
        self._reset(read)
        return window
