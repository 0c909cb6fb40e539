"""Counts what was committed into the open window: integers and seconds only, on the engine's thread."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controlplane.step_columns import StepColumns
from controlplane.telemetry import (
    CohortWindow,
    LatencyCell,
    LatencyHistogram,
    ProfileCell,
    RankCount,
    StepCell,
    StepCount,
    TenantUse,
    WindowId,
    WorkerWindow,
    load_bucket,
    merge_tenants,
)
from workers.commit import Committed
from workers.energy.base import EnergyReading
from workers.sequence import Sequence

JUMP_S = 0.5
"""A clock that differs by more from what really passed within a window was set: slewing and a late look are less."""

_Count = tuple[int, int, bool]
"""(drafted, accepted, ended) of a step."""


@dataclass(slots=True)
class _OpenCell:
    """One cohort's steps at one load, one planned K and of one shape; counts: by (tenant, drafted, accepted, ended).

    tried, kept: children by (depth, rank), of trees.
    """

    counts: Counter[tuple[str | None, int, int, bool]] = field(default_factory=Counter)
    seconds: float = 0.0
    overlap: list[float] = field(default_factory=list)
    overlap_steps: list[int] = field(default_factory=list)
    tried: Counter[tuple[int, int]] = field(default_factory=Counter)
    kept: Counter[tuple[int, int]] = field(default_factory=Counter)

    def count_ranks(self, tried: Iterable[int], accepted: int) -> None:
        """tried: siblings by depth; of the first `accepted` depths the last one tried was kept."""
        for depth, siblings in enumerate(tried):
            self.tried.update((depth, rank) for rank in range(siblings))
            if depth < accepted:
                self.kept[depth, siblings - 1] += 1

    def count(
        self,
        tenant: str | None,
        drafted: int,
        accepted: int,
        ended: bool,
        seconds: float,
        acceptance: Iterable[float],
    ) -> None:
        # The tenant is one more part of the key and no counter of its own: the step's thread pays nearly nothing.
        self.counts[tenant, drafted, accepted, ended] += 1
        self.seconds += seconds
        for position, probability in enumerate(acceptance):
            if position == len(self.overlap):
                self.overlap.append(0.0)
                self.overlap_steps.append(0)
            self.overlap[position] += probability
            self.overlap_steps[position] += 1

    def close(self, load_bucket: int, k: int, tree: tuple[int, ...] = ()) -> StepCell:
        sums: Counter[_Count] = Counter()
        for (_, drafted, accepted, ended), steps in self.counts.items():
            sums[drafted, accepted, ended] += steps
        counts = tuple(StepCount(*count, steps) for count, steps in sorted(sums.items()))
        ranks = tuple(RankCount(*place, tried, self.kept[place]) for place, tried in sorted(self.tried.items()))
        return StepCell(
            load_bucket, k, counts, self.seconds, tuple(self.overlap), tuple(self.overlap_steps), tree=tree, ranks=ranks
        )


_Shape = tuple[int, ...]
"""A tree's parents; empty for chains."""
_OpenCells = defaultdict[tuple[int, int, _Shape], _OpenCell]


@dataclass(slots=True)
class _OpenTenant:
    """What is counted of one tenant besides its steps."""

    prefill_positions: int = 0
    draft_positions: int = 0
    input_tokens: int = 0
    first_tokens: int = 0
    requests: int = 0

    def close(self, tenant: str | None, steps: Counter[_Count]) -> TenantUse:
        # In one loop: a window of many tenants is closed on the step's thread.
        verify_positions = draft_tokens = accepted_tokens = extra_tokens = 0
        for (drafted, accepted, ended), n in steps.items():
            verify_positions += n * (drafted + 1)
            draft_tokens += n * drafted
            accepted_tokens += n * accepted
            extra_tokens += n * (not ended)
        return TenantUse(
            tenant,
            prefill_positions=self.prefill_positions,
            verify_positions=verify_positions,
            draft_positions=self.draft_positions,
            draft_tokens=draft_tokens,
            accepted_tokens=accepted_tokens,
            input_tokens=self.input_tokens,
            emitted_tokens=self.first_tokens + accepted_tokens + extra_tokens,
            requests=self.requests,
        )


