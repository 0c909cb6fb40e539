"""The simulated worker keeps the law that it declares."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.control.profile import Cohort, shipped_profiles
from benchmarks.control.world import World, build, ornstein_uhlenbeck, split, stream, survival_of


def constant(profile, level: float, n: int, steps: int, seed: int = 0) -> World:
    survival = survival_of(profile.cohorts[0], np.full(steps, level), profile.depth)[:, None, :]
    return World.of(profile, seed, np.full((steps, 1), n), survival)


def test_the_same_seed_gives_the_same_world(small) -> None:
    first, again = build(small, 3), build(small, 3)
    for field in ("sequences", "survival", "counts", "noise"):
        assert np.array_equal(getattr(first, field), getattr(again, field))


def test_another_seed_or_name_gives_another_world(small) -> None:
    first = build(small, 3)
    for other in (build(small, 4), build(small.model_copy(update={"name": "other"}), 3)):
        assert not np.array_equal(first.sequences, other.sequences)
        assert not np.array_equal(first.noise, other.noise)


@pytest.mark.parametrize("profile", shipped_profiles(), ids=lambda profile: profile.name)
def test_load_stays_within_1_and_256_and_reaches_far(profile) -> None:
    load = np.concatenate([build(profile, seed).sequences.sum(axis=1) for seed in range(4)])
    assert load.min() >= 1
    assert load.max() <= 256
    assert np.percentile(load, 95) / np.percentile(load, 5) > 8


def test_a_correlated_process_has_its_deviation_and_correlation() -> None:
    values = ornstein_uhlenbeck(200_000, 1.5, 50.0, np.random.default_rng(0))
    assert values.std() == pytest.approx(1.5, rel=0.05)
    assert np.corrcoef(values[:-50], values[50:])[0, 1] == pytest.approx(np.exp(-1), abs=0.05)


def test_sequences_are_whole_sum_to_the_load_and_follow_the_shares() -> None:
    shares = np.tile([0.5, 0.3, 0.2], (1000, 1))
    cut = split(np.full(1000, 7), shares, np.arange(1000) / 100)
    assert (cut.sum(axis=1) == 7).all()
    assert np.abs(cut - 7 * shares).max() < 1
    assert cut.mean(axis=0) == pytest.approx(7 * shares[0], abs=0.05)


def test_survival_is_the_product_of_hazards_that_decline_with_depth() -> None:
    cohort = Cohort(name="c", decline=0.1, spread=0.0)
    survival = survival_of(cohort, np.array([0.8]), 3)[0]
    assert survival == pytest.approx([1.0, 0.8, 0.8 * 0.72, 0.8 * 0.72 * 0.648])


def test_unlike_requests_keep_deep_tokens_more_often_than_their_mean_request() -> None:
    like, unlike = (
        survival_of(Cohort(name="c", decline=0.0, spread=spread), np.array([0.5]), 8)[0] for spread in (0.0, 1.0)
    )
    assert unlike[1] == pytest.approx(like[1])
    assert unlike[8] > 2 * like[8]


def test_requests_deviate_by_the_three_point_rule() -> None:
    survival = survival_of(Cohort(name="c", decline=0.0, spread=0.4), np.array([0.7]), 1)[0, 1]
    logit, far = np.log(0.7 / 0.3), 0.4 * 3**0.5
    low, middle, high = (1 / (1 + np.exp(-(logit + u))) for u in (-far, 0.0, far))
    assert survival == pytest.approx(low / 6 + middle * 2 / 3 + high / 6)


def test_mean_acceptance_equals_the_declared_law(small) -> None:
    world = constant(small, 0.8, 20, 3000)
    at_least = np.cumsum(world.counts.sum(axis=(0, 1))[::-1])[::-1] / (20 * 3000)
    error = np.sqrt(world.survival[0, 0] * (1 - world.survival[0, 0]) / (20 * 3000))
    assert (np.abs(at_least - world.survival[0, 0]) <= 4 * error).all()


def test_what_a_step_emits_has_the_expected_mean(small) -> None:
    world = constant(small, 0.8, 20, 2000)
    accepted = [world.outcome(t, np.array([2])).counts[0] @ np.arange(5) for t in range(world.steps)]
    assert 1 + np.mean(accepted) / 20 == pytest.approx(world.expected_tokens[0, 0, 2], rel=0.01)


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_acceptance_is_censored_at_k(small, k) -> None:
    world = constant(small, 0.9, 50, 100)
    for t in range(100):
        counts = world.outcome(t, np.array([k])).counts[0]
        assert counts.sum() == 50
        assert not counts[k + 1 :].any()
        assert np.array_equal(counts[:k], world.counts[t, 0, :k])


def test_an_outcome_does_not_touch_the_world(small) -> None:
    world = constant(small, 0.9, 50, 10)
    before = world.counts.copy()
    world.outcome(3, np.array([1]))
    assert np.array_equal(world.counts, before)


def test_measured_time_is_the_true_one_with_three_percent_of_noise(small) -> None:
    world = constant(small, 0.9, 8, 5000)
    truth = world.cost.step((8,), (4,))[0]
    measured = np.array([world.outcome(t, np.array([4])).seconds for t in range(world.steps)])
    assert np.log(measured / truth).std() == pytest.approx(0.03, rel=0.05)
    assert np.log(measured / truth).mean() == pytest.approx(0.0, abs=0.002)


def first_position(profile, cohort: Cohort) -> np.ndarray:
    """Levels of a long trace, read back through a law without spread."""
    plain = cohort.model_copy(update={"spread": 0.0})
    return build(profile.model_copy(update={"steps": 20_000, "cohorts": (plain,)}), 0).survival[:, 0, 1]


def test_abrupt_regimes_take_the_declared_levels_and_no_others(small) -> None:
    levels = first_position(small, Cohort(name="c", levels=(0.35, 0.6, 0.92), regime_steps=300, gradual=0.0))
    assert sorted(set(np.round(levels, 6))) == [0.35, 0.6, 0.92]


def test_every_regime_is_followed_by_another_level(small) -> None:
    levels = first_position(small, Cohort(name="c", levels=(0.35, 0.92), regime_steps=200, gradual=0.0))
    assert np.count_nonzero(np.diff(levels)) == pytest.approx(20_000 / 200, rel=0.3)


def test_gradual_drifts_take_their_steps(small) -> None:
    levels = first_position(
        small, Cohort(name="c", levels=(0.35, 0.92), regime_steps=3000, gradual=1.0, ramp_steps=100)
    )
    between = (levels > 0.3501) & (levels < 0.9199)
    assert between.sum() > 95
    assert np.abs(np.diff(levels)).max() < 0.02


def test_streams_of_different_purpose_are_independent(small) -> None:
    one, other = (stream(small, 0, purpose).normal(size=2000) for purpose in ("law", "outcomes"))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
