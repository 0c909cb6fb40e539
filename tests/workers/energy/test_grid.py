"""Samples lie shortly before windows close, however late windows are."""

from __future__ import annotations

import random

import pytest

from workers.energy.grid import LEAD_S, WindowGrid


def test_a_sample_comes_shortly_before_a_window_closes() -> None:
    grid = WindowGrid(1.0, 10.0)
    assert grid.next_sample(10.0) == pytest.approx(11.0 - LEAD_S)


@pytest.mark.parametrize("window_s", [1.0, 1.5, 2.7, 60.0])
def test_windows_are_of_a_whole_number_of_samples_a_second_or_more_apart(window_s: float) -> None:
    period = WindowGrid(window_s, 0.0).period_s
    assert 1 <= period < 2
    assert window_s / period == pytest.approx(round(window_s / period))


def test_short_windows_are_sampled_once_a_second_nonetheless() -> None:
    grid = WindowGrid(0.1, 0.0)
    grid.closed(0.1)
    assert grid.next_sample(5.0) == 6.0


@pytest.mark.parametrize("step_s", [0.0, 0.02, 0.3])
def test_every_window_has_one_sample_though_it_closes_late_by_up_to_a_step(step_s: float) -> None:
    rng, grid = random.Random(7), WindowGrid(1.0, 0.0)
    sample, counts = grid.next_sample(0.0), []
    for k in range(1, 200):
        close, seen = k + rng.uniform(0, step_s), 0
        while sample <= close:
            seen += 1
            sample = grid.next_sample(sample)
        counts.append(seen)
        grid.closed(close)
    assert counts == [1] * len(counts)


def test_after_a_window_that_was_far_too_late_samples_follow_the_new_grid() -> None:
    grid = WindowGrid(1.0, 0.0)
    grid.closed(1.0)
    grid.closed(4.6)
    assert grid.next_sample(4.4) == pytest.approx(5.6 - LEAD_S)


def test_stretches_are_never_much_shorter_than_a_period() -> None:
    rng, grid, last = random.Random(3), WindowGrid(1.0, 0.0), 0.0
    for _ in range(300):
        grid.closed(last + rng.uniform(0.0, 1.5))
        sample = grid.next_sample(last)
        assert 0.74 <= sample - last <= 1.76
        last = sample