@dataclass(slots=True)
class _OpenCohort:
    """One cohort's open window, mutable until it closes."""

    cells: _OpenCells = field(default_factory=lambda: _OpenCells(_OpenCell))
    shadow: _OpenCells = field(default_factory=lambda: _OpenCells(_OpenCell))
    tenants: defaultdict[str | None, _OpenTenant] = field(default_factory=lambda: defaultdict(_OpenTenant))
    started: int = 0
    finished: int = 0
    failed: int = 0
    ttft: LatencyHistogram = field(default_factory=LatencyHistogram)
    tpot: LatencyHistogram = field(default_factory=LatencyHistogram)

    def close(self, cohort: str) -> CohortWindow:
        tenants = self.tenants.values()
        return CohortWindow(
            cohort,
            tuple(cell.close(*key) for key, cell in sorted(self.cells.items())),
            sum(tenant.prefill_positions for tenant in tenants),
            sum(tenant.draft_positions for tenant in tenants),
            sum(tenant.first_tokens for tenant in tenants),
            self.started,
            self.finished,
            self.failed,
            self.ttft,
            self.tpot,
            tuple(cell.close(*key) for key, cell in sorted(self.shadow.items())),
            tenants=self._close_tenants(),
        )

    def _close_tenants(self) -> tuple[TenantUse, ...]:
        steps: defaultdict[str | None, Counter[_Count]] = defaultdict(Counter)
        for cell in self.cells.values():
            for (tenant, drafted, accepted, ended), n in cell.counts.items():
                steps[tenant][drafted, accepted, ended] += n
        return merge_tenants(self.tenants[name].close(name, steps[name]) for name in {*self.tenants, *steps})


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
    clock: unix seconds, which may be set while a window is open. elapsed: seconds that are not; a window is as long as
    they say, or a clock that jumps an hour would bill an hour. `read_energy(now, is_idle)` gives the energy since its
    last call; now: by `elapsed`; is_idle: the device had nothing to do in the window, neither requests nor work of its
    own.
    """

    def __init__(
        self,
        worker: str,
        epoch: int,
        model: str,
        drafter: str,
        device: str,
        clock: Callable[[], float],
        read_energy: Callable[[float, bool], EnergyReading] = lambda now, is_idle: EnergyReading(None, "none"),
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        self.worker, self.model, self.drafter, self.device = worker, model, drafter, device
        self._epoch = epoch
        self._clock = clock
        self._elapsed = elapsed or clock
        self._read_energy = read_energy
        self._sequence = 0
        self._reset(clock(), self._elapsed())

    def _reset(self, now: float, elapsed: float) -> None:
        self._started_at, self._opened_at = now, elapsed
        self._busy_s = 0.0
        self._did_own_work = False
        self._cohorts: defaultdict[str, _OpenCohort] = defaultdict(_OpenCohort)
        self._latency: defaultdict[tuple[int, int], _OpenLatency] = defaultdict(_OpenLatency)

    def count_start(self, sequence: Sequence) -> None:
        self._cohorts[sequence.request.cohort].started += 1

    def count_prefill(self, sequence: Sequence, positions: int, seconds: float, input_tokens: int = 0) -> None:
        """One chunk of a prompt; input_tokens: the prompt's tokens with its first chunk, else (or repeated) none."""
        tenant = self._tenant(sequence)
        tenant.prefill_positions += positions
        tenant.input_tokens += input_tokens
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
            request = c.sequence.request
            cohort, tenant = self._cohorts[request.cohort], request.tenant
            shape = () if c.tree is None else c.tree.parents
            cell = cohort.cells[bucket, c.planned_k, shape]
            cell.count(tenant, c.drafted, c.accepted, c.ended, seconds, c.acceptance)
            if c.tree is not None:
                cell.count_ranks(c.tried, c.accepted)
                self._count_spine(request.cohort, bucket, c.tree.spine, c)
            if drafting:
                cohort.tenants[tenant].draft_positions += drafting
            positions += c.drafted + 1
        self._busy_s += seconds
        if rounds:
            size = self._latency[len(rounds), positions]
            size.steps += 1
            size.seconds += seconds
            size.context += context
            size.draft_seconds += draft_seconds

    def _count_spine(self, cohort: str, load_bucket: int, spine: tuple[int, ...], c: Committed) -> None:
        """Count the first path of a tree as the chain that it would have been: exactly what a shadow is.

        A first child is tried first, so it stands or falls as a chain's next token does. The rest of the tree says
        nothing of chains.
        """
        accepted = next((i for i, node in enumerate(c.nodes) if i >= len(spine) or node != spine[i]), len(c.nodes))
        ended = c.ended and accepted == len(c.nodes)
        self.count_shadow(cohort, load_bucket, len(spine), len(spine), accepted, ended)

    def count_shadow(self, cohort: str, load_bucket: int, k: int, drafted: int, accepted: int, ended: bool) -> None:
        """A draft that was scored against committed tokens and never verified: evidence, not a step."""
        self._cohorts[cohort].shadow[load_bucket, k, ()].count(None, drafted, accepted, ended, 0.0, ())

    def count_own_work(self) -> None:
        """The device computed for no request (a rehearsal, a check): nobody's time, but no stretch of idle power."""
        self._did_own_work = True

    def count_first_token(self, sequence: Sequence, ttft_s: float) -> None:
        self._tenant(sequence).first_tokens += 1
        cohort = self._cohorts[sequence.request.cohort]
        cohort.ttft = cohort.ttft.observe(ttft_s)

    def count_end(self, sequence: Sequence, tpot_s: float | None, failed: bool) -> None:
        self._tenant(sequence).requests += 1
        cohort = self._cohorts[sequence.request.cohort]
        cohort.finished += not failed
        cohort.failed += failed
        if tpot_s is not None:
            cohort.tpot = cohort.tpot.observe(tpot_s)

    def _tenant(self, sequence: Sequence) -> _OpenTenant:
        return self._cohorts[sequence.request.cohort].tenants[sequence.request.tenant]

    def close(self, gauges: Gauges) -> WorkerWindow:
        """Close the open window and start the next one where it ends."""
        read, elapsed = self._clock(), self._elapsed()
        seconds = max(elapsed - self._opened_at, 0.0)
        has_jumped = abs(read - self._started_at - seconds) > JUMP_S
        # Never of negative length, whatever was done to the clock: its rows would be refused.
        now = self._started_at + seconds if has_jumped else max(read, self._started_at)
        is_quiet = not (self._busy_s or self._cohorts or self._did_own_work or gauges.running or gauges.waiting)
        energy = self._read_energy(elapsed, is_quiet)
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
            energy_uj=energy.energy_uj,
            energy_source=energy.source,
            idle_energy_uj=energy.idle_energy_uj,
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
        self._reset(read, elapsed)
        return window
