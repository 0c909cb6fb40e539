"""Intervals that cover, and shares compared stratum by stratum."""

from __future__ import annotations

import numpy as np
import pytest

from controlplane.comparison import Share, excess, location, shift, spent


@pytest.mark.parametrize("heavy", [False, True])
def test_the_interval_of_a_location_covers_as_often_as_it_says(heavy: bool) -> None:
    rng = np.random.default_rng(0)
    draw = (lambda: rng.standard_t(2, 15)) if heavy else (lambda: rng.normal(0, 1, 15))
    found = [location(list(draw() + 0.3), 0.05) for _ in range(400)]
    assert 0.92 <= np.mean([i.low <= 0.3 <= i.high for i in found]) <= 0.985


def test_the_interval_of_a_shift_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [shift(list(rng.normal(0.3, 1, 12)), list(rng.normal(0, 1, 8)), 0.05) for _ in range(400)]
    assert 0.92 <= np.mean([i.low <= 0.3 <= i.high for i in found]) <= 0.985


def test_one_wild_block_hardly_moves_the_middle() -> None:
    values = [0.01, 0.02, 0.0, 0.03, 0.01, 0.02, 0.01, 50.0]
    assert location(values, 0.05).mid < 0.1


def test_too_few_values_are_refused() -> None:
    with pytest.raises(ValueError, match="6 values"):
        location([1.0] * 5, 0.05)
    with pytest.raises(ValueError, match="6 values on both sides"):
        shift([1.0] * 9, [1.0] * 5, 0.05)


def test_all_looks_together_spend_alpha() -> None:
    assert sum(spent(0.05, look) for look in range(1, 100_000)) == pytest.approx(0.05, rel=1e-3)


def test_another_mix_of_strata_is_no_excess() -> None:
    # 10 % and 50 % on both sides, but most of ours are in the second stratum: the plain shares differ by 30 points.
    ours, theirs = [Share(10, 100), Share(450, 900)], [Share(90, 900), Share(50, 100)]
    over, error = excess(ours, theirs)
    assert abs(over) < 0.01 < 5 * error


def test_an_excess_in_every_stratum_is_found_with_its_error() -> None:
    over, error = excess([Share(200, 1000), Share(300, 1000)], [Share(100, 1000), Share(200, 1000)])
    assert over == pytest.approx(0.1, abs=0.005)
    assert over > 5 * error


def test_without_both_sides_nothing_is_known() -> None:
    assert excess([Share(1, 2)], [Share(0, 0)]) == (0.0, float("inf"))
