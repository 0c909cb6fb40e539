"""What another policy would have done with recorded traffic: its K, and what that would have brought.

The recorded windows go through the production controller under the new policy. Before is the K that the workers were
told at the time; after is the K that the new plan says at that moment. What either brings is expected from the same
beliefs, those of that moment, so that a better estimate on one side is not taken for a better policy.

What this cannot know: windows hold evidence up to the K that was used, so what lies deeper is as uncertain as the
interval says, and a probe that the new policy would have made shows nothing new. Nor do windows hold which sequences
ran beside each other at a step: positions are weighed for the mean batch of each window and load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controlplane.comparison import Interval
from controlplane.controller import Controller
from controlplane.decision.batch_choice import BatchChoice
from controlplane.decision.decide import DecisionState
from controlplane.decision.latency import uniform_seconds
from controlplane.experiment import is_holdout
from controlplane.policy import Policy
from controlplane.replay import KeptDecisions
from controlplane.store.recorded import RecordedTick
from controlplane.telemetry import LATENCY_BOUNDS_S, LOAD_BUCKETS, LatencyHistogram, Report, WorkerWindow, merge_cohorts

Z95 = 1.96


@dataclass(slots=True)
class Brought:
    """Sequence-steps of one cohort, and what is expected of them.

    before, after: steps by K. tokens_*, seconds_*: expected, summed over the steps; sd: of tokens_after less
    tokens_before, were all steps wrong together. by_load: steps by load bucket. unknown_steps: at a time when no step
    time was known. tpot: of the requests that finished.
    """

    before: dict[int, int] = field(default_factory=dict)
    after: dict[int, int] = field(default_factory=dict)
    by_load: dict[int, int] = field(default_factory=dict)
    tokens_before: float = 0.0
    tokens_after: float = 0.0
    seconds_before: float = 0.0
    seconds_after: float = 0.0
    sd: float = 0.0
    unknown_steps: int = 0
    tpot: LatencyHistogram = field(default_factory=LatencyHistogram)

    @property
    def steps(self) -> int:
        return sum(self.before.values())

    @property
    def change(self) -> Interval | None:
        """Tokens per second of one sequence after over before, less 1, with its 95 % interval; None where unknown."""
        if not (self.tokens_before > 0 and self.seconds_before > 0 and self.seconds_after > 0):
            return None
        factor = self.seconds_before / self.seconds_after / self.tokens_before
        low, mid, high = (self.tokens_after + sign * Z95 * self.sd for sign in (-1, 0, 1))
        return Interval(max(low, 0.0) * factor - 1, mid * factor - 1, high * factor - 1)

    def add(self, other: Brought) -> None:
        for ours, theirs in (
            (self.before, other.before),
            (self.after, other.after),
            (self.by_load, other.by_load),
        ):
            for key, steps in theirs.items():
                ours[key] = ours.get(key, 0) + steps
        self.tokens_before += other.tokens_before
        self.tokens_after += other.tokens_after
        self.seconds_before += other.seconds_before
        self.seconds_after += other.seconds_after
        self.sd += other.sd
        self.unknown_steps += other.unknown_steps
        self.tpot = self.tpot.merge(other.tpot)


@dataclass(slots=True)
class Outcome:
    """What the walk found, by cohort of the new policy. ticks: walked; stopped: those under a kill switch, left out."""

    cohorts: dict[str, Brought]
    ticks: int = 0
    stopped: int = 0
    state: DecisionState | None = None

    @property
    def total(self) -> Brought:
        total = Brought()
        for brought in self.cohorts.values():
            total.add(brought)
        return total


def walk(controllers: Iterable[Iterable[RecordedTick]], new: Policy, goes_to: Mapping[str, str]) -> Outcome:
    """The recorded ticks, controller by controller, under the new policy.

    goes_to: recorded cohort -> the cohort of `new` that its requests would be in (most of them).
    """
    outcome = Outcome({cohort.name: Brought() for cohort in new.cohorts})
    for ticks in controllers:
        controller: Controller | None = None
        for tick in ticks:
            if controller is None:
                # One that starts anew knows nothing, as after a restart: its first minute is learning.
                controller = Controller(new, KeptDecisions(), epoch=tick.epoch)
            outcome.ticks += 1
            windows = [_renamed(window, goes_to) for window in tick.windows if not is_holdout(window.id.worker)]
            plan = controller.plan
            for window in windows:
                controller.observe(Report(window))
            controller.tick(tick.at)
            if tick.kill_switch != "off":
                outcome.stopped += 1
                continue
            _count(outcome, controller.state, windows, BatchChoice(replace(plan, expires_at=float("inf"))))
        if controller is not None:
            outcome.state = controller.state
    return outcome


def unmet_slo(state: DecisionState, outcome: Outcome) -> Iterator[str]:
    """A line for each cohort whose TPOT would be over its SLO at every rung, at the load where it mostly runs."""
    if state.times is None:
        return
    seconds = uniform_seconds(state.times, state.outlook.positions)
    tpot = seconds / state.outlook.emitted[:, None, :]
    for i, cohort in enumerate(state.table.cohorts):
        brought, slo = outcome.cohorts[cohort.name], cohort.slo.tpot_p95_s
        if slo is None or not brought.by_load:
            continue
        load = max(brought.by_load, key=lambda b: brought.by_load[b])
        rungs = list(cohort.speculation.ladder)
        best = float(tpot[i, load, rungs].min())
        if best > slo:
            where = f"beside {LOAD_BUCKETS[load]} sequences"
            yield (
                f"{cohort.name}: slo.tpot_p95 of {slo * 1000:g} ms is met at no K {where}: the mean alone is at least"
                f" {best * 1000:.3g} ms"
            )


def percentile(histogram: LatencyHistogram, share: float) -> float | None:
    """Seconds, linear within a bin (the last one ends at twice its bound); None without an observation."""
    if not histogram.total:
        return None
    bounds = (0.0, *LATENCY_BOUNDS_S, 2 * LATENCY_BOUNDS_S[-1])
    wanted, seen = share * histogram.total, 0
    for i, count in enumerate(histogram.counts):
        if count and seen + count >= wanted:
            return bounds[i] + (wanted - seen) / count * (bounds[i + 1] - bounds[i])
        seen += count
    return bounds[-1]


def _renamed(window: WorkerWindow, goes_to: Mapping[str, str]) -> WorkerWindow:
    renamed = (replace(c, cohort=goes_to.get(c.cohort, c.cohort)) for c in window.cohorts)
    return replace(window, cohorts=tuple(merge_cohorts(renamed).values()), columns=None)


def _batches(window: WorkerWindow) -> dict[int, dict[str, int]]:
    """By load bucket, the batch that ran there in the mean, as large as the bucket's bound: cohort -> sequences."""
    steps: dict[int, dict[str, int]] = {}
    for cohort in window.cohorts:
        for cell in cohort.cells:
            at = steps.setdefault(cell.load_bucket, {})
            at[cohort.cohort] = at.get(cohort.cohort, 0) + cell.steps
    return {
        bucket: {name: max(1, round(LOAD_BUCKETS[bucket] * n / sum(at.values()))) for name, n in at.items() if n}
        for bucket, at in steps.items()
    }


