"""What a staged rollout has seen: sums of both parts, in blocks of a few ticks, and what they come to.

Speed is compared as tokens per second of one sequence (emitted / step seconds) within a cohort and load bucket, so that
neither another mix of traffic nor another load is taken for an effect of the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import log

from controlplane.comparison import Share
from controlplane.telemetry import LATENCY_BOUNDS_S, CohortWindow, LatencyHistogram

BLOCK_TICKS = 5
"""Ticks in a block: neighbouring ticks see the same requests, blocks hardly."""

Cell = tuple[str, int]
"""Cohort and load bucket."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Of one part in some ticks. speed: cell -> (emitted tokens, step seconds); the rest by cohort."""

    speed: Mapping[Cell, tuple[int, float]] = field(default_factory=dict)
    tpot: Mapping[str, LatencyHistogram] = field(default_factory=dict)
    ended: Mapping[str, Share] = field(default_factory=dict)

    @property
    def has_steps(self) -> bool:
        return any(emitted > 0 and seconds > 0 for emitted, seconds in self.speed.values())

    @property
    def finished(self) -> int:
        """Requests with a TPOT."""
        return sum(histogram.total for histogram in self.tpot.values())

    def rate(self, cell: Cell) -> float | None:
        """Log of the tokens per second of one sequence in a cell; None without a token or a second."""
        emitted, seconds = self.speed.get(cell, (0, 0.0))
        return log(emitted / seconds) if emitted > 0 and seconds > 0 else None

    def seconds(self, cell: Cell) -> float:
        return self.speed.get(cell, (0, 0.0))[1]

    def __add__(self, other: Sums) -> Sums:
        speed = dict(self.speed)
        for cell, (emitted, seconds) in other.speed.items():
            had = speed.get(cell, (0, 0.0))
            speed[cell] = (had[0] + emitted, had[1] + seconds)
        tpot = dict(self.tpot)
        for cohort, histogram in other.tpot.items():
            tpot[cohort] = tpot[cohort].merge(histogram) if cohort in tpot else histogram
        ended = dict(self.ended)
        for cohort, share in other.ended.items():
            ended[cohort] = ended.get(cohort, Share(0, 0)) + share
        return Sums(speed, tpot, ended)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same ticks of the part that tries the candidate, and of the part it is compared with."""

    tried: Sums = Sums()
    kept: Sums = Sums()

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.tried + other.tried, self.kept + other.kept)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Closed blocks, the block that is being filled (with its ticks), and everything together."""

    blocks: tuple[Pair, ...] = ()
    open: Pair = Pair()
    open_ticks: int = 0
    total: Pair = Pair()

    @property
    def ticks(self) -> int:
        """Ticks in which both parts made steps."""
        return len(self.blocks) * BLOCK_TICKS + self.open_ticks

    def add(self, pair: Pair) -> Evidence:
        """With one tick more. One without steps on both sides counts its requests and no tick."""
        filled, total = self.open + pair, self.total + pair
        ticks = self.open_ticks + (pair.tried.has_steps and pair.kept.has_steps)
        if ticks < BLOCK_TICKS:
            return replace(self, open=filled, open_ticks=ticks, total=total)
        return Evidence((*self.blocks, filled), Pair(), 0, total)


def sums(cohorts: Iterable[CohortWindow]) -> Sums:
    """The sums of some cohorts' windows."""
    speed: dict[Cell, tuple[int, float]] = {}
    tpot: dict[str, LatencyHistogram] = {}
    ended: dict[str, Share] = {}
    for window in cohorts:
        for cell in window.cells:
            key = (window.cohort, cell.load_bucket)
            had = speed.get(key, (0, 0.0))
            speed[key] = (had[0] + cell.emitted_tokens, had[1] + cell.step_seconds)
        if window.tpot.total:
            tpot[window.cohort] = tpot.get(window.cohort, LatencyHistogram()).merge(window.tpot)
        share = Share(window.requests_failed, window.requests_finished + window.requests_failed)
        if share.total:
            ended[window.cohort] = ended.get(window.cohort, Share(0, 0)) + share
    return Sums(speed, tpot, ended)


def paired_gains(blocks: Iterable[Pair]) -> list[float]:
    """By block: log speed of the tried part over the kept one, the same cohorts at the same load on both sides."""
    return list(_drop_none(_gain(block) for block in blocks))


def relative_gains(blocks: Iterable[Pair], before: Pair) -> list[float]:
    """By block: log speed of the tried cohorts over their own before, less the same of the kept cohorts."""
    gains = []
    for block in blocks:
        tried, kept = _over(block.tried, before.tried), _over(block.kept, before.kept)
        if tried is not None and kept is not None:
            gains.append(tried - kept)
    return gains


def slow_shares(pair: Pair, bounds: Mapping[str, int]) -> tuple[list[Share], list[Share]]:
    """By cohort: the requests over its bound (index into LATENCY_BOUNDS_S) of the tried and of the kept part."""
    tried = [_over_bound(pair.tried.tpot.get(cohort), bound) for cohort, bound in bounds.items()]
    kept = [_over_bound(pair.kept.tpot.get(cohort), bound) for cohort, bound in bounds.items()]
    return tried, kept


def failed_shares(pair: Pair) -> tuple[list[Share], list[Share]]:
    """By cohort: the requests that failed, of the tried and of the kept part."""
    cohorts = sorted({*pair.tried.ended, *pair.kept.ended})
    none = Share(0, 0)
    return [pair.tried.ended.get(c, none) for c in cohorts], [pair.kept.ended.get(c, none) for c in cohorts]


def p95_bound(histogram: LatencyHistogram) -> int:
    """Index into LATENCY_BOUNDS_S of the bucket that holds the 95th percentile (its length for the overflow)."""
    wanted, seen = 0.95 * histogram.total, 0
    for i, count in enumerate(histogram.counts):
        seen += count
        if seen >= wanted:
            return i
    return len(LATENCY_BOUNDS_S)


def _gain(block: Pair) -> float | None:
    total = weighted = 0.0
    for cell in block.tried.speed:
        ours, theirs = block.tried.rate(cell), block.kept.rate(cell)
        if ours is not None and theirs is not None:
            a, b = block.tried.seconds(cell), block.kept.seconds(cell)
            weight = a * b / (a + b)
            total += weight
            weighted += weight * (ours - theirs)
    return weighted / total if total else None


def _over(block: Sums, before: Sums) -> float | None:
    total = weighted = 0.0
    for cell in block.speed:
        now, then = block.rate(cell), before.rate(cell)
        if now is not None and then is not None:
            weight = block.seconds(cell)
            total += weight
            weighted += weight * (now - then)
    return weighted / total if total else None


def _over_bound(histogram: LatencyHistogram | None, bound: int) -> Share:
    if histogram is None:
        return Share(0, 0)
    return Share(sum(histogram.counts[bound + 1 :]), histogram.total)


def _drop_none(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)
