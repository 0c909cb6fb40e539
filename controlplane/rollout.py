"""A policy tried on a part of the system first: which part, what both parts did, and when it is promoted or given up.

Pure: windows and the time come in, a new value comes out. It looks at geometrically growing amounts of evidence, each
look spending a part of ALPHA, so that looking often does not make a difference out of noise.

unit replicas: some workers obey the candidate, and the same cohorts on the other workers are what they are compared
with. unit cohorts: some cohorts obey it everywhere, after a while in which all are measured as they are; their change
since then is compared with that of the other cohorts (difference in differences).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from statistics import NormalDist
from typing import Any, Literal

from controlplane.comparison import Interval, excess, location, shift, spent
from controlplane.policy import CohortPolicy, Policy
from controlplane.policy.effective import settings_of
from controlplane.rollout_evidence import (
    BLOCK_TICKS,
    Evidence,
    Pair,
    failed_shares,
    p95_bound,
    paired_gains,
    relative_gains,
    slow_shares,
    sums,
)
from controlplane.telemetry import LATENCY_BOUNDS_S, WorkerWindow

Unit = Literal["cohorts", "replicas"]
Stage = Literal["staged", "promoted", "rolled_back", "timed_out", "aborted"]

ALPHA = 0.05
MARGIN = 0.02
"""Speed that a promoted policy may cost at most: share of tokens per second of one sequence."""
SLOW_MARGIN = 0.025
"""By how much the share of slow requests may grow: half as many again as the 5 % over the 95th percentile."""
FAILED_MARGIN = 0.005
MIN_FAILED = 3
MIN_FINISHED = 20
"""Requests that each part must have finished before a policy is promoted."""
BURN_IN_S = 10.0
"""Not measured after the candidate took effect: its tuners find their K first."""
LOOK_GROWTH = 1.5
BEFORE = 2
"""Windows before, as a multiple of min_windows: what was measured then limits every later look."""
LEAST_WINDOWS = 6 * BLOCK_TICKS
WORKER_GONE_S = 60.0


class RolloutError(ValueError):
    """A policy that cannot be tried on a part; the message is one line that says why and what to do instead."""


@dataclass(frozen=True, slots=True)
class StageOrder:
    """How to try a policy. Raises RolloutError.

    share: of the cohorts or replicas, between 0 and 1. min_windows: ticks with both parts seen, before anything is
    promoted (and with unit cohorts, twice as many before the candidate takes effect). max_s: seconds after which it is
    given up.
    """

    share: float
    unit: Unit = "replicas"
    min_windows: int = 60
    max_s: float = 1800.0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise RolloutError(f"stage: {self.share:g} is not a share between 0 and 1; 0.1 is a tenth")
        if self.unit not in ("cohorts", "replicas"):
            raise RolloutError(f"unit: {self.unit!r} is not one of cohorts, replicas")
        if not LEAST_WINDOWS <= self.min_windows <= 100_000:
            raise RolloutError(f"min_windows: {self.min_windows} is not within {LEAST_WINDOWS} to 100000")
        if not self.min_windows < self.max_s <= 7 * 86400:
            raise RolloutError(f"max_s: {self.max_s:g} is not over min_windows ({self.min_windows}) and at most 7 days")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout and its evidence so far.

    differing: cohorts of both policies whose settings differ. members: the cohorts or workers that obey the candidate
    (unit cohorts: will obey it, once `begins_at` is set). before: evidence of the time in which none did. looks: how
    often it was judged. begins_at: when the candidate took effect, unix seconds.
    """

    order: StageOrder
    candidate: Policy
    incumbent: Policy
    by: str
    why: str
    started_at: float
    differing: tuple[str, ...]
    members: frozenset[str]
    begins_at: float | None
    workers: Mapping[str, float]
    before: Evidence = field(default_factory=Evidence)
    evidence: Evidence = field(default_factory=Evidence)
    looks: int = 0
    stage: Stage = "staged"
    sentence: str = ""
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.stage != "staged"

    @property
    def member_workers(self) -> tuple[str, ...]:
        """Workers that obey the candidate; none where cohorts do."""
        return tuple(sorted(self.members)) if self.order.unit == "replicas" and not self.is_over else ()

    @property
    def policy(self) -> Policy:
        """What the system as a whole obeys meanwhile: the incumbent, with the settings of the cohorts that try."""
        if self.stage == "promoted":
            return self.candidate
        if self.is_over or self.order.unit == "replicas" or self.begins_at is None:
            return self.incumbent
        new = {cohort.name: cohort for cohort in self.candidate.cohorts}
        cohorts = tuple(_tried(c, new[c.name]) if c.name in self.members else c for c in self.incumbent.cohorts)
        return replace(self.incumbent, cohorts=cohorts)


