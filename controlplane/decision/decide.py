"""One tick of control: what was seen and believed in, decisions and the new beliefs out. No clock, no I/O.

    observe   merge into the beliefs: acceptance by cohort, step times, power, latencies
    wish      every tuner says where it would go, at every load
    rule      the guard says what may be done now, and why

Beliefs about acceptance are the cohort's: they depend on its text, not on the load. Guard state is per load bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision import sentence
from controlplane.decision.batch_choice import NEVER_SILENT
from controlplane.decision.cells import CellStates, Probes
from controlplane.decision.guard import (
    FALL_STEPS,
    REASONS,
    UNDECIDED,
    Circumstances,
    Reason,
    follow,
    judge_probes,
    rule,
)
from controlplane.decision.latency import AT_BUCKETS, LOADS, StepTimes, forward_seconds, uniform_seconds
from controlplane.decision.observation import BINS, BUCKETS, Flags, Floats, Ints, Observation
from controlplane.decision.policy_table import GOODPUT, THRESHOLD
from controlplane.decision.state import DecisionState
from controlplane.decision.tuners import fixed, goodput, slots, threshold
from controlplane.decision.tuners.base import Rates, Situation, Wish, at_k
from controlplane.telemetry import LATENCY_BOUNDS_S, LOAD_BUCKETS

__all__ = ["Decision", "DecisionState", "Observation", "Rates", "Reason", "Tick", "decide", "observe"]

RUNNING_KEPT = 0.8
"""What a tick leaves of the older sequence-steps, by which a load's mix of cohorts is known."""
LATENCY_KEPT = 0.95
"""The same of the TPOT histogram."""
TICK_MOST_S = 10.0
"""A tick that comes later than this after the last one says no more of how long a cell ran."""
ENOUGH_REQUESTS = 10.0
USUAL_TAIL = 1.25
"""TPOT at the 95th percentile over its mean, where too few requests were seen."""


@dataclass(frozen=True, slots=True)
class Decision:
    """K of one cohort at one load bucket in one tick, and why; staying is a decision too.

    load_bucket: index into LOAD_BUCKETS. samples: discounted examined drafts behind the sentence. accept_at:
    conditional acceptance by position, 0-based. at: unix seconds. plan_version: the plan that carries new_k.
    """

    cohort: str
    load_bucket: int
    old_k: int
    new_k: int
    reason: Reason
    sentence: str
    samples: int
    accept_at: tuple[float, ...]
    at: float
    plan_version: int
    policy_revision: str


@dataclass(frozen=True, slots=True, eq=False)
class Tick:
    """decisions: those that say something new (K moved, or the reason did). reasons: [cohorts, loads] codes into
    guard.REASONS of all cells looked at, UNDECIDED elsewhere. state: the beliefs after it."""  # noqa: D209

    decisions: tuple[Decision, ...]
    reasons: Ints
    state: DecisionState


