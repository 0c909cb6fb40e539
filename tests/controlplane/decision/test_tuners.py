"""One estimate in, one rung out."""

from collections.abc import Sequence
from math import isinf

import pytest

from controlplane.decision.estimate import Estimate
from controlplane.decision.tuners import fixed, threshold
from controlplane.policy import Speculation

LADDER = (0, 1, 2, 4, 8)


def speculation(floor: float = 0.5, ladder: tuple[int, ...] = LADDER, start: int = 2) -> Speculation:
    return Speculation("threshold", floor, ladder, start, ladder[0])


def measured(hazards: Sequence[float], examined: float = 250.0) -> Estimate:
    """Every given position with its own evidence, the rest with none."""
    rest = (0.0,) * (16 - len(hazards))
    return Estimate((examined,) * len(hazards) + rest, tuple(examined * h for h in hazards) + rest)


@pytest.mark.parametrize(
    ("hazards", "k", "expected"),
    [
        ([0.9] * 8, 8, 8),
        ([0.9] * 8, 0, 8),
        ([0.1] * 8, 8, 0),
        ([0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.3, 0.3], 8, 4),
        ([0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.3, 0.3], 2, 4),
        ([0.9, 0.3, 0.9, 0.9], 4, 1),  # a rung beyond a failing one does not count
        ([0.9, 0.9, 0.3, 0.9, 0.2, 0.2, 0.2, 0.2], 4, 4),  # only the last position of a rung is asked
        ([0.2, 0.9, 0.9, 0.9], 2, 0),
    ],
)
def test_threshold_takes_the_deepest_rung_whose_last_position_reaches_the_floor(
    hazards: list[float], k: int, expected: int
) -> None:
    assert threshold.wish(measured(hazards), speculation(), k).k == expected


@pytest.mark.parametrize(("k", "expected"), [(1, 1), (2, 2)])
def test_threshold_lets_noise_around_the_floor_move_nothing(k: int, expected: int) -> None:
    assert threshold.wish(measured([0.9, 0.5]), speculation(ladder=(0, 1, 2)), k).k == expected


def test_threshold_wishes_for_the_next_rung_that_nobody_measured() -> None:
    wish = threshold.wish(measured([0.9, 0.9]), speculation(), 2)
    assert (wish.k, wish.is_unexplored, wish.position) == (4, True, 1)


def test_threshold_does_not_explore_from_a_rung_whose_last_position_was_hardly_reached() -> None:
    estimate = measured([0.9, 0.9, 0.9])
    assert threshold.wish(estimate, speculation(), 4).k == 4


def test_threshold_does_not_explore_from_a_rung_at_the_floor() -> None:
    assert threshold.wish(measured([0.9, 0.51]), speculation(), 2).k == 2


def test_threshold_gives_up_a_rung_that_fails_before_its_last_position_is_reached() -> None:
    estimate = measured([0.9, 0.9, 0.9, 0.9, 0.1])
    assert threshold.wish(estimate, speculation(), 8).k == 4


def test_threshold_names_the_position_that_failed() -> None:
    wish = threshold.wish(measured([0.9, 0.25, 0.9, 0.9]), speculation(), 4)
    assert wish.position == 1
    assert wish.accepted == pytest.approx(0.25, abs=0.02)
    assert wish.strength == pytest.approx(0.5, abs=0.04)


def test_threshold_stays_on_the_smallest_rung_where_the_ladder_has_no_zero() -> None:
    wish = threshold.wish(measured([0.1, 0.1]), speculation(ladder=(2, 4)), 2)
    assert (wish.k, wish.is_blocked) == (2, False)


def test_threshold_says_when_only_a_probe_can_look_deeper() -> None:
    assert threshold.wish(measured([0.9, 0.9, 0.2, 0.2]), speculation(), 2).is_blocked


@pytest.mark.parametrize(("floor", "expected"), [(0.0, 8), (1.0, 0)])
def test_threshold_at_the_ends_of_the_floor(floor: float, expected: int) -> None:
    wish = threshold.wish(measured([0.6] * 8), speculation(floor), 2)
    assert wish.k == expected


def test_threshold_with_a_single_rung_has_nothing_to_wish() -> None:
    assert threshold.wish(measured([0.9]), speculation(ladder=(0,), start=0), 0).k == 0


@pytest.mark.parametrize("lower", [0.2, 0.5, 0.7])
def test_threshold_is_monotone_in_acceptance(lower: float) -> None:
    low = threshold.wish(measured([lower] * 8), speculation(), 2).k
    high = threshold.wish(measured([lower + 0.2] * 8), speculation(), 2).k
    assert low <= high


def test_fixed_always_wishes_for_start() -> None:
    wish = fixed.wish(measured([0.0] * 8), Speculation("fixed", 0.5, LADDER, 4, 0), 8)
    assert wish.k == 4
    assert isinf(wish.strength)
