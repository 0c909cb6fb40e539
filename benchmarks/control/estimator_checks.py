"""Checks an estimator: right about expected emitted tokens where K is mixed, and honest about how sure it is.

Laws are levels with the decline and the spread of requests that a profile's cohort has by default. Every replication
draws the same number of sequences at each positive rung, as they come when K moves without regard to single requests.
The truth is known in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.control.cost import Floats
from benchmarks.control.estimators import Fit
from benchmarks.control.profile import Cohort
from benchmarks.control.world import survival_of

LADDER = (0, 1, 2, 3, 4, 6, 8)
LEVELS = (0.35, 0.6, 0.8, 0.92)
PER_RUNG = (100, 1000)
REPLICATIONS = 300


@dataclass(frozen=True, slots=True)
class EstimatorCheck:
    """bias_percent: of the mean estimate over all replications of a law, the K and law where it is furthest from 0.
    coverage_percent: share of all 95 % intervals that hold the truth. worst_coverage_percent: at the K and law where it
    is furthest from 95.
    """

    bias_percent: float
    coverage_percent: float
    worst_coverage_percent: float


def check(fit: Fit, first_seed: int = 0, replications: int = REPLICATIONS) -> EstimatorCheck:
    """`fit` on every level and amount of evidence."""
    biases, covered = [], []
    for i, level in enumerate(LEVELS):
        survival = survival_of(Cohort(name="checked"), np.array([level]), LADDER[-1])[0]
        for per_rung in PER_RUNG:
            generator = np.random.default_rng([first_seed, i, per_rung])
            bias, share = _replicate(fit, survival, per_rung, replications, generator)
            biases.append(bias)
            covered.append(share)
    bias, share = np.array(biases), np.array(covered)
    return EstimatorCheck(
        bias_percent=100.0 * float(bias.flat[np.argmax(np.abs(bias))]),
        coverage_percent=100.0 * float(share.mean()),
        worst_coverage_percent=100.0 * float(share.flat[np.argmax(np.abs(share - 0.95))]),
    )


def _replicate(
    fit: Fit, survival: Floats, per_rung: int, replications: int, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """(relative bias, share of intervals that hold the truth), each by K = 1..depth."""
    truth, depth = np.cumsum(survival)[1:], len(survival) - 1
    ended = np.clip(-np.diff(survival, append=0.0), 0.0, 1.0)
    total, held = np.zeros(depth), np.zeros(depth)
    for _ in range(replications):
        counts = np.zeros((depth + 1, depth + 1), dtype=np.int64)
        for k in LADDER[1:]:
            drawn = generator.multinomial(per_rung, ended)
            counts[k, :k], counts[k, k] = drawn[:k], drawn[k:].sum()
        emitted = fit(counts)
        total += emitted.mean[1:]
        held += (emitted.low[1:] <= truth) & (truth <= emitted.high[1:])
    return total / replications / truth - 1.0, held / replications
