"""What must hold beside a saving: guardrails that nobody pays for it, and checks that the pairs say what they claim.

A saving that comes from slower answers, from errors or from shorter outputs is no saving. A difference between the two
orders of a pair, or between the halves of its windows, says that the burn-in is too short; a trend over the pairs says
that there is no one saving to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from controlplane.finops.savings import ALPHA, Floats, Pair, Sums, offered, shift_p
from controlplane.telemetry import LATENCY_BOUNDS_S, LatencyHistogram

Verdict = Literal["kept", "broken", "unclear"]

SLOWER_LIMIT = 0.05
"""By how much a latency may grow."""
LENGTH_LIMIT = 0.03
"""By how much the mean output may become shorter or longer."""
ERROR_LIMIT = 0.002
"""By how much the share of failed requests may grow."""
MIN_REQUESTS = 5
"""Requests in an arm of a pair, for a quantile of their latencies."""
LEAST_PAIRS = 4
DOUBT = 0.01
"""P below which a check speaks up."""


@dataclass(frozen=True, slots=True)
class Guardrail:
    """One of them. change: with speculation against without, as a share (errors: in points); low, high: 95 %, t.

    limit: how much of it is tolerated. None where too few pairs say anything.
    """

    name: str
    change: float | None
    low: float | None
    high: float | None
    limit: float
    verdict: Verdict
    pairs: int

    @property
    def sentence(self) -> str:
        if self.change is None or self.low is None or self.high is None:
            return f"{self.name}: unclear, {self.pairs} pairs say something of it"
        return f"{self.name}: {self.verdict}, {self.change:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


@dataclass(frozen=True, slots=True)
class DriftCheck:
    """Whether the pairs are what they should be. value: of the log-ratio; p: two-sided, None for too few pairs."""

    name: str
    value: float | None
    p: float | None
    sentence: str

    @property
    def is_good(self) -> bool:
        return self.p is None or self.p >= DOUBT


def guardrails(pairs: Sequence[Pair]) -> tuple[Guardrail, ...]:
    """All of them, in a fixed order. pairs: also those in which an arm emitted nothing, if requests came."""
    found = []
    for what, of in (("ttft", lambda s: s.ttft), ("tpot", lambda s: s.tpot)):
        for share in (0.5, 0.99):
            name = f"{what} p{share * 100:.0f}"
            changes = _log_changes(pairs, lambda s, of=of, share=share: _latency(of(s), share))  # type: ignore[misc]
            found.append(_judged(name, changes, SLOWER_LIMIT))
    errors = [_error_share(p.treatment) - _error_share(p.control) for p in pairs if _has_requests(p)]
    found.append(_judged("errors", errors, ERROR_LIMIT, is_log=False))
    lengths = _log_changes(pairs, lambda s: s.completion_tokens / s.arrivals if s.arrivals else None)
    found.append(_judged("output length", lengths, LENGTH_LIMIT, is_two_sided=True))
    return tuple(found)


def drift_checks(pairs: Sequence[Pair]) -> tuple[DriftCheck, ...]:
    """Order, carry-over, trend and independence of the capacity saving, and whether both arms were offered the same."""
    used = [(pair, d) for pair in pairs if (d := pair.log_ratio("capacity")) is not None]
    counted, ratios = [pair for pair, _ in used], np.array([d for _, d in used])
    return _order(used), _carry_over(counted), _trend(ratios), _neighbours(ratios), _load(counted)


def quantile(histogram: LatencyHistogram, share: float) -> float | None:
    """Seconds under which that share of it is, linear within a bucket; None for an empty one.

    What is beyond the last bound counts as twice that.
    """
    counts = np.array(histogram.counts, dtype=np.float64)
    if not counts.sum():
        return None
    edges = np.array([0.0, *LATENCY_BOUNDS_S, 2 * LATENCY_BOUNDS_S[-1]])
    below = np.concatenate([[0.0], np.cumsum(counts)])
    wanted = share * below[-1]
    bucket = int(np.searchsorted(below[1:], wanted))
    within = (wanted - below[bucket]) / counts[bucket]
    return float(edges[bucket] + within * (edges[bucket + 1] - edges[bucket]))


def length_distance(pairs: Sequence[Pair]) -> float | None:
    """Total variation between the output lengths of the two arms: the share of outputs in another bucket, 0 to 1."""
    if not pairs:
        return None
    ours, theirs = (
        np.sum(arm, axis=0) for arm in ([p.treatment.lengths for p in pairs], [p.control.lengths for p in pairs])
    )
    if not ours.sum() or not theirs.sum():
        return None
    return float(np.abs(ours / ours.sum() - theirs / theirs.sum()).sum() / 2)


def _judged(
    name: str, changes: Sequence[float], limit: float, *, is_log: bool = True, is_two_sided: bool = False
) -> Guardrail:
    n = len(changes)
    if n < LEAST_PAIRS:
        return Guardrail(name, None, None, None, limit, "unclear", n)
    d = np.array(changes)
    mean, error = float(d.mean()), float(d.std(ddof=1)) / n**0.5
    half = float(stdtrit(n - 1, 1 - ALPHA / 2)) * error
    change, low, high = (exp(v) - 1 if is_log else v for v in (mean, mean - half, mean + half))
    verdict: Verdict = "unclear"
    if low > limit or (is_two_sided and high < -limit):
        verdict = "broken"
    elif high < limit and (not is_two_sided or low > -limit):
        verdict = "kept"
    return Guardrail(name, change, low, high, limit, verdict, n)


def _log_changes(pairs: Iterable[Pair], of: Callable[[Sums], float | None]) -> list[float]:
    both = [(of(pair.treatment), of(pair.control)) for pair in pairs]
    return [log(ours / theirs) for ours, theirs in both if ours and theirs]


def _latency(histogram: LatencyHistogram, share: float) -> float | None:
    return quantile(histogram, share) if histogram.total >= MIN_REQUESTS else None


def _has_requests(pair: Pair) -> bool:
    return bool(pair.treatment.arrivals and pair.control.arrivals)


def _error_share(sums: Sums) -> float:
    return sums.failed / sums.arrivals


def _order(used: Sequence[tuple[Pair, float]]) -> DriftCheck:
    """Welch's test between pairs that began with speculation and pairs that ended with it."""
    first = np.array([d for pair, d in used if pair.treatment_first is True])
    second = np.array([d for pair, d in used if pair.treatment_first is False])
    if min(len(first), len(second)) < LEAST_PAIRS:
        return DriftCheck("order", None, None, "order: too few pairs of each order")
    parts = [x.var(ddof=1) / len(x) for x in (first, second)]
    difference, variance = float(first.mean() - second.mean()), sum(parts)
    if variance <= 0:
        return DriftCheck("order", difference, None, "order: the pairs do not vary")
    free = variance**2 / sum(v * v / (len(x) - 1) for v, x in zip(parts, (first, second), strict=True))
    p = _two_sided(difference / variance**0.5, free)
    hint = "the order matters: a carry-over or a trend within pairs; lengthen burn_in" if p < DOUBT else "no effect"
    return DriftCheck("order", difference, p, f"order of the windows: {hint} (p {p:.3f})")


