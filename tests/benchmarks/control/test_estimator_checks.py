"""The checks tell a right estimator from the well-known wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.control.cost import Floats, Ints
from benchmarks.control.estimator_checks import check
from benchmarks.control.estimators import Emitted


def at_risk(counts: Ints) -> tuple[Floats, Floats]:
    """(drafts examined at position j, of them kept) by 0-based position: right-censored at K."""
    depth = len(counts) - 1
    examined, kept = np.zeros(depth), np.zeros(depth)
    for j in range(depth):
        examined[j] = counts[j + 1 :, j:].sum()
        kept[j] = counts[j + 1 :, j + 1 :].sum()
    return examined, kept


def kaplan_meier(counts: Ints, width: float = 1.96) -> Emitted:
    """Product of hazards; the interval by the delta method over independent hazards (Greenwood)."""
    examined, kept = at_risk(counts)
    hazard = (kept + 0.5) / (examined + 1.0)
    survival = np.concatenate([[1.0], np.cumprod(hazard)])
    mean = np.cumsum(survival)
    variance = np.zeros(len(mean))
    for j, (h, n) in enumerate(zip(hazard, examined, strict=True)):
        # d E(K) / d h_j is the sum of S_i over i = j+1..K, divided by h_j.
        slope = np.concatenate([np.zeros(j + 1), np.cumsum(survival[j + 1 :])]) / h
        variance += slope**2 * h * (1.0 - h) / (n + 1.0)
    error = width * np.sqrt(variance)
    return Emitted(mean, mean - error, mean + error)


def accepted_over_drafted(counts: Ints) -> Emitted:
    """The rate that engines report, taken for the chance of every single token."""
    k = np.arange(len(counts))
    rate = (counts.sum(axis=0) @ k) / (counts.sum(axis=1) @ k)
    mean = np.cumsum(rate**k)
    return Emitted(mean, mean, mean)


@pytest.fixture(scope="module")
def good():
    return check(kaplan_meier, replications=150)


def test_the_hazard_estimator_is_unbiased_where_k_is_mixed(good) -> None:
    assert abs(good.bias_percent) < 1.0


def test_its_intervals_hold_the_truth_as_often_as_they_say(good) -> None:
    assert 93.0 <= good.coverage_percent <= 97.0


def test_accepted_over_drafted_is_found_to_be_far_off() -> None:
    assert check(accepted_over_drafted, replications=20).bias_percent < -15.0


def test_intervals_that_are_too_narrow_are_found_out() -> None:
    assert check(lambda counts: kaplan_meier(counts, width=1.0), replications=50).coverage_percent < 80.0


def test_the_same_seed_gives_the_same_verdict() -> None:
    first, again, other = (check(kaplan_meier, seed, replications=5) for seed in (1, 1, 2))
    assert first == again != other
