"""Intervals and p-values that may be looked at after every pair."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import pytest
from scipy import stats

from controlplane.finops.confidence_sequence import (
    MIN_PAIRS,
    half_width,
    mixture,
    p_values,
    pairs_for_power,
    pairs_to_exclude_zero,
)


def runs(pairs: int = 200, of: int = 1000, mean: float = 0.0, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of unit normal differences after each pair: [runs, pairs]."""
    d = np.random.default_rng(seed).normal(mean, 1.0, (of, pairs))
    n = np.arange(1, pairs + 1)
    means = np.cumsum(d, axis=1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.maximum(np.cumsum(d * d, axis=1) - n * means**2, 0) / (n - 1)
    return means, np.sqrt(variance)


def test_the_half_width_is_the_published_formula() -> None:
    r = (-2 * log(0.05) + log(-2 * log(0.05) + 1)) / 60
    assert mixture(0.05, 60) == pytest.approx(r)
    by_hand = 0.3 * sqrt(2 * (25 * r + 1) / (25**2 * r) * log(sqrt(25 * r + 1) / 0.05))
    assert float(half_width(25, 0.3, 0.05, 60)) == pytest.approx(by_hand)


def test_the_price_of_looking_is_about_half_the_width_again() -> None:
    assert float(half_width(60, 1.0, 0.05, 60)) / (1.96 / sqrt(60)) == pytest.approx(1.55, abs=0.01)


def test_a_spread_from_few_pairs_makes_a_look_as_rare_as_if_it_were_known() -> None:
    n, free = 10, 7
    errors = float(half_width(n, 1.0, 0.05)) * sqrt(n)
    wider = float(half_width(n, 1.0, 0.05, free=free)) * sqrt(n)
    assert stats.t.sf(wider, free) == pytest.approx(stats.norm.sf(errors))
    assert float(half_width(2000, 1.0, 0.05, free=1999)) == pytest.approx(float(half_width(2000, 1.0, 0.05)), rel=0.01)


def test_a_p_value_takes_few_pairs_for_few() -> None:
    mean, spread = np.full(12, 0.9), np.full(12, 1.0)
    known, estimated = (p_values(mean, spread, 0.3, free)[-1] for free in (None, np.full(12, 8.0)))
    assert estimated > 2 * known
    assert p_values(mean, spread, 0.3, np.full(12, 1e9))[-1] == pytest.approx(known, rel=1e-3)


def test_the_sequence_is_tightest_beside_a_fixed_interval_at_its_target() -> None:
    n = np.arange(10, 400)
    excess = half_width(n, 1.0, 0.05, 60) * np.sqrt(n)
    assert 50 <= n[np.argmin(excess)] <= 70


def test_peeking_at_every_pair_gives_false_alarms_in_at_most_five_of_a_hundred_runs() -> None:
    mean, spread = (each[:, MIN_PAIRS - 1 :] for each in runs())
    n = np.arange(MIN_PAIRS, 201)
    assert (np.abs(mean) > half_width(n, spread, 0.05)).any(axis=1).mean() <= 0.05
    # What it protects from: the interval of a fixed number of pairs, looked at as often.
    assert (np.abs(mean) > 1.96 * spread / np.sqrt(n)).any(axis=1).mean() > 0.3


def test_the_always_valid_p_alarms_as_rarely() -> None:
    p = p_values(*runs(), scale=0.3)
    assert (p[:, -1] <= 0.05).mean() <= 0.05


def test_a_p_value_never_rises_and_says_nothing_before_ten_pairs() -> None:
    p = p_values(*runs(of=20, mean=0.5), scale=0.3)
    assert (np.diff(p, axis=1) <= 0).all()
    assert (p[:, : MIN_PAIRS - 1] == 1.0).all()
    assert (p[:, -1] < 0.001).all()


def test_a_p_value_is_the_published_ratio() -> None:
    n, mean, s2, t2 = 12, 0.4, 0.81, 0.09
    ratio = sqrt(s2 / (s2 + n * t2)) * exp(n * n * t2 * mean**2 / (2 * s2 * (s2 + n * t2)))
    means, spreads = np.full(12, np.nan), np.full(12, np.nan)
    means[-1], spreads[-1] = mean, 0.9
    assert p_values(means, spreads, scale=0.3)[-1] == pytest.approx(1 / ratio)


@pytest.mark.parametrize("effect", [0.05, 0.2, 1.0])
def test_the_pairs_still_needed_are_those_after_which_zero_is_out(effect: float) -> None:
    n = pairs_to_exclude_zero(effect, 0.3, 0.05)
    assert n is not None
    fewer = 0.98 * n - 1
    assert float(half_width(n, 0.3, 0.05, free=n - 1)) < effect
    assert n == MIN_PAIRS or float(half_width(fewer, 0.3, 0.05, free=fewer - 1)) > effect


def test_an_effect_of_nothing_is_never_found() -> None:
    assert pairs_to_exclude_zero(0.0, 0.3, 0.05) is None
    assert pairs_to_exclude_zero(1e-6, 0.3, 0.05) is None


@pytest.mark.parametrize(("share", "spread", "pairs"), [(0.05, 0.14, 59), (0.02, 0.14, 377), (0.05, 0.02, 2)])
def test_the_pairs_of_a_single_planned_look(share: float, spread: float, pairs: int) -> None:
    """The figures of research on sample sizes, and the normal quantiles of SciPy."""
    found = pairs_for_power(log(1 - share), spread)
    assert abs(found - pairs) <= 1
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert found == max(2, int(np.ceil((z * spread / log(1 - share)) ** 2)))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_level_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha must be between 0 and 1"):
        mixture(alpha, 60)
