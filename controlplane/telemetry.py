"""What workers saw: frozen values that travel from the workers to the controller and into the ledger.

Everything here is a sum or a histogram, never an average, so that merging windows loses nothing. The identity of a
window (worker, epoch, sequence) is also its idempotency key: reporting it twice changes nothing.

Counting follows the contract of the project: the token that prefill yields belongs to no step; a *spec step* is a
draft-verify round with at least one draft token; a *plain step* drafted nothing; everything is counted after trimming
at EOS, stop or max_tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import add
from typing import TYPE_CHECKING, Literal, NamedTuple

from controlplane.alerts import CanaryCheck

if TYPE_CHECKING:
    from controlplane.step_columns import StepColumns

LOAD_BUCKETS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds, in running sequences on one worker, of the load buckets that a plan has a K for."""

PRICE_LOADS: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of running sequences at which a plan prices draft positions: finer than the buckets, which it includes."""

MAX_K = 16
MAX_DRAFT = 1 << 30
"""More than any step drafts."""
"""Deepest draft that a ladder may ask for; positions are counted from 0 to MAX_K - 1."""

LATENCY_BOUNDS_S: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1,
    0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds of the latency histograms, seconds; one overflow bucket follows."""

EnergySource = Literal["counter", "power", "rapl", "model", "none"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


def load_bucket(running: int) -> int:
    """Index into LOAD_BUCKETS of the smallest bucket that holds `running` sequences (the last one holds the rest)."""
    return min(bisect_left(LOAD_BUCKETS, max(running, 1)), len(LOAD_BUCKETS) - 1)


class WindowId(NamedTuple):
    """Which window: worker name, the worker's start (epoch), and a sequence number within it."""

    worker: str
    epoch: int
    sequence: int


class StepCount(NamedTuple):
    """How many steps drafted `drafted` tokens and kept `accepted` of them.

    `ended` says that generation ended inside the draft (EOS, stop or max_tokens on an accepted draft token): no extra
    token was emitted and nothing is known of the positions after `accepted`.
    """

    drafted: int
    accepted: int
    ended: bool
    steps: int


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Counts per bucket of LATENCY_BOUNDS_S (plus overflow) and the sum of the observations in seconds."""

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    sum_s: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.counts)

    def observe(self, seconds: float) -> LatencyHistogram:
        """With one more; less than nothing (the clocks of two machines differ, or one was set back) counts as 0."""
        seconds = max(seconds, 0.0)
        i = bisect_left(LATENCY_BOUNDS_S, seconds)
        return LatencyHistogram((*self.counts[:i], self.counts[i] + 1, *self.counts[i + 1 :]), self.sum_s + seconds)

    def merge(self, other: LatencyHistogram) -> LatencyHistogram:
        return LatencyHistogram(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)), self.sum_s + other.sum_s
        )


@dataclass(frozen=True, slots=True)
class StepCell:
    """A cohort's steps at one load bucket under one planned K.

    load_bucket: index into LOAD_BUCKETS. k: the K of the plan (a step may draft fewer: the proposer was silent, or
    few tokens were left). counts: sorted by (drafted, accepted, ended). step_seconds: wall seconds of those steps,
    summed over the cohort's sequences in them, so emitted / step_seconds is the goodput of one sequence.
    overlap: by 0-based position, the sum over the examined steps of the overlap mass sum_x min(target_probs,
    draft_probs), by block verification of min(target_probs, draft_probs / scale): its mean is the conditional
    acceptance with less noise; overlap_steps: how many steps those are.
    propensity: by position, P(K reaches it | what decided on K) where K was chosen from the request's own history;
    empty where it was not, as from a plan. tree: the parents of the token tree that these steps verified, whose nodes
    are then what was drafted; ranks: what became of its nodes. Empty for chains. Cells of different propensity or tree
    are never merged.
    """

    load_bucket: int
    k: int
    counts: tuple[StepCount, ...]
    step_seconds: float
    overlap: tuple[float, ...] = ()
    overlap_steps: tuple[int, ...] = ()
    propensity: tuple[float, ...] = ()
    tree: tuple[int, ...] = ()
    ranks: tuple[RankCount, ...] = ()

    @property
    def steps(self) -> int:
        return sum(c.steps for c in self.counts)

    @property
    def deepest(self) -> int:
        """Tokens that a step can keep at most: a tree has fewer levels than nodes, a chain is as deep as drafted."""
        return tree_depth(self.tree) if self.tree else MAX_DRAFT

    @property
    def emitted_tokens(self) -> int:
        return sum(c.steps * (c.accepted + (not c.ended)) for c in self.counts)

    def merge(self, other: StepCell) -> StepCell:
        sums: dict[tuple[int, int, bool], int] = {}
        for c in (*self.counts, *other.counts):
            sums[c[:3]] = sums.get(c[:3], 0) + c.steps
        counts = tuple(StepCount(*key, steps) for key, steps in sorted(sums.items()))
        return replace(
            self,
            counts=counts,
            step_seconds=self.step_seconds + other.step_seconds,
            overlap=tuple(a + b for a, b in zip_longest(self.overlap, other.overlap, fillvalue=0.0)),
            overlap_steps=tuple(a + b for a, b in zip_longest(self.overlap_steps, other.overlap_steps, fillvalue=0)),
            ranks=_merge_ranks(self.ranks, other.ranks),
        )


def tree_depth(parents: tuple[int, ...]) -> int:
    """Levels of a token tree; parents: of each node, a node before it or -1."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


class RankCount(NamedTuple):
    """Token trees: children of `rank` (0-based, in the order tried) of an accepted node at `depth` (0 = the root).

    tried: those that came up for a test; kept: those of them that were accepted.
    """

    depth: int
    rank: int
    tried: int
    kept: int


class TenantUse(NamedTuple):
    """One tenant's part of a cohort's window: what was computed for it and what it got; None = no tenant is known.

    Positions and tokens as in CohortWindow. input_tokens: prompt tokens of the requests whose prefill began in the
    window, once per request, also where a prefill is repeated. emitted_tokens: completion tokens, those that prefill
    yields included. requests: ended ones, whether they finished, failed or were cancelled.
    """

    tenant: str | None
    prefill_positions: int = 0
    verify_positions: int = 0
    draft_positions: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    input_tokens: int = 0
    emitted_tokens: int = 0
    requests: int = 0

    @property
    def steps(self) -> int:
        """Draft-verify rounds and plain steps: each verifies one position more than it drafted tokens."""
        return self.verify_positions - self.draft_tokens

    @property
    def rejected_tokens(self) -> int:
        """Draft tokens that were verified and not kept."""
        return self.draft_tokens - self.accepted_tokens


@dataclass(frozen=True, slots=True)
class CohortWindow:
    """What one worker saw of one cohort in one interval. Only active cohorts travel.

    prefill_positions, draft_positions: positions computed by the target in prefill and by a draft model.
    first_tokens: tokens that prefill yielded (one per started request). ttft, tpot: of requests that reached them in
    this interval (TPOT = (end - first token) / (tokens - 1), on finish). shadow: drafts that were scored against
    committed tokens without being verified, and a verified tree's first path as the chain that it would have been
    (nothing was emitted, no time of a step is in them): evidence only. tenants: the same counts taken apart by tenant,
    sorted (None first), each with something in it; empty = not known, so that all belongs to tenant None.
    """

    cohort: str
    cells: tuple[StepCell, ...] = ()
    prefill_positions: int = 0
    draft_positions: int = 0
    first_tokens: int = 0
    requests_started: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    ttft: LatencyHistogram = LatencyHistogram()
    tpot: LatencyHistogram = LatencyHistogram()
    shadow: tuple[StepCell, ...] = ()
    tenants: tuple[TenantUse, ...] = ()

    @property
    def ranks(self) -> tuple[RankCount, ...]:
        """Where trees were verified, what became of their nodes."""
        merged: tuple[RankCount, ...] = ()
        for cell in self.cells:
            merged = _merge_ranks(merged, cell.ranks) if cell.ranks else merged
        return merged

    @property
    def counts(self) -> tuple[StepCount, ...]:
        return tuple(c for cell in self.cells for c in cell.counts)

    @property
    def spec_steps(self) -> int:
        return sum(c.steps for c in self.counts if c.drafted)

    @property
    def plain_steps(self) -> int:
        return sum(c.steps for c in self.counts if not c.drafted)

    @property
    def draft_tokens(self) -> int:
        return sum(c.steps * c.drafted for c in self.counts)

    @property
    def accepted_tokens(self) -> int:
        return sum(c.steps * c.accepted for c in self.counts)

    @property
    def emitted_tokens(self) -> int:
        """Completion tokens: those that prefill yielded and those of the steps."""
        return self.first_tokens + sum(cell.emitted_tokens for cell in self.cells)

    @property
    def verify_positions(self) -> int:
        """Positions the target computed in decode steps, rejected drafts included."""
        return sum(c.steps * (c.drafted + 1) for c in self.counts)

    @property
    def positions(self) -> int:
        """All positions computed for this cohort: the weight by which a window's cost and energy are split."""
        return self.prefill_positions + self.verify_positions + self.draft_positions

    @property
    def by_tenant(self) -> tuple[TenantUse, ...]:
        """`tenants`, or where they are not known everything as tenant None's."""
        return self.tenants or (self.as_one_tenant,)

    @property
    def as_one_tenant(self) -> TenantUse:
        """The cohort's own counts as tenant None's; of input tokens a cohort has no count of its own: 0."""
        steps = draft_tokens = accepted_tokens = extra_tokens = 0
        for cell in self.cells:
            for drafted, accepted, ended, n in cell.counts:
                steps += n
                draft_tokens += n * drafted
                accepted_tokens += n * accepted
                if not ended:
                    extra_tokens += n
        return TenantUse(
            None,
            self.prefill_positions,
            draft_tokens + steps,
            self.draft_positions,
            draft_tokens,
            accepted_tokens,
            0,
            self.first_tokens + accepted_tokens + extra_tokens,
            self.requests_finished + self.requests_failed,
        )

    def drafted_at(self, position: int) -> int:
        """Drafts that had a token at the 0-based `position`, which in a tree is a depth."""
        return sum(c.steps for cell in self.cells for c in cell.counts if min(c.drafted, cell.deepest) > position)

    def accepted_at(self, position: int) -> int:
        """Drafts whose token at the 0-based `position` was kept (all earlier ones were too)."""
        return sum(c.steps for c in self.counts if c.accepted > position)

    def merge(self, other: CohortWindow) -> CohortWindow:
        """Sum of both; raises ValueError when they are of different cohorts."""
        if self.cohort != other.cohort:
            raise ValueError(f"cannot merge windows of cohorts {self.cohort!r} and {other.cohort!r}")
        return CohortWindow(
            self.cohort,
            _merge_cells(self.cells, other.cells),
            self.prefill_positions + other.prefill_positions,
            self.draft_positions + other.draft_positions,
            self.first_tokens + other.first_tokens,
            self.requests_started + other.requests_started,
            self.requests_finished + other.requests_finished,
            self.requests_failed + other.requests_failed,
            self.ttft.merge(other.ttft),
            self.tpot.merge(other.tpot),
            _merge_cells(self.shadow, other.shadow),
            merge_tenants((*self.by_tenant, *other.by_tenant)) if self.tenants or other.tenants else (),
        )


def merge_tenants(uses: Iterable[TenantUse]) -> tuple[TenantUse, ...]:
    """One sum per tenant, sorted, None first; tenants with nothing in any count are left out."""
    sums: dict[str | None, TenantUse] = {}
    for use in uses:
        before = sums.get(use.tenant)
        sums[use.tenant] = use if before is None else TenantUse(use.tenant, *map(add, before[1:], use[1:]))
    found = (use for use in sums.values() if any(use[1:]))
    return tuple(sorted(found, key=lambda use: (use.tenant is not None, use.tenant or "")))


def _merge_ranks(ours: tuple[RankCount, ...], theirs: tuple[RankCount, ...]) -> tuple[RankCount, ...]:
    sums: dict[tuple[int, int], tuple[int, int]] = {}
    for c in (*ours, *theirs):
        tried, kept = sums.get((c.depth, c.rank), (0, 0))
        sums[c.depth, c.rank] = tried + c.tried, kept + c.kept
    return tuple(RankCount(*key, *sums[key]) for key in sorted(sums))


def _merge_cells(ours: tuple[StepCell, ...], theirs: tuple[StepCell, ...]) -> tuple[StepCell, ...]:
    cells = {(c.load_bucket, c.k, c.propensity, c.tree): c for c in ours}
    for c in theirs:
        key = (c.load_bucket, c.k, c.propensity, c.tree)
        cells[key] = cells[key].merge(c) if key in cells else c
    return tuple(cells[key] for key in sorted(cells))


def merge_cohorts(windows: Iterable[CohortWindow]) -> dict[str, CohortWindow]:
    """One merged window per cohort, by name; the order of `windows` does not matter."""
    merged: dict[str, CohortWindow] = {}
    for w in windows:
        merged[w.cohort] = merged[w.cohort].merge(w) if w.cohort in merged else w
    return merged


class LatencyCell(NamedTuple):
    """Engine steps by size: `sequences` in the step, `positions` computed in it, how many, their wall seconds.

    seconds: of the decode part, drafting included; draft_seconds: the drafting in it. context: tokens of context of
    all sequences, summed over the steps.
    """

    sequences: int
    positions: int
    steps: int
    seconds: float
    context: int = 0
    draft_seconds: float = 0.0


class ProfileCell(NamedTuple):
    """What a worker measured at its start: median seconds of one step of `sequences` with `k` draft tokens each.

    context: tokens of context of each sequence. seconds includes drafting, draft_seconds is the drafting in it. k = 0
    is measured with the drafter idle. tree: the parents of the token tree that this K drafts; empty for a chain.
    """

    sequences: int
    k: int
    context: int
    seconds: float
    draft_seconds: float
    tree: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerWindow:
    """One worker's interval: its cohorts, step times, energy, and what it was obeying.

    started_at, ended_at: unix seconds. busy_s: seconds inside prefill and decode steps (<= the interval).
    energy_uj: microjoules, None where nothing could be measured (None is never 0). idle_energy_uj: what the device
    would have drawn with nothing running, idle power x duration, at most energy_uj; None = not known. running, waiting,
    kv_used, kv_total: gauges at the end (sequences, sequences, tokens, tokens). plan_expired: the worker ran on
    fallback K. drafter: name@version, so that a swap shows. profile: the step times of the worker's start, with the
    first window, after a change of controller and now and then. columns: the cohorts' cells as arrays, where the worker
    made them.
    """

    id: WindowId
    model: str
    drafter: str
    device: str
    started_at: float
    ended_at: float
    busy_s: float
    energy_uj: int | None
    energy_source: EnergySource
    plan_version: int
    plan_expired: bool
    plan_age_s: float
    running: int
    waiting: int
    kv_used: int
    kv_total: int
    cohorts: tuple[CohortWindow, ...]
    latency: tuple[LatencyCell, ...] = ()
    profile: tuple[ProfileCell, ...] = ()
    columns: StepColumns | None = field(default=None, compare=False, repr=False)
    idle_energy_uj: int | None = None

    @property
    def seconds(self) -> float:
        return self.ended_at - self.started_at

    @property
    def positions(self) -> int:
        return sum(c.positions for c in self.cohorts)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished, failed or cancelled request, as the ledger keeps it. Times in unix seconds and seconds.

    completion_tokens = 1 + accepted_tokens + spec_steps + plain_steps - (1 if the last step ended inside its draft)
    for a request that reached its first token.
    """

    request_id: str
    worker: str
    model: str
    drafter: str
    cohort: str
    tenant: str | None
    route: str
    stream: bool
    started_at: float
    finished_at: float
    prompt_tokens: int
    completion_tokens: int
    spec_steps: int
    plain_steps: int
    draft_tokens: int
    accepted_tokens: int
    prefill_positions: int
    verify_positions: int
    draft_positions: int
    max_k: int
    ttft_s: float | None
    tpot_s: float | None
    finish_reason: FinishReason
    plan_version: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker sends once a second: one closed window, the requests that ended in it, and the canary's checks."""

    window: WorkerWindow
    requests: tuple[RequestRecord, ...] = ()
    canary: tuple[CanaryCheck, ...] = ()
