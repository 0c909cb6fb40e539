"""The control loop on simulated streams whose true acceptance is known: 25 steps a second, plans a second late."""

import random
from typing import Any

import pytest


def steady(hazard: float) -> Any:
    return lambda second: (hazard,) * 16


def share_of_steps(world: Any, *ks: int) -> float:
    return sum(world.steps_at[k] for k in ks) / sum(world.steps_at.values())


def test_a_well_accepted_cohort_climbs_to_the_top_and_stays(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), steady(0.9)).run(120)
    assert set(run.ks[40:]) == {8}


@pytest.mark.parametrize("hazard", [0.1, 0.3])
def test_a_badly_accepted_cohort_falls_to_zero_and_is_probed_at_little_cost(
    cohort_policy: Any, world: Any, hazard: float
) -> None:
    run = world(cohort_policy(), steady(hazard)).run(400)
    assert set(run.ks[5:]) <= {0, 1}
    assert 0.0 < share_of_steps(run, 1, 2, 4, 8) < 0.05


def test_k_rests_on_the_deepest_rung_at_the_floor(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), lambda second: (0.9, 0.8, 0.7, 0.6, 0.3, 0.3, 0.3, 0.3)).run(300)
    assert share_of_steps(run, 4) > 0.85


def test_a_fall_of_acceptance_is_answered_within_a_few_ticks(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), lambda second: (0.9 if second < 120 else 0.35,) * 16).run(200)
    assert run.ks[119] == 8
    assert 0 in run.ks[120:126]


def test_acceptance_that_comes_back_is_found_by_a_probe(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), lambda second: (0.1 if second < 120 else 0.9,) * 16).run(280)
    assert run.ks[119] == 0
    back_at = next(t for t in range(120, 280) if run.ks[t] == 8)
    assert back_at < 120 + 2 * 60 + 30
    assert set(run.ks[back_at:]) == {8}


def test_a_deep_rung_given_up_is_taken_again_when_it_recovers(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), lambda second: (0.9,) * 4 + ((0.2,) * 4 if second < 150 else (0.9,) * 4)).run(420)
    assert run.ks[149] in (4, 8)
    assert run.steps_at[4] > run.steps_at[2]
    assert set(run.ks[-100:]) == {8}


@pytest.mark.parametrize("hazard", [0.47, 0.5, 0.53])
def test_acceptance_at_the_floor_does_not_make_k_flap(cohort_policy: Any, world: Any, hazard: float) -> None:
    run = world(cohort_policy(), steady(hazard)).run(480)
    assert run.changes / 8 < 3


def test_requests_that_differ_do_not_make_k_flap(cohort_policy: Any, world: Any) -> None:
    """Every four seconds other text, half of it nearly verbatim and half of it free: mixed acceptance about 0.7."""
    rng = random.Random(5)
    texts = [rng.choice((0.45, 0.95)) for _ in range(500)]
    run = world(cohort_policy(), lambda second: (texts[second // 4],) * 16).run(600)
    assert run.changes / 10 < 3
    assert share_of_steps(run, 8) > 0.4


def test_a_silent_drafter_is_not_a_rejected_one(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), steady(0.9), silence=1.0).run(60)
    assert set(run.ks) == {2}


def test_a_drafter_that_rarely_speaks_is_judged_on_what_it_says(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), steady(0.9), silence=0.95).run(300)
    assert run.ks[-1] == 8


def test_a_cohort_with_little_traffic_learns_over_several_probes(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), lambda second: (0.1 if second < 120 else 0.95,) * 16, steps_per_s=4).run(900)
    assert run.ks[119] == 0
    assert run.ks[-1] == 8


def test_an_unchanging_stream_is_held_without_alarms(cohort_policy: Any, world: Any) -> None:
    run = world(cohort_policy(), steady(0.75)).run(360)
    assert run.changes <= 6