def _carry_over(pairs: Sequence[Pair]) -> DriftCheck:
    """Whether the first halves of the measured windows say something else than the second halves."""
    changes = [c for pair in pairs if (c := _halves(pair)) is not None]
    p, mean = (shift_p(changes), float(np.mean(changes))) if len(changes) >= LEAST_PAIRS else (None, None)
    if p is None:
        return DriftCheck("carry-over", None, None, "carry-over: too few pairs with both halves")
    hint = "the windows' beginning differs from their end; lengthen burn_in" if p < DOUBT else "none seen"
    return DriftCheck("carry-over", mean, p, f"carry-over after the burn-in: {hint} (p {p:.3f})")


def _halves(pair: Pair) -> float | None:
    parts = []
    for sums in (pair.treatment, pair.control):
        late_busy, late_tokens = sums.busy_ns - sums.early_busy_ns, sums.tokens - sums.early_tokens
        if min(sums.early_busy_ns, sums.early_tokens, late_busy, late_tokens) <= 0:
            return None
        parts.append(log(sums.early_busy_ns / sums.early_tokens) - log(late_busy / late_tokens))
    return parts[0] - parts[1]


def _trend(d: Floats) -> DriftCheck:
    n = len(d)
    if n < 2 * LEAST_PAIRS:
        return DriftCheck("trend", None, None, "trend: too few pairs")
    at = np.arange(n) - (n - 1) / 2
    slope = float((at * d).sum() / (at * at).sum())
    left = d - d.mean() - slope * at
    error = float(np.sqrt((left * left).sum() / (n - 2) / (at * at).sum()))
    p = _two_sided(slope / error, n - 2) if error > 0 else (0.0 if slope else 1.0)
    hint = f"the log-ratio moves by {slope:+.4f} a pair" if p < DOUBT else "none seen"
    return DriftCheck("trend", slope, p, f"trend over the pairs: {hint} (p {p:.3f})")


def _neighbours(d: Floats) -> DriftCheck:
    """Whether pairs resemble those beside them: every interval takes them for independent.

    The first autocorrelation, which of independent pairs is normal around -1/n with variance 1/n (Bartlett 1946). Where
    chance orders the windows of a pair, a drifting baseline does not show here; what lasts in one arm alone does.
    """
    n = len(d)
    left = d - d.mean() if n else d
    squares = float((left * left).sum())
    if n < 2 * LEAST_PAIRS or squares <= 0:
        return DriftCheck("neighbours", None, None, "neighbouring pairs: too few pairs")
    found = float((left[1:] * left[:-1]).sum()) / squares
    p = 2 * float(ndtr(-abs(found + 1 / n) * n**0.5))
    hint = "do not resemble each other"
    if p < DOUBT:
        r = min(max(found, -0.9), 0.9)
        hint = (
            f"are correlated ({found:+.2f}): every interval should be about {((1 + r) / (1 - r)) ** 0.5:.1f} times as "
            "wide; lengthen the windows"
        )
    return DriftCheck("neighbours", found, p, f"neighbouring pairs {hint} (p {p:.3f})")


def _load(pairs: Sequence[Pair]) -> DriftCheck:
    """Whether speculation moved the arrivals: then they are no offered load."""
    if len(pairs) < LEAST_PAIRS:
        return DriftCheck("offered load", None, None, "offered load: too few pairs")
    arrivals = np.array([offered(pair)[0] for pair in pairs])
    p, mean = shift_p(arrivals), float(arrivals.mean())
    hint = "the same in both arms"
    if p < DOUBT:
        hint = (
            f"{np.expm1(mean):+.1%} arrivals with speculation; clients wait for answers before they ask again, or are "
            "refused, so each arm is measured at the load that it drew, and is not adjusted for it"
        )
    return DriftCheck("offered load", mean, p, f"offered load: {hint} (p {p:.3f})")


def _two_sided(t: float, free: float) -> float:
    return 2 * float(stdtr(free, -abs(t)))