def _count(outcome: Outcome, state: DecisionState, windows: Sequence[WorkerWindow], choice: BatchChoice) -> None:
    outlook = state.outlook
    seconds = None if state.times is None else uniform_seconds(state.times, outlook.positions)
    index = {name: i for i, name in enumerate(state.table.names)}
    chosen = [{b: choice.k_for(batch, 0.0) for b, batch in _batches(window).items()} for window in windows]
    for k_after, cohort in ((k, c) for k, window in zip(chosen, windows, strict=True) for c in window.cohorts):
        brought, i = outcome.cohorts[cohort.cohort], index[cohort.cohort]
        brought.tpot = brought.tpot.merge(cohort.tpot)
        for cell in cohort.cells:
            steps, was = cell.steps, min(cell.k, outlook.emitted.shape[1] - 1)
            if not steps:
                continue
            becomes = k_after[cell.load_bucket][cohort.cohort]
            brought.before[was] = brought.before.get(was, 0) + steps
            brought.after[becomes] = brought.after.get(becomes, 0) + steps
            brought.by_load[cell.load_bucket] = brought.by_load.get(cell.load_bucket, 0) + steps
            if seconds is None:
                brought.unknown_steps += steps
                continue
            brought.tokens_before += steps * float(outlook.emitted[i, was])
            brought.tokens_after += steps * float(outlook.emitted[i, becomes])
            brought.seconds_before += steps * float(seconds[i, cell.load_bucket, was])
            brought.seconds_after += steps * float(seconds[i, cell.load_bucket, becomes])
            if was != becomes:
                # Of the two sums of survivals one holds the other: the larger one's error is an upper bound.
                brought.sd += steps * float(np.max(outlook.emitted_sd[i, [was, becomes]]))