def observe(state: DecisionState, seen: Observation, now: float) -> DecisionState:
    """The beliefs after a tick's windows; nothing is decided."""
    if state.drafters.is_news(seen.drafters, now):
        state = state.doubting(now)
    state = replace(
        state, drafters=state.drafters.heard(seen.drafters, now), setups=state.setups.heard(seen.setups, now)
    )
    n, cells = len(state.table.names), seen.cells
    new = cells.evidence.summed(cells.cohort, n)
    drift, alarm, estimate = state.drift.follow(state.estimate, new)
    steps = np.zeros((n, BUCKETS))
    np.add.at(steps, (cells.cohort, cells.load_bucket), cells.steps)
    times, profiled_on = state.times, state.profiled_on
    # A profile is said again and again; the corrected one gives way only when its machine or drafter is gone.
    if seen.profile and (times is None or not set(profiled_on) & set(state.setups.names)):
        profiled = StepTimes.of(seen.profile)
        times, profiled_on = (times, profiled_on) if profiled is None else (profiled, seen.profiled)
    tpot = state.tpot * LATENCY_KEPT + seen.tpot
    ranks = state.ranks.absorb(seen.ranks) if seen.ranks else state.ranks
    shapes = state.shapes.told(seen.profile, seen.trees)
    state = replace(
        state,
        estimate=estimate,
        drift=drift,
        drift_at=np.where(alarm, now, state.drift_at),
        seen_at=np.where(new.examined > 0, now, state.seen_at),
        cells=_measured(state, seen, times),
        probes=_probed(state, seen),
        running=state.running * RUNNING_KEPT + steps,
        tpot=tpot,
        tpot_sum_s=state.tpot_sum_s * LATENCY_KEPT + seen.tpot_sum_s,
        times=None if times is None else times.correct(seen.latency),
        profiled_on=profiled_on,
        power=state.power.learn(seen.power),
        ranks=ranks,
        shapes=shapes,
        kept=state.kept.absorb(cells, estimate.hazards(), ranks, shapes) if shapes.tree_rungs else state.kept,
    )
    is_over = (tpot.sum(axis=1) >= ENOUGH_REQUESTS) & (_p95(tpot) > state.table.tpot_p95_s)
    since = np.where(np.isnan(state.over_slo_since), now, state.over_slo_since)
    return replace(state, over_slo_since=np.where(is_over, since, np.nan))


def decide(state: DecisionState, seen: Observation, now: float, rates: Rates = Rates()) -> Tick:  # noqa: B008 - a value
    """Take in a tick's windows and decide every cell that they, or a probe in it, make due. now: unix seconds."""
    planned_before = state.k
    state = observe(state, seen, now)
    table = state.table
    cells = follow(table, state.cells, now)
    judged, estimate = judge_probes(table, cells, state.probes, state.estimate)
    state = replace(state, estimate=estimate)
    is_active = _where_active(seen, len(table.names))
    is_unpaid = is_active & ~_where_asked(seen, is_active.shape) & (cells.k > 0)
    situation = _situation(state, cells, is_unpaid, rates)
    prices = None
    if situation.times is not None and table.is_ragged.any():
        tariff = goodput.tariff(situation)
        prices = slots.price(
            table,
            situation.outlook,
            situation.share,
            cells.k,
            situation.times,
            tariff,
            before=state.prices,
            uniform_s=situation.seconds,
        )
    wish = _wish(situation, prices)
    rulings = rule(
        table,
        wish,
        cells,
        state.probes,
        judged,
        _circumstances(state, situation, prices, seen, is_active, min(max(now - state.decided_at, 0.0), TICK_MOST_S)),
        estimate.samples,
        now,
    )
    state = replace(
        state, cells=_untouched(state.cells, rulings.cells, rulings.reasons), probes=rulings.probes, prices=prices
    )
    decisions, told = _told(state, situation, wish, planned_before, rulings.reasons, is_active, now)
    return Tick(decisions, rulings.reasons, replace(state, told=told, decided_at=now))


def _situation(state: DecisionState, cells: CellStates, is_unpaid: Flags, rates: Rates) -> Situation:
    total = state.running.sum(axis=0)
    everywhere = state.running.sum(axis=1)
    overall = everywhere / max(float(everywhere.sum()), 1e-12)
    if not everywhere.any():
        overall = np.full(len(everywhere), 1.0 / max(len(everywhere), 1))
    share = np.where(total > 1.0, state.running / np.maximum(total, 1e-12), overall[:, None])
    finished = state.tpot.sum(axis=1)
    mean = state.tpot_sum_s / np.maximum(finished, 1e-12)
    outlook, times = state.outlook, state.times
    tail = np.where(finished >= ENOUGH_REQUESTS, _p95(state.tpot) / np.maximum(mean, 1e-9), USUAL_TAIL)
    return Situation(
        table=state.table.pursuing_cost(rates.dialled),
        estimate=state.estimate,
        hazards=state.estimate.hazards(),
        outlook=outlook,
        k=cells.k,
        is_unpaid=is_unpaid,
        share=share,
        tail=tail,
        times=times,
        seconds=None if times is None else uniform_seconds(times, outlook.positions[:, : state.table.rungs]),
        power=state.power,
        rates=rates,
        shapes=state.shapes,
    )