def begin(
    candidate: Policy,
    incumbent: Policy,
    order: StageOrder,
    *,
    workers: Mapping[str, float],
    by: str,
    why: str,
    now: float,
) -> Rollout:
    """A rollout that starts now. workers: name -> when it was heard of last. Raises RolloutError where it cannot be."""
    old = {cohort.name: cohort for cohort in incumbent.cohorts}
    common = [cohort for cohort in candidate.cohorts if cohort.name in old]
    differing = tuple(c.name for c in common if settings_of(c) != settings_of(old[c.name]))
    if not differing:
        raise RolloutError(
            "no cohort of both policies has other settings, so nothing can be compared: apply it at once"
        )
    live = {name: at for name, at in workers.items() if at > now - WORKER_GONE_S}
    names = list(live) if order.unit == "replicas" else [cohort.name for cohort in common]
    if len(names) < 2:
        raise RolloutError(
            f"trying a policy on a part of the {order.unit} takes two of them, and there is {len(names)}:"
            f" choose unit {'cohorts' if order.unit == 'replicas' else 'replicas'}, or apply it at once"
        )
    chosen = part_of(live if order.unit == "replicas" else differing, candidate.revision, order.share)
    return Rollout(
        order, candidate, incumbent, by, why, now, differing, chosen, now if order.unit == "replicas" else None, live,
        sentence="waiting: nothing seen yet",
    )  # fmt: skip


def part_of(names: Iterable[str], revision: str, share: float) -> frozenset[str]:
    """Which of the names are in the part: by a hash of name and revision, at least one, and of several never all."""
    ranked = sorted(names, key=lambda name: (_rank(revision, name), name))
    inside = [name for name in ranked if _rank(revision, name) < share]
    least, most = min(1, len(ranked)), max(len(ranked) - 1, 1)
    return frozenset(ranked[: min(max(len(inside), least), most)])


def observe(rollout: Rollout, windows: Sequence[WorkerWindow], now: float) -> Rollout:
    """With a tick's windows, those before the candidate had settled left out. now: unix seconds."""
    if rollout.is_over:
        return rollout
    rollout = _with_workers(rollout, windows, now)
    pair = _pair(rollout, windows)
    if rollout.begins_at is None:
        before = rollout.before.add(pair)
        is_enough = before.ticks >= BEFORE * rollout.order.min_windows
        return replace(rollout, before=before, begins_at=now if is_enough else None)
    if now < rollout.begins_at + BURN_IN_S:
        return rollout
    return replace(rollout, evidence=rollout.evidence.add(pair))


def judge(rollout: Rollout, now: float) -> Rollout:
    """Promoted, rolled back, timed out or still waiting, with one sentence of why."""
    if rollout.is_over:
        return rollout
    alarm = _failures(rollout)
    if alarm is not None:
        return end(rollout, "rolled_back", alarm, now)
    waits = f"waiting: {rollout.evidence.ticks} of {rollout.order.min_windows} windows with both parts"
    if rollout.begins_at is None:
        waits = f"waiting: measuring as it is, {rollout.before.ticks} windows"
    elif rollout.evidence.ticks >= _next_look(rollout):
        rollout = replace(rollout, looks=rollout.looks + 1)
        stage, waits = _look(rollout, spent(ALPHA, rollout.looks))
        if stage != "staged":
            return end(rollout, stage, waits, now)
    elif rollout.looks:
        waits = rollout.sentence
    if now >= rollout.started_at + rollout.order.max_s:
        said = waits.removeprefix("waiting: ")
        return end(rollout, "timed_out", f"rolled back after {rollout.order.max_s:g} s without a verdict: {said}", now)
    return replace(rollout, sentence=waits)


def end(rollout: Rollout, stage: Stage, sentence: str, now: float) -> Rollout:
    """The rollout as it ended."""
    return replace(rollout, stage=stage, sentence=sentence, ended_at=now)


def rollout_json(rollout: Rollout) -> dict[str, Any]:
    """What is shown of a rollout."""
    return {
        "revision": rollout.candidate.revision,
        "incumbent": rollout.incumbent.revision,
        "unit": rollout.order.unit,
        "share": rollout.order.share,
        "members": sorted(rollout.members),
        "stage": rollout.stage,
        "sentence": rollout.sentence,
        "windows": rollout.evidence.ticks,
        "min_windows": rollout.order.min_windows,
        "started_at": rollout.started_at,
        "ended_at": rollout.ended_at,
        "by": rollout.by,
        "why": rollout.why,
    }


def _rank(revision: str, name: str) -> float:
    """A number in [0, 1) that looks random and is always the same."""
    return int.from_bytes(hashlib.sha256(f"{revision}:{name}".encode()).digest()[:7]) / 2**56


def _tried(incumbent: CohortPolicy, candidate: CohortPolicy) -> CohortPolicy:
    """The candidate's settings; who is in the cohort stays as it is until the policy is promoted."""
    return replace(candidate, match=incumbent.match)


def _with_workers(rollout: Rollout, windows: Sequence[WorkerWindow], now: float) -> Rollout:
    """Workers come and go: where replicas try the policy, the part is chosen anew among those that are there."""
    heard = {name: at for name, at in rollout.workers.items() if at > now - WORKER_GONE_S}
    heard |= {window.id.worker: now for window in windows}
    if rollout.order.unit == "replicas" and heard.keys() != rollout.workers.keys() and len(heard) > 1:
        members = part_of(heard, rollout.candidate.revision, rollout.order.share)
        return replace(rollout, workers=heard, members=members)
    return replace(rollout, workers=heard)


