"""The score: hand-made worlds whose goodput can be worked out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.control.arms import clairvoyant, fixed
from benchmarks.control.score import MIN_CELL_SHARE, cells, changes, drawn_goodput, rates, score
from benchmarks.control.world import World, build
from controlplane.telemetry import load_bucket


@pytest.fixture
def world(small) -> World:
    return build(small, 0)


def test_goodput_is_expected_tokens_over_the_noiseless_time_of_each_step(world) -> None:
    k = np.tile([4, 1], (world.steps, 1))
    t = 17
    a, b = world.sequences[t].tolist()
    tokens = a * world.survival[t, 0, :5].sum() + b * world.survival[t, 1, :2].sum()
    assert rates(world, k)[t] == pytest.approx(tokens / world.cost.step((a, b), (4, 1))[0])


def test_the_luck_of_the_draw_does_not_enter_the_score(world, small) -> None:
    k = np.full_like(world.sequences, 2)
    other = World.of(small, 99, world.sequences, world.survival)
    assert np.array_equal(rates(world, k), rates(other, k))
    assert drawn_goodput(world, k) != drawn_goodput(other, k)


def test_drawn_goodput_counts_what_the_steps_brought(world) -> None:
    k = np.tile([4, 1], (world.steps, 1))
    outcomes = [world.outcome(t, k[t]) for t in range(world.steps)]
    tokens = sum(int(o.sequences.sum() + (o.counts @ np.arange(5)).sum()) for o in outcomes)
    assert drawn_goodput(world, k) == pytest.approx(tokens / sum(o.seconds for o in outcomes))


def test_drawn_and_expected_agree_where_load_is_constant(small) -> None:
    sequences = np.full((4000, 2), 10)
    law = build(small.model_copy(update={"steps": 4000}), 0).survival
    world = World.of(small, 0, sequences, law)
    k = np.full_like(sequences, 2)
    assert drawn_goodput(world, k) == pytest.approx(rates(world, k).mean(), rel=0.005)


def test_the_clairvoyant_arm_scores_a_hundred_and_the_best_fixed_k_gains_nothing(world) -> None:
    best, ceiling = fixed.best(world), clairvoyant.plan(world)
    assert score(world, ceiling, ceiling, best).percent_of_clairvoyant == 100.0
    own = score(world, best, ceiling, best)
    assert own.gain_over_best_fixed_percent == 0.0
    assert own.worst_cell_percent == 0.0
    assert own.changes_per_step == 0.0


def test_in_no_cell_does_a_fixed_k_do_better_than_the_clairvoyant_arm(world) -> None:
    percent = cells(world, clairvoyant.plan(world)).percent
    assert np.nanmin(percent) >= -1e-9


def test_a_cell_is_the_arm_beside_a_rung_in_its_place_as_a_share_of_the_cohorts_tokens(world) -> None:
    k = np.tile([4, 1], (world.steps, 1))
    bucket = load_bucket(12)
    runs = [
        t for t in range(world.steps) if load_bucket(int(world.sequences[t].sum())) == bucket and world.sequences[t, 0]
    ]
    assert len(runs) > MIN_CELL_SHARE * world.steps
    gained = of = 0.0
    for t in runs:
        (a, b), (ours, theirs) = world.sequences[t].tolist(), world.survival[t, 0, [4, 2]].tolist()
        own = [a * world.survival[t, 0, : d + 1].sum() for d in (4, 2)]
        rest = b * world.survival[t, 1, :2].sum()
        seconds = [world.cost.step((a, b), (d, 1))[0] for d in (4, 2)]
        gained += (own[0] + rest) / seconds[0] - (own[1] + rest) / seconds[1]
        of += own[1] / seconds[1]
    assert ours < theirs
    assert cells(world, k).against(2)[bucket, 0] == pytest.approx(100 * gained / of)


def test_a_cell_with_too_few_steps_is_left_out(world) -> None:
    sequences = world.sequences.copy()
    sequences[:] = [10, 10]
    sequences[: int(MIN_CELL_SHARE * world.steps) - 1] = [1, 0]
    few = replace(world, sequences=sequences)
    found = cells(few, np.full_like(sequences, 1))
    assert found.steps[0, 0] == int(MIN_CELL_SHARE * world.steps) - 1
    assert np.isnan(found.against(0)[0, 0])
    assert not np.isnan(found.against(0)[load_bucket(20), 0])


def test_the_gap_to_a_cells_own_best_is_to_the_rung_that_leaves_least(world) -> None:
    found = cells(world, np.full_like(world.sequences, 2))
    counted = ~np.isnan(found.percent[:, :, 0])
    assert (found.against_own_best()[counted] <= 0).all()
    assert (found.against_own_best()[counted] == found.percent[counted].min(axis=1)).all()


def test_changes_are_counted_while_a_cohort_runs() -> None:
    sequences = np.array([[1, 1], [1, 0], [1, 0], [1, 1]])
    k = np.array([[2, 0], [4, 8], [4, 0], [2, 0]])
    assert changes(sequences, k) == 2
