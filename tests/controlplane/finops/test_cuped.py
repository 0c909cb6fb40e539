"""Adjustment of paired differences for offered load."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from controlplane.finops.cuped import adjusted


def data(seed: int = 5, pairs: int = 40, kinds: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.5, (pairs, kinds))
    return -0.1 + x @ np.full(kinds, 0.6) + rng.normal(0, 0.1, pairs), x


def test_without_covariates_it_is_mean_and_standard_deviation() -> None:
    d, _ = data()
    found = adjusted(d)
    assert found.estimate[-1] == pytest.approx(d.mean())
    assert found.spread[-1] == pytest.approx(d.std(ddof=1))
    assert found.free[-1] == len(d) - 1


def test_one_covariate_gives_the_intercept_and_its_error_of_a_regression() -> None:
    d, x = data(kinds=1)
    found, line = adjusted(d, x), stats.linregress(x[:, 0], d)
    assert found.estimate[-1] == pytest.approx(line.intercept)
    assert found.spread[-1] / np.sqrt(len(d)) == pytest.approx(line.intercept_stderr)
    assert found.removed[-1] == pytest.approx(line.rvalue**2)


def test_every_pair_is_answered_as_if_it_were_the_last() -> None:
    d, x = data()
    whole = adjusted(d, x)
    for n in (15, 16, 27):
        until = adjusted(d[:n], x[:n])
        assert whole.estimate[n - 1] == pytest.approx(until.estimate[-1])
        assert whole.spread[n - 1] == pytest.approx(until.spread[-1])


def test_load_that_explains_the_noise_makes_the_spread_smaller() -> None:
    d, x = data()
    assert adjusted(d, x).spread[-1] < adjusted(d).spread[-1] / 3


def test_a_covariate_that_never_varies_is_left_out() -> None:
    d, x = data(kinds=1)
    both = adjusted(d, np.concatenate([x, np.zeros_like(x)], axis=1))
    assert both.estimate[-1] == pytest.approx(adjusted(d, x).estimate[-1])
    assert both.free[-1] == len(d) - 2


def test_a_covariate_given_twice_counts_once() -> None:
    d, x = data(kinds=1)
    assert adjusted(d, np.concatenate([x, x], axis=1)).spread[-1] == pytest.approx(adjusted(d, x).spread[-1])


def test_few_pairs_are_not_explained_away() -> None:
    d, x = data(pairs=6)
    assert adjusted(d, x).estimate[-1] == pytest.approx(d.mean())


def test_the_adjusted_estimate_stays_where_the_effect_is() -> None:
    """The covariate has expectation 0, so adjusting moves noise and not the estimand."""
    found = [adjusted(*data(seed)).estimate[-1] for seed in range(200)]
    assert np.mean(found) == pytest.approx(-0.1, abs=0.005)


def test_covariates_of_other_pairs_are_refused() -> None:
    d, x = data()
    with pytest.raises(ValueError, match="do not belong"):
        adjusted(d[1:], x)