def _pair(rollout: Rollout, windows: Sequence[WorkerWindow]) -> Pair:
    if rollout.order.unit == "replicas":
        compared = set(rollout.differing)
        ours = [c for w in windows if w.id.worker in rollout.members for c in w.cohorts if c.cohort in compared]
        theirs = [c for w in windows if w.id.worker not in rollout.members for c in w.cohorts if c.cohort in compared]
    else:
        ours = [c for w in windows for c in w.cohorts if c.cohort in rollout.members]
        theirs = [c for w in windows for c in w.cohorts if c.cohort not in rollout.members]
    return Pair(sums(ours), sums(theirs))


def _next_look(rollout: Rollout) -> float:
    return rollout.order.min_windows * LOOK_GROWTH**rollout.looks


def _look(rollout: Rollout, alpha: float) -> tuple[Stage, str]:
    slow, slow_error = _grown(rollout, *_slow(rollout))
    limit = NormalDist().inv_cdf(1 - alpha / 2)
    finished = min(rollout.evidence.total.tried.finished, rollout.evidence.total.kept.finished)
    try:
        gain = _gain(rollout, alpha)
    except ValueError:
        return "staged", "waiting: the two parts were never at the same load with the same cohorts"
    said = (
        f"tokens/s per sequence {_percent(gain.mid)} (interval {_percent(gain.low)} to {_percent(gain.high)},"
        f" {rollout.evidence.ticks} windows), requests over the TPOT bound {slow:+.1%}"
    )
    if slow > SLOW_MARGIN and slow > limit * slow_error:
        return "rolled_back", f"rolled back: TPOT got worse; {said}"
    if exp(gain.high) - 1 < -MARGIN:
        return "rolled_back", f"rolled back: slower; {said}"
    if exp(gain.low) - 1 > -MARGIN and finished >= MIN_FINISHED:
        return "promoted", f"promoted: no slower by over {MARGIN:.0%}; {said}, failures no more"
    missing = f"; {finished} of {MIN_FINISHED} requests finished in each part" if finished < MIN_FINISHED else ""
    return "staged", f"waiting: not certain yet; {said}{missing}"


def _gain(rollout: Rollout, alpha: float) -> Interval:
    if rollout.order.unit == "replicas":
        return location(paired_gains(rollout.evidence.blocks), alpha)
    before = rollout.before.total
    return shift(relative_gains(rollout.evidence.blocks, before), relative_gains(rollout.before.blocks, before), alpha)


def _slow(rollout: Rollout) -> tuple[Pair, Pair, Mapping[str, int]]:
    """The pairs to hold against each other, and by cohort the bound over which a request is slow.

    That is the cohort's SLO, else the bucket of its 95th percentile where the policy was not tried.
    """
    asked = {c.name: c.slo.tpot_p95_s for c in rollout.candidate.cohorts}
    reference = rollout.evidence.total.kept if rollout.order.unit == "replicas" else rollout.before.total.tried
    others = {} if rollout.order.unit == "replicas" else rollout.before.total.kept.tpot
    bounds = {}
    for cohort, histogram in {**others, **reference.tpot}.items():
        slo = asked.get(cohort)
        bounds[cohort] = p95_bound(histogram) if slo is None else bisect_left(LATENCY_BOUNDS_S, slo)
    return rollout.evidence.total, rollout.before.total, bounds


def _grown(rollout: Rollout, now: Pair, before: Pair, bounds: Mapping[str, int]) -> tuple[float, float]:
    """By how much the share of slow requests is over what it would be without the candidate, and the standard error."""
    tried, kept = slow_shares(now, bounds)
    if rollout.order.unit == "replicas":
        return excess(tried, kept)
    tried_before, kept_before = slow_shares(before, bounds)
    ours, our_error = excess(tried, tried_before)
    theirs, their_error = excess(kept, kept_before)
    if their_error == float("inf"):
        return ours, our_error
    return ours - theirs, sqrt(our_error**2 + their_error**2)


def _failures(rollout: Rollout) -> str | None:
    """Why to give up at once: the candidate's part fails clearly more often. Looked at every tick, so strictly."""
    tried, kept = failed_shares(rollout.evidence.total)
    if rollout.order.unit == "cohorts":
        tried, kept = failed_shares(Pair(rollout.evidence.total.tried, rollout.before.total.tried))
    failed, ended = sum(s.hits for s in tried), sum(s.total for s in tried)
    over, error = excess(tried, kept)
    if failed < MIN_FAILED or over < FAILED_MARGIN or over < NormalDist().inv_cdf(1 - 0.001) * error:
        return None
    other = f"{sum(s.hits for s in kept)} of {sum(s.total for s in kept)}"
    return f"rolled back: {failed} of {ended} requests failed where it was tried, {other} where it was not"


def _percent(gain: float) -> str:
    return f"{exp(gain) - 1:+.1%}"
