"""Joules: fitted to windows, unknown until enough were measured."""

import numpy as np
import numpy.typing as npt
import pytest

from controlplane.decision.power import LEAST_WINDOWS, Power

IDLE_W, BUSY_W, POSITION_J = 60.0, 300.0, 0.02


def windows(count: int, seed: int = 0, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """One-second windows, busy for a part of it, of a machine whose power is known."""
    rng = np.random.default_rng(seed)
    busy, positions = rng.uniform(0, 1, count), rng.uniform(0, 5000, count)
    joules = scale * (IDLE_W * (1.0 - busy) + BUSY_W * busy + POSITION_J * positions)
    return np.stack([np.ones(count), busy, positions, joules], axis=1)


def joules_of(power: Power, seconds: float, positions: float) -> float | None:
    joules = power.joules(np.array([seconds]), np.array([positions]))
    return None if joules is None else float(joules[0])


@pytest.mark.parametrize(("seconds", "positions"), [(0.02, 1.0), (0.02, 64.0), (1.0, 3000.0)])
def test_a_step_costs_its_busy_seconds_and_its_positions(seconds: float, positions: float) -> None:
    power = Power.unknown().learn(windows(100))
    assert joules_of(power, seconds, positions) == pytest.approx(BUSY_W * seconds + POSITION_J * positions, rel=0.02)


def test_energy_is_unknown_until_enough_windows_were_measured() -> None:
    assert joules_of(Power.unknown().learn(windows(int(LEAST_WINDOWS) - 1)), 1.0, 1.0) is None


def test_a_worker_without_a_meter_teaches_nothing() -> None:
    assert joules_of(Power.unknown().learn(np.zeros((0, 4))), 1.0, 1.0) is None


def test_windows_that_all_look_alike_still_give_what_such_a_window_costs() -> None:
    alike = np.tile([1.0, 0.8, 1000.0, 272.0], (50, 1))
    joules = joules_of(Power.unknown().learn(alike), 0.8, 1000.0)
    assert joules is not None
    assert 0.0 < joules <= 272.0 * 1.01


def test_a_meter_that_always_reads_nothing_is_no_meter() -> None:
    assert joules_of(Power.unknown().learn(windows(50, scale=0.0)), 1.0, 1.0) is None


def test_no_position_is_ever_taken_to_give_energy_back() -> None:
    rng = np.random.default_rng(1)
    odd = windows(50)
    odd[:, 3] = rng.uniform(50, 60, 50) - 0.001 * odd[:, 2]
    power = Power.unknown().learn(odd)
    few, many = joules_of(power, 0.5, 10.0), joules_of(power, 0.5, 10_000.0)
    assert few is not None
    assert many is not None
    assert many >= few


def test_a_machine_that_draws_more_than_before_is_learnt_anew() -> None:
    power = Power.unknown().learn(windows(200))
    for seed in range(10):
        power = power.learn(windows(100, seed=seed, scale=2.0))
    assert joules_of(power, 1.0, 0.0) == pytest.approx(2 * BUSY_W, rel=0.02)


def test_the_order_of_windows_changes_nothing() -> None:
    rows = windows(30)
    forward, backward = Power.unknown().learn(rows), Power.unknown().learn(rows[::-1])
    assert joules_of(forward, 0.5, 100.0) == pytest.approx(joules_of(backward, 0.5, 100.0))
