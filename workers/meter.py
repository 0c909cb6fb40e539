"""Counts what was committed into the open window: integers and seconds only, on the engine's thread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controlplane.step_columns import StepColumns
from controlplane.telemetry import (
    CohortWindow,
    EnergySource,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
    load_bucket,
)
from workers.commit import Committed
from workers.sequence import Sequence


@dataclass(slots=True)
class _OpenCell:
    """One cohort's steps at one load and one planned K."""

    counts: Counter[tuple[int, int, bool]] = field(default_factory=Counter)
    seconds: float = 0.0
    overlap: list[float] = field(default_factory=list)
    overlap_steps: list[int] = field(default_factory=list)

    def count(self, drafted: int, accepted: int, ended: bool, seconds: float, acceptance: Iterable[float]) -> None:
        self.counts[drafted, accepted, ended] += 1
        self.seconds += seconds
        for position, probability in enumerate(acceptance):
            if position == len(self.overlap):
                self.overlap.append(0.0)
                self.overlap_steps.append(0)
            self.overlap[position] += probability
            self.overlap_steps[position] += 1

    def close(self, load_bucket: int, k: int) -> StepCell:
        counts = tuple(StepCount(*count, steps) for count, steps in sorted(self.counts.items()))
        return StepCell(load_bucket, k, counts, self.seconds, tuple(self.overlap), tuple(self.overlap_steps))


_OpenCells = defaultdict[tuple[int, int], _OpenCell]


@dataclass(slots=True)
class _OpenCohort:
    """One cohort's open window, mutable until it closes."""

    cells: _OpenCells = field(default_factory=lambda: _OpenCells(_OpenCell))
    shadow: _OpenCells = field(default_factory=lambda: _OpenCells(_OpenCell))
    prefill_positions: int = 0
    draft_positions: int = 0
    first_tokens: int = 0
    started: int = 0
    finished: int = 0
    failed: int = 0
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    tpot: LatencyHistogram = field(default_factory=LatencyHistogram)

    def close(self, cohort: str) -> CohortWindow:
        return CohortWindow(
            cohort,
            tuple(cell.close(*key) for key, cell in sorted(self.cells.items())),
            self.prefill_positions,
            self.draft_positions,
            self.first_tokens,
            self.started,
            self.finished,
            self.failed,
            self.ttft,
            self.tpot,
            tuple(cell.close(*key) for key, cell in sorted(self.shadow.items())),
        )


@dataclass(slots=True)
class _OpenLatency:
    """Steps of one size, summed."""

    steps: int = 0
    seconds: float = 0.0
    context: int = 0
    draft_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """The worker's state as a window closes; profile: its step times, where this window is to carry them."""

    plan_version: int
    plan_expired: bool
    plan_age_s: float
    running: int
    waiting: int
    kv_used: int
    kv_total: int
    profile: tuple[ProfileCell, ...] = ()


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
        self._latency: defaultdict[tuple[int, int], _OpenLatency] = defaultdict(_OpenLatency)

    def count_start(self, sequence: Sequence) -> None:
        self._cohorts[sequence.request.cohort].started += 1

    def count_prefill(self, sequence: Sequence, positions: int, seconds: float) -> None:
        self._cohorts[sequence.request.cohort].prefill_positions += positions
        self._busy_s += seconds

    def count_step(
        self,
        committed: Iterable[Committed],
        draft_positions: Iterable[int],
        seconds: float,
        draft_seconds: float = 0.0,
        context: int = 0,
    ) -> None:
        """One step's decoding sequences: `seconds` of wall time without prefill, `draft_seconds` of them drafting.

        context: tokens that the decoding sequences had before the step, together.
        """
        rounds = [c for c in committed if not c.from_prefill]
        bucket = load_bucket(len(rounds))
        positions = 0
        for c, drafting in zip(rounds, draft_positions, strict=True):
            cohort = self._cohorts[c.sequence.request.cohort]
            cohort.cells[bucket, c.planned_k].count(c.drafted, c.accepted, c.ended, seconds, c.acceptance)
            cohort.draft_positions += drafting
            positions += c.drafted + 1
        self._busy_s += seconds
        if rounds:
            cell = self._latency[len(rounds), positions]
            cell.steps += 1
            cell.seconds += seconds
            cell.context += context
            cell.draft_seconds += draft_seconds

    def count_shadow(self, cohort: str, load_bucket: int, k: int, drafted: int, accepted: int, ended: bool) -> None:
        """A draft that was scored against committed tokens and never verified: evidence, not a step."""
        self._cohorts[cohort].shadow[load_bucket, k].count(drafted, accepted, ended, 0.0, ())

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
        cohorts = tuple(open_cohort.close(name) for name, open_cohort in sorted(self._cohorts.items()))
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
            cohorts=cohorts,
            latency=tuple(
                LatencyCell(*size, cell.steps, cell.seconds, cell.context, cell.draft_seconds)
                for size, cell in sorted(self._latency.items())
            ),
            profile=gauges.profile,
            # Here, once, and not in the controller, which would have to do it for every worker.
            columns=StepColumns.of(cohorts),
        )
        self._reset(read)
        return window