def _wish(situation: Situation, prices: slots.Prices | None) -> Wish:
    """Each cohort's own tuner's."""
    tuner = situation.table.tuner
    out = fixed.wish(situation)
    if (tuner == THRESHOLD).any():
        out = _chosen(tuner == THRESHOLD, threshold.wish(situation), out)
    if (tuner == GOODPUT).any() and situation.times is not None:
        out = _chosen(tuner == GOODPUT, goodput.wish(situation, prices), out)
    return out


def _chosen(where: Flags, ours: Wish, theirs: Wish) -> Wish:
    pick = where[:, None]
    return Wish(
        k=np.where(pick, ours.k, theirs.k),
        gain=np.where(pick, ours.gain, theirs.gain),
        is_unexplored=np.where(pick, ours.is_unexplored, theirs.is_unexplored),
        is_blocked=np.where(pick, ours.is_blocked, theirs.is_blocked),
        position=np.where(pick, ours.position, theirs.position),
        accepted=np.where(pick, ours.accepted, theirs.accepted),
        examined=np.where(pick, ours.examined, theirs.examined),
    )


def _circumstances(
    state: DecisionState,
    situation: Situation,
    prices: slots.Prices | None,
    seen: Observation,
    is_active: Flags,
    passed_s: float,
) -> Circumstances:
    new = seen.cells.evidence.examined
    is_told = np.bincount(seen.cells.cohort, new[:, 0], len(state.table.names)) > 0
    shape = is_active.shape
    slower, loss = np.zeros(shape, np.bool_), np.zeros(shape)
    seconds = situation.seconds
    if seconds is not None:
        tpot = seconds / situation.outlook.emitted[:, None, : seconds.shape[2]]
        k, cohorts = np.maximum(situation.k, 0), np.arange(shape[0])[:, None]
        below, above = np.maximum(state.table.below[cohorts, k], 0), np.maximum(state.table.above[cohorts, k], 0)
        slower = at_k(tpot, below) >= at_k(tpot, k)
        is_own = situation.is_unpaid.copy()  # its own rung is tried, or is on trial
        trial = (cohorts[:, 0], state.probes.load_bucket)
        is_own[trial] |= state.probes.k == k[trial]
        rest, tried = np.where(is_own, 0, k), np.where(is_own, k, above)
        loss = np.where(tried > rest, 1.0 - at_k(seconds, rest) / at_k(seconds, tried), 0.0)
    return Circumstances(
        is_active=is_active,
        is_told=is_told,
        is_unpaid=situation.is_unpaid,
        drift_at=state.drift_at,
        seen_at=state.seen_at,
        over_slo_since=state.over_slo_since,
        slower_below=slower,
        probe_loss=loss,
        ran_s=state.cells.ran_s + np.where(is_active, passed_s, 0.0),
        knows_times=situation.times is not None,
        promised=_promised(state, situation, prices),
    )


