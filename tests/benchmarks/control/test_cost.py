"""The cost of a step: the table's own points, stairs, straight lines beyond, and never cheaper for more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.control.cost import Cost
from benchmarks.control.profile import shipped_profiles

SHIPPED = [Cost(profile) for profile in shipped_profiles()]
IDS = [cost.profile.name for cost in SHIPPED]


@pytest.fixture
def cost(small) -> Cost:
    return Cost(small)


def test_the_table_is_met_at_its_points(cost) -> None:
    assert cost.verify_s[[1, 8, 32, 128]] == pytest.approx([0.010, 0.0105, 0.014, 0.040])


def test_positions_are_rounded_up_to_the_next_size(cost) -> None:
    assert cost.verify_s[9] == cost.verify_s[16] < cost.verify_s[17] == cost.verify_s[24]


def test_beyond_the_largest_size_positions_are_rounded_to_multiples_of_the_last_gap(cost) -> None:
    assert cost.verify_s[33] == cost.verify_s[40] < cost.verify_s[41]


def test_beyond_the_table_the_last_slope_goes_on(cost) -> None:
    slope = (0.040 - 0.014) / 96
    assert cost.verify_s[1024] == pytest.approx(0.040 + slope * (1024 - 128))


def test_without_sizes_nothing_is_rounded(small) -> None:
    bare = Cost(small.model_copy(update={"cost": small.cost.model_copy(update={"padding": ()})}))
    assert bare.verify_s[20] == pytest.approx(0.0105 + 12 / 24 * 0.0035)


def test_a_step_is_verification_context_drafting_and_the_price_of_being_on(cost) -> None:
    seconds, drafting = cost.step((3, 2), (2, 0))
    verify, context = cost.verify_s[3 * 3 + 2], 5 * 500 * 0.1 / 1e6
    assert drafting == pytest.approx(0.0004 + 2 * 0.1 * cost.verify_s[3])
    assert seconds == pytest.approx(verify + context + drafting)


def test_a_plain_step_drafts_nothing(cost) -> None:
    assert cost.step((3, 2), (0, 0))[1] == 0.0


def test_an_absent_cohort_drafts_nothing(cost) -> None:
    assert cost.step((3, 0), (0, 4)) == cost.step((3, 0), (0, 0))


@pytest.mark.parametrize("cost", SHIPPED, ids=IDS)
def test_more_positions_never_take_less_time(cost) -> None:
    assert (np.diff(cost.verify_s) >= 0).all()
    assert (np.diff(cost.uniform_s[1:], axis=0) >= 0).all()


@pytest.mark.parametrize("cost", SHIPPED, ids=IDS)
def test_a_deeper_rung_takes_longer(cost) -> None:
    assert (np.diff(cost.uniform_s[1:], axis=1) > 0).all()


@settings(deadline=None, max_examples=40)
@given(
    sequences=st.lists(st.integers(0, 80), min_size=3, max_size=3).filter(any),
    k=st.lists(st.integers(0, 8), min_size=3, max_size=3),
)
def test_the_two_ways_to_price_a_step_agree(sequences, k) -> None:
    for cost in SHIPPED:
        seconds, drafting = cost.step(sequences, k)
        n, depth = np.array([sequences]), np.array([k])
        assert cost.seconds(n, depth)[0] == pytest.approx(seconds)
        assert cost.drafting(n, depth)[0] == pytest.approx(drafting)


def test_what_a_worker_measures_is_near_the_truth_and_differs_by_generator(cost) -> None:
    measured = [cost.measured(8, 2, np.random.default_rng(seed))[0] for seed in range(200)]
    truth = cost.step((8,), (2,))[0]
    assert np.mean(measured) == pytest.approx(truth, rel=0.005)
    # The median of five normal values has 0.54 times their deviation.
    assert np.std(measured) / truth == pytest.approx(0.54 * 0.03, rel=0.25)
