"""Splits of integers lose nothing, and an hour costs its price."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.finops.attribution import (
    NS_PER_HOUR,
    cost_by_part,
    cost_of_time,
    cost_of_times,
    first_of_two,
    split,
)

AMOUNTS = st.integers(0, 10**18)
WEIGHTS = st.lists(st.integers(0, 10**9), min_size=1, max_size=12)


@given(AMOUNTS, WEIGHTS)
def test_a_split_adds_up_to_the_whole(total: int, weights: list[int]) -> None:
    assert sum(split(total, weights)) == total


@given(AMOUNTS, WEIGHTS)
def test_every_part_is_within_one_of_its_exact_share(total: int, weights: list[int]) -> None:
    whole = sum(weights)
    shares = [Fraction(total * w, whole) if whole else Fraction(total, len(weights)) for w in weights]
    assert all(abs(part - share) < 1 for part, share in zip(split(total, weights), shares, strict=True))


def test_the_largest_remainders_get_what_is_left() -> None:
    assert split(10, [1, 1, 2, 3]) == [2, 1, 3, 4]  # exact: 1.43, 1.43, 2.86, 4.29


def test_equal_remainders_favour_the_first() -> None:
    assert split(2, [1, 1, 1]) == [1, 1, 0]


def test_zero_weights_split_evenly_and_lose_nothing() -> None:
    assert split(5, [0, 0]) == [3, 2]


def test_a_zero_weight_gets_nothing_beside_a_positive_one() -> None:
    assert split(7, [0, 3, 0]) == [0, 7, 0]


@given(
    AMOUNTS | st.integers(0, 9), st.integers(0, 9) | st.integers(0, 10**9), st.integers(1, 9) | st.integers(1, 10**9)
)
def test_the_first_of_two_is_that_of_the_split(total: int, weight: int, rest: int) -> None:
    assert first_of_two(total, weight, rest) == split(total, (weight, rest))[0]
    assert first_of_two(total, rest, weight) == split(total, (rest, weight))[0]


@pytest.mark.parametrize(("total", "weights"), [(-1, [1]), (1, [-1, 2]), (1, [])])
def test_a_split_without_sense_is_refused(total: int, weights: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot split"):
        split(total, weights)


def test_an_hour_costs_the_price_of_an_hour() -> None:
    assert cost_of_time(NS_PER_HOUR, 2_950_000_000) == 2_950_000_000


@pytest.mark.parametrize(("halves", "nano"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_half_a_nano_unit_rounds_to_even(halves: int, nano: int) -> None:
    assert cost_of_time(halves * NS_PER_HOUR // 2, 1) == nano


@pytest.mark.parametrize("per_hour_nano", [0, 1, 2_950_000_007])
def test_times_together_cost_what_each_costs(per_hour_nano: int) -> None:
    times = [0, 1, NS_PER_HOUR // 2, NS_PER_HOUR, 3 * NS_PER_HOUR // 2, 12_345_678_901]
    assert cost_of_times(times, per_hour_nano) == sum(cost_of_time(ns, per_hour_nano) for ns in times)


def test_no_time_costs_nothing_in_any_part() -> None:
    assert cost_by_part([0, 0], 10**9) == [0, 0]


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=8), st.integers(0, 10**13))
def test_what_the_parts_cost_is_what_the_whole_costs(parts: list[int], per_hour_nano: int) -> None:
    assert sum(cost_by_part(parts, per_hour_nano)) == cost_of_time(sum(parts), per_hour_nano)
