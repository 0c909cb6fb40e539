"""The arms: nobody beats the one who knows, each rule does what it says, and none sees the future."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks.control.arms import clairvoyant, fixed
from benchmarks.control.arms.base import Setting, drive, rung_index
from benchmarks.control.arms.ema_tiers import EmaTiers
from benchmarks.control.arms.lifetime_rates import LifetimeRates
from benchmarks.control.arms.throughput_ucb import ThroughputUcb
from benchmarks.control.arms.up_down import UpDown
from benchmarks.control.cost import Cost
from benchmarks.control.profile import Profile, shipped_profiles
from benchmarks.control.roster import BEST_FIXED, CLAIRVOYANT, OURS, PLANNED, REACTING
from benchmarks.control.score import rates
from benchmarks.control.world import StepOutcome, World, build

RULES = {name: factory for name, factory in REACTING.items() if name not in (OURS, "threshold")}
"""Those of others; the production controller has tests of its own."""


def setting(profile: Profile, seed: int = 0) -> Setting:
    return Setting(profile, Cost(profile), seed)


def outcome(profile: Profile, sequences: list[int], k: list[int], accepted: list[list[int]]) -> StepOutcome:
    """accepted: of each sequence, by cohort."""
    counts = np.stack([np.bincount(each, minlength=profile.depth + 1) for each in accepted])
    return StepOutcome(np.array(sequences), np.array(k), counts, 0.02, 0.001)


@pytest.fixture(scope="module")
def shares() -> dict[str, dict[str, float]]:
    """Profile -> arm -> percent of clairvoyant goodput, over two seeds of 2500 steps."""
    found: dict[str, dict[str, float]] = {}
    for profile in shipped_profiles():
        short = profile.model_copy(update={"steps": 2500})
        goodput: dict[str, list[float]] = {}
        for seed in range(2):
            world = build(short, seed)
            for name, plan in PLANNED.items():
                goodput.setdefault(name, []).append(rates(world, plan(world)).mean())
            for name, factory in RULES.items():
                goodput.setdefault(name, []).append(rates(world, drive(factory(setting(short, seed)), world)).mean())
        ceiling = np.array(goodput[CLAIRVOYANT])
        found[profile.name] = {name: 100 * float(np.mean(each / ceiling)) for name, each in goodput.items()}
    return found


def test_nobody_beats_the_clairvoyant_arm(shares) -> None:
    assert max(share for arms in shares.values() for share in arms.values()) == 100.0


def test_at_no_step_is_anyone_better_than_the_clairvoyant_arm(small) -> None:
    world = build(small, 1)
    ceiling = rates(world, clairvoyant.plan(world))
    for factory in REACTING.values():
        k = drive(factory(setting(small)), world)
        on_rungs = np.isin(k, small.ladder).all(axis=1)  # under a price, ours drafts between the rungs too
        assert (rates(world, k) <= ceiling * (1 + 1e-12))[on_rungs].all()


def test_the_clairvoyant_arm_finds_what_trying_everything_finds(small) -> None:
    world = build(small, 2)
    chosen = rates(world, clairvoyant.plan(world))
    for t in range(0, world.steps, 97):
        best = 0.0
        for k in product(small.ladder, repeat=2):
            tokens = sum(world.sequences[t, c] * world.expected_tokens[t, c, depth] for c, depth in enumerate(k))
            best = max(best, tokens / world.cost.step(world.sequences[t].tolist(), k)[0])
        assert chosen[t] == pytest.approx(best)


def test_the_clairvoyant_arm_knows_the_law_and_not_the_draws(small) -> None:
    world = build(small, 2)
    other = World.of(small, 77, world.sequences, world.survival)
    assert not np.array_equal(world.counts, other.counts)
    assert np.array_equal(clairvoyant.plan(world), clairvoyant.plan(other))


def test_no_other_fixed_k_is_better_than_the_best(small) -> None:
    world = build(small, 5)
    best = rates(world, fixed.best(world)).mean()
    assert best == max(rates(world, np.full_like(world.sequences, k)).mean() for k in small.ladder)


@pytest.mark.parametrize(
    ("profile", "best_fixed", "none"),
    [("big-gpu", (85, 99), (35, 65)), ("small-gpu", (85, 99), (65, 95)), ("early-knee", (85, 99), (70, 95))],
)
def test_arms_that_never_move_land_where_published_simulations_have_them(shares, profile, best_fixed, none) -> None:
    assert best_fixed[0] < shares[profile][BEST_FIXED] < best_fixed[1]
    assert none[0] < shares[profile]["K = 0"] < none[1]


def test_rules_that_ignore_cost_fail_away_from_their_home(shares) -> None:
    assert shares["big-gpu"]["+2/-1"] > 88 > shares["early-knee"]["+2/-1"]
    assert shares["big-gpu"]["EMA tiers"] < 80 < shares["early-knee"]["EMA tiers"]


def test_rules_that_know_cost_or_measure_throughput_stay_near_the_best_fixed_k(shares) -> None:
    for arms in shares.values():
        assert 85 < arms["lifetime rates"] < 99.5
        assert 85 < arms["throughput UCB"] < 99.5


@pytest.mark.parametrize("name", REACTING)
def test_an_arm_keeps_to_the_ladder_and_repeats_itself(small, name) -> None:
    world = build(small, 0)
    chosen = drive(REACTING[name](setting(small)), world)
    if name == "ours":  # its slots are ragged: a rung is a ceiling, what does not pay is left out (ADR 0004)
        assert chosen.max() in small.ladder
    else:
        assert set(np.unique(chosen)) <= set(small.ladder)
    assert np.array_equal(chosen, drive(REACTING[name](setting(small)), world))


@pytest.mark.parametrize("name", REACTING)
def test_an_arm_does_not_see_the_future(small, name) -> None:
    world = build(small, 0)
    changed = replace(world, counts=np.where(np.arange(600)[:, None, None] < 300, world.counts, world.counts[::-1]))
    first, other = (drive(REACTING[name](setting(small)), each) for each in (world, changed))
    assert np.array_equal(first[:301], other[:301])


def test_a_rung_index_is_of_the_deepest_rung_not_above() -> None:
    assert [rung_index((0, 1, 2, 4), k) for k in (-1, 0, 0.9, 3, 4, 9)] == [0, 0, 0, 2, 3, 3]


def test_up_down_moves_by_the_mean_of_its_sequences(small) -> None:
    arm = UpDown(setting(small))
    running = np.array([2, 2])
    assert arm.choose(0, running).tolist() == [4, 4]
    # One of two kept all: (2 - 1) / 2 up, cut off at the deepest rung; none did: 1 down from 4.
    arm.observe(0, outcome(small, [2, 2], [4, 4], [[4, 1], [0, 1]]))
    assert arm.choose(1, running).tolist() == [4, 2]
    for t in range(9):
        arm.observe(t, outcome(small, [2, 0], [4, 2], [[0, 0], []]))
    assert arm.choose(9, running).tolist() == [1, 2]


def test_ema_tiers_go_by_batch_size(small) -> None:
    arm = EmaTiers(setting(small))
    assert arm.choose(0, np.array([1, 1])).tolist() == [1, 1]
    for t in range(10, 60, 5):
        arm.observe(t, outcome(small, [1, 1], [4, 4], [[4], [0]]))
        arm.choose(t, np.array([1, 1]))
    assert arm.choose(60, np.array([1, 1])).tolist() == [4, 1]
    assert arm.choose(61, np.array([100, 100])).tolist() == [0, 0]


def test_ema_tiers_at_zero_try_again_at_the_next_move(small) -> None:
    arm = EmaTiers(setting(small))
    arm.choose(0, np.array([100, 100]))
    assert arm.choose(11, np.array([20, 20])).tolist() == [0, 0]
    assert arm.choose(15, np.array([20, 20])).tolist() == [1, 1]


def test_ema_tiers_go_down_where_the_average_fell_below_the_next_lower_tier(small) -> None:
    arm, running = EmaTiers(setting(small)), np.array([1, 1])
    for t in range(10, 60, 5):
        arm.observe(t, outcome(small, [1, 1], [4, 4], [[4], [4]]))
        arm.choose(t, running)
    for t in range(60, 120, 5):
        arm.observe(t, outcome(small, [1, 1], [4, 4], [[0], [4]]))
        arm.choose(t, running)
    assert arm.choose(121, running).tolist() == [1, 4]


def test_the_lifetime_rule_counts_a_position_as_drafted_only_where_it_was(small) -> None:
    arm = LifetimeRates(setting(small))
    arm.observe(0, outcome(small, [1, 0], [4, 0], [[4], []]))
    for t in range(1, 20):
        arm.observe(t, outcome(small, [1, 0], [1, 0], [[1], []]))
    assert arm.choose(20, np.array([1, 0])).tolist() == [4, 4]


def test_the_lifetime_rule_never_learns_again_once_it_stopped_drafting(small) -> None:
    arm, running = LifetimeRates(setting(small)), np.array([8, 8])
    for t in range(20):
        arm.observe(t, outcome(small, [8, 8], [4, 4], [[0] * 8, [0] * 8]))
    assert arm.choose(20, running).tolist() == [0, 0]
    for t in range(20, 500):
        k = arm.choose(t, running)
        arm.observe(t, outcome(small, [8, 8], k.tolist(), [[int(k[0])] * 8, [int(k[1])] * 8]))
    assert arm.choose(500, running).tolist() == [0, 0]


def test_the_bandit_tries_every_rung_of_a_bucket_then_prefers_the_best(small) -> None:
    arm, running, chosen = ThroughputUcb(setting(small)), np.array([4, 4]), []
    for t in range(400):
        k = int(arm.choose(t, running)[0])
        chosen.append(k)
        accepted = min(k, 1)
        seen = outcome(small, [4, 4], [k, k], [[accepted] * 4, [accepted] * 4])
        arm.observe(t, replace(seen, seconds=0.010 + 0.002 * k))
    assert sorted(chosen[:4]) == list(small.ladder)
    assert chosen[200:].count(1) > 100