def _promised(state: DecisionState, situation: Situation, prices: slots.Prices | None) -> Floats:
    """[cohorts, loads]: the speed that the rung before a raise would bring, where it was not measured; NaN elsewhere.

    In the unit of CellStates.speed: tokens of a sequence in the time of a K = 0 step as profiled. The other cohorts of
    the load draft as they do now.
    """
    cells, outlook, times = state.cells, situation.outlook, situation.times
    out = np.full(cells.k.shape, np.nan)
    wanted = (cells.before_k >= 0) & np.isnan(cells.before_speed) & (cells.steps >= FALL_STEPS)
    if times is None or not wanted.any():
        return out
    cohorts, n = np.arange(len(out))[:, None], LOADS[AT_BUCKETS]
    silent = np.log1p(-np.minimum(outlook.drafted[:, :1], NEVER_SILENT))
    share = situation.share

    def brings(k: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """At rungs k: tokens; and of the batch, the draft positions, drafting seconds and silence that it adds."""
        k = slots.under_price(state.table, prices, k)
        drafting = times.drafting[AT_BUCKETS][np.arange(BUCKETS), k]
        return (
            outlook.emitted[cohorts, k],
            share * (outlook.positions[cohorts, k] - 1.0),
            share * drafting,
            np.where(k > 0, share * n * silent, 0.0),
        )

    _, *now = brings(np.maximum(situation.k, 0))
    tokens, *then = brings(np.maximum(cells.before_k, 0))
    deep, drafting, silence = (a.sum(axis=0) - a + b for a, b in zip(now, then, strict=True))
    table = times.going[AT_BUCKETS]
    forward = forward_seconds(times.verifying[AT_BUCKETS, 0], table, np.maximum(deep, 0.0).T, -np.expm1(silence).T).T
    reading = times.context_s * max(times.context_now - times.context, 0.0) * n
    plain = times.verify[AT_BUCKETS, 0] + reading
    return np.where(wanted, tokens * plain / np.maximum(forward + drafting, 1e-12), np.nan)


def _where_active(seen: Observation, cohorts: int) -> Flags:
    is_active = np.zeros((cohorts, BUCKETS), np.bool_)
    real = seen.cells.steps > 0
    is_active[seen.cells.cohort[real], seen.cells.load_bucket[real]] = True
    return is_active


def _where_asked(seen: Observation, shape: tuple[int, ...]) -> Flags:
    """[cohorts, loads]: whether any step was planned with drafts."""
    is_asked = np.zeros(shape, np.bool_)
    asked = (seen.cells.steps > 0) & (seen.cells.k > 0)
    is_asked[seen.cells.cohort[asked], seen.cells.load_bucket[asked]] = True
    return is_asked


def _measured(state: DecisionState, seen: Observation, times: StepTimes | None) -> CellStates:
    """The measured speed of every cell at the rung where it rests, with the tick's steps at that rung added."""
    cells, was, probes = seen.cells, state.cells, state.probes
    k = was.k[cells.cohort, cells.load_bucket]
    # Under the rung of a priced cohort a worker drafts what pays beside the sequences of the moment.
    is_obeyed = np.where(state.table.is_ragged[cells.cohort], cells.k <= k, cells.k == k)
    on_trial = (cells.k == probes.k[cells.cohort]) & (cells.load_bucket == probes.load_bucket[cells.cohort])
    at_rest = is_obeyed & ~(on_trial & probes.is_active[cells.cohort]) & ~cells.is_shadow
    if not at_rest.any():
        return was
    where = (cells.cohort[at_rest], cells.load_bucket[at_rest])
    unit = _plain_seconds(seen.latency, times)[where[1]]

    def added(old: Floats, new: Floats) -> Floats:
        out = old.copy()
        np.add.at(out, where, new)
        return out

    return replace(
        was,
        tokens=added(was.tokens, cells.emitted[at_rest]),
        tokens_squared=added(was.tokens_squared, cells.emitted_squared[at_rest]),
        steps=added(was.steps, cells.steps[at_rest]),
        speed_time=added(was.speed_time, cells.seconds[at_rest] / unit),
    )


def _plain_seconds(latency: Floats, times: StepTimes | None) -> Floats:
    """[loads]: seconds of a step at K = 0 beside as many sequences as ran at each load; 1 where nothing is known."""
    if times is None:
        return np.ones(BUCKETS)
    bucket = np.searchsorted(LOAD_BUCKETS, latency[:, 0]).clip(0, BUCKETS - 1)
    steps = np.bincount(bucket, latency[:, 2], BUCKETS)
    mean = np.bincount(bucket, latency[:, 0] * latency[:, 2], BUCKETS) / np.maximum(steps, 1e-12)
    beside = np.where(steps > 0, mean, LOAD_BUCKETS)
    context = np.bincount(bucket, latency[:, 4], BUCKETS) / np.maximum(steps, 1e-12)
    beyond = np.where(context > 0, np.maximum(context - times.context * beside, 0.0), 0.0)
    return times.profiled(beside, np.zeros(BUCKETS)) + times.context_s * beyond


def _probed(state: DecisionState, seen: Observation) -> Probes:
    cells, probes = seen.cells, state.probes
    of_probe = (cells.k == probes.k[cells.cohort]) & ~cells.is_shadow
    if not of_probe.any():
        return probes
    new = cells.evidence.at(of_probe).summed(cells.cohort[of_probe], len(probes.k))
    return replace(probes, evidence=probes.evidence + new)


def _untouched(before: CellStates, after: CellStates, reasons: Ints) -> CellStates:
    """`after`, but a cell that nobody looked at stays as it was: never decided, say, rather than following."""
    looked_at = reasons != UNDECIDED
    return replace(
        after,
        k=np.where(looked_at, after.k, before.k),
        changed_at=np.where(looked_at, after.changed_at, before.changed_at),
        waits_from=np.where(looked_at, after.waits_from, before.waits_from),
        before_k=np.where(looked_at, after.before_k, before.before_k),
    )


def _told(
    state: DecisionState,
    situation: Situation,
    wish: Wish,
    planned_before: Ints,
    reasons: Ints,
    is_active: Flags,
    now: float,
) -> tuple[tuple[Decision, ...], Ints]:
    """Decisions for the cells whose K or reason is not what was last told of them; and what is told now."""
    planned = state.k
    current = np.stack([planned, reasons], axis=2)
    moved = planned != planned_before
    is_shown = (reasons != UNDECIDED) & (is_active | (moved & (state.table.tuner != GOODPUT)[:, None]))
    is_news = is_shown & ((current != state.told).any(axis=2) | moved)
    told = np.where(is_news[:, :, None], current, state.told)
    decisions = tuple(
        _decision(
            state,
            situation,
            wish,
            int(c),
            int(b),
            int(planned_before[c, b]),
            int(planned[c, b]),
            int(reasons[c, b]),
            now,
        )
        for c, b in zip(*np.nonzero(is_news), strict=True)
    )
    return decisions, told


def _decision(
    state: DecisionState,
    situation: Situation,
    wish: Wish,
    c: int,
    b: int,
    old_k: int,
    new_k: int,
    code: int,
    now: float,
) -> Decision:
    reason = REASONS[code]
    is_judged = wish.position[c, b] >= 0 and reason is not Reason.FIXED
    return Decision(
        cohort=state.table.names[c],
        load_bucket=b,
        old_k=old_k,
        new_k=new_k,
        reason=reason,
        sentence=sentence.explain(state, situation, wish, c, b, old_k, new_k, reason, now),
        samples=round(float(wish.examined[c, b] if is_judged else situation.estimate.samples[c])),
        accept_at=situation.hazards.accept_at(c),
        at=now,
        plan_version=0,
        policy_revision=state.table.revision,
    )


def _p95(counts: Floats) -> Floats:
    """[cohorts] seconds: the 95th percentile of histograms [cohorts, bins], linear within a bin; the last is open."""
    upto = counts.cumsum(axis=1)
    wanted = 0.95 * upto[:, -1]
    bin_ = (upto < wanted[:, None]).sum(axis=1).clip(0, BINS - 1)
    bounds = np.array([0.0, *LATENCY_BOUNDS_S, 2.0 * LATENCY_BOUNDS_S[-1]])
    rows = np.arange(len(counts))
    before = upto[rows, bin_] - counts[rows, bin_]
    within = np.clip((wanted - before) / np.maximum(counts[rows, bin_], 1e-12), 0.0, 1.0)
    return np.where(upto[:, -1] > 0, bounds[bin_] + within * (bounds[bin_ + 1] - bounds[bin_]), 0.0)
