"""One estimate in, one rung out: the tuners that need no step times."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from controlplane.decision.estimate import Estimate
from controlplane.decision.observation import BUCKETS, Evidence
from controlplane.decision.policy_table import PolicyTable
from controlplane.decision.power import Power
from controlplane.decision.tuners import fixed, threshold
from controlplane.decision.tuners.base import Rates, Situation, Tuner
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import MAX_K


class One:
    """The wish for the first load bucket of a single cohort."""

    def __init__(self, tuner: Tuner, hazards: Sequence[float], cohort: CohortPolicy, k: int) -> None:
        wish = tuner(situation(hazards, cohort, k))
        self.k, self.position = int(wish.k[0, 0]), int(wish.position[0, 0])
        self.gain, self.accepted = float(wish.gain[0, 0]), float(wish.accepted[0, 0])
        self.is_unexplored, self.is_blocked = bool(wish.is_unexplored[0, 0]), bool(wish.is_blocked[0, 0])


def situation(hazards: Sequence[float], cohort: CohortPolicy, k: int) -> Situation:
    """Every given position with 250 drafts of its own, the rest with none."""
    examined = np.zeros((1, MAX_K))
    examined[0, : len(hazards)] = 250.0
    accepted = examined.copy()
    accepted[0, : len(hazards)] *= hazards
    estimate = Estimate(Evidence(*(examined,) * 4, accepted), examined, np.ones(1))
    table = PolicyTable.of(Policy(1, (cohort,), None, "abc", ""))
    return Situation(
        table=table, estimate=estimate, hazards=estimate.hazards(), outlook=estimate.outlook(),
        k=np.full((1, BUCKETS), k), is_unpaid=np.zeros((1, BUCKETS), np.bool_), share=np.ones((1, BUCKETS)),
        tail=np.ones(1), times=None, seconds=None,
        power=Power.unknown(), rates=Rates(),
    )  # fmt: skip


FALLING = [0.9, 0.8, 0.7, 0.6, 0.4, 0.3, 0.3, 0.3]


@pytest.mark.parametrize(
    ("hazards", "k", "expected"),
    [
        ([0.9] * 8, 8, 8),
        ([0.9] * 8, 0, 8),
        ([0.1] * 8, 8, 0),
        (FALLING, 8, 4),
        (FALLING, 2, 4),
        ([0.9, 0.3, 0.9, 0.9], 4, 1),  # a rung beyond a failing one does not count
        ([0.9, 0.9, 0.3, 0.9, 0.2, 0.2, 0.2, 0.2], 4, 4),  # only the last position of a rung is asked
        ([0.2, 0.9, 0.9, 0.9], 2, 0),
    ],
)
def test_threshold_takes_the_deepest_rung_whose_last_position_reaches_the_floor(
    cohort_policy: Any, hazards: list[float], k: int, expected: int
) -> None:
    assert One(threshold.wish, hazards, cohort_policy(), k).k == expected


@pytest.mark.parametrize(("k", "expected"), [(1, 1), (2, 2)])
def test_threshold_lets_noise_around_the_floor_move_nothing(cohort_policy: Any, k: int, expected: int) -> None:
    assert One(threshold.wish, [0.9, 0.5], cohort_policy(ladder=(0, 1, 2)), k).k == expected


def test_threshold_wishes_for_the_next_rung_that_nobody_measured(cohort_policy: Any) -> None:
    wish = One(threshold.wish, [0.9, 0.9], cohort_policy(), 2)
    assert (wish.k, wish.is_unexplored, wish.position) == (4, True, 1)


def test_threshold_does_not_explore_from_a_rung_whose_last_position_was_hardly_reached(cohort_policy: Any) -> None:
    assert One(threshold.wish, [0.9, 0.9, 0.9], cohort_policy(), 4).k == 4


def test_threshold_does_not_explore_from_a_rung_at_the_floor(cohort_policy: Any) -> None:
    assert One(threshold.wish, [0.9, 0.51], cohort_policy(), 2).k == 2


def test_threshold_gives_up_a_rung_that_fails_before_its_last_position_is_reached(cohort_policy: Any) -> None:
    assert One(threshold.wish, [0.9, 0.9, 0.9, 0.9, 0.1], cohort_policy(), 8).k == 4


def test_threshold_names_the_position_that_failed(cohort_policy: Any) -> None:
    wish = One(threshold.wish, [0.9, 0.25, 0.9, 0.9], cohort_policy(), 4)
    assert wish.position == 1
    assert wish.accepted == pytest.approx(0.25, abs=0.02)
    assert wish.gain == pytest.approx(0.5, abs=0.04)


def test_threshold_stays_on_the_smallest_rung_where_the_ladder_has_no_zero(cohort_policy: Any) -> None:
    wish = One(threshold.wish, [0.1, 0.1], cohort_policy(ladder=(2, 4)), 2)
    assert (wish.k, wish.is_blocked) == (2, False)


def test_threshold_says_when_only_a_probe_can_look_deeper(cohort_policy: Any) -> None:
    assert One(threshold.wish, [0.9, 0.9, 0.2, 0.2], cohort_policy(), 2).is_blocked


@pytest.mark.parametrize(("floor", "expected"), [(0.0, 8), (1.0, 0)])
def test_threshold_at_the_ends_of_the_floor(cohort_policy: Any, floor: float, expected: int) -> None:
    assert One(threshold.wish, [0.6] * 8, cohort_policy(acceptance_floor=floor), 2).k == expected


def test_threshold_with_a_single_rung_has_nothing_to_wish(cohort_policy: Any) -> None:
    assert One(threshold.wish, [0.9], cohort_policy(ladder=(0,), start=0, fallback=0), 0).k == 0


@pytest.mark.parametrize("lower", [0.2, 0.5, 0.7])
def test_threshold_is_monotone_in_acceptance(cohort_policy: Any, lower: float) -> None:
    low = One(threshold.wish, [lower] * 8, cohort_policy(), 2).k
    high = One(threshold.wish, [lower + 0.2] * 8, cohort_policy(), 2).k
    assert low <= high


def test_fixed_always_wishes_for_start(cohort_policy: Any) -> None:
    assert One(fixed.wish, [0.0] * 8, cohort_policy(tuner="fixed", start=4), 8).k == 4
