"""What a window is told of its energy: each microjoule once, nothing made up, nothing for idle that was not idle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.energy.base import EnergyReading, Gap, Spent
from workers.energy.idle import LEAST, SETTLE_S, IdlePower
from workers.energy.integral import Integral
from workers.energy.windows import WindowEnergy

STALE_S = 3.0


class Worker:
    """A meter's sum and the windows that take from it, by one clock that starts at 0."""

    def __init__(self, idle_w: float | None = None) -> None:
        self.windows = WindowEnergy(0.0, 0.0, STALE_S, IdlePower(idle_w))
        self.integral = Integral(0.0)
        self.now = 0.0

    def sample(self, at: float, joules: float | None, **spent: object) -> None:
        energy_uj = None if joules is None else round(joules * 1e6)
        self.integral = self.integral.add(replace(Spent(energy_uj, "counter"), **spent), at, "counter")  # type: ignore[arg-type]

    def close(self, at: float, is_idle: bool = False) -> EnergyReading:
        self.now = at
        return self.windows.close(self.integral, "counter", at, at, is_idle)

    def second(self, joules: float, is_idle: bool, is_shared: bool = False) -> EnergyReading:
        """A window of a second with a sample at its end."""
        self.sample(self.now + 1, joules, is_shared=is_shared)
        return self.close(self.now + 1, is_idle)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_window_has_what_was_added_since_the_one_before(worker: Worker) -> None:
    worker.sample(0.9, 30)
    first = worker.close(1.0)
    worker.sample(1.9, 50)
    worker.sample(2.9, 70)
    assert (first, worker.close(3.0)) == (EnergyReading(30_000_000, "counter"), EnergyReading(120_000_000, "counter"))


def test_a_device_that_used_nothing_used_zero_and_that_is_known(worker: Worker) -> None:
    worker.sample(0.9, 0)
    assert worker.close(1.0).energy_uj == 0


@pytest.mark.parametrize("gap", ["reset", "lost"])
def test_a_gap_makes_its_window_unknown_and_no_other(worker: Worker, gap: Gap) -> None:
    worker.sample(0.9, 30)
    worker.close(1.0)
    worker.sample(1.5, None, gap=gap)
    worker.sample(1.9, 40)
    assert worker.close(2.0) == EnergyReading(None, "counter")
    worker.sample(2.9, 50)
    assert worker.close(3.0).energy_uj == 50_000_000
    assert worker.windows.dropped == {gap: 1}


def test_a_window_that_closes_before_its_sample_has_an_advance_that_the_next_one_settles(worker: Worker) -> None:
    worker.sample(0.9, 90)  # 100 W
    windows = [worker.close(1.0), worker.close(1.5)]
    worker.sample(2.0, 130)
    windows.append(worker.close(2.1))
    assert [w.energy_uj for w in windows] == [90_000_000, 50_000_000, 80_000_000]


def test_an_advance_that_was_too_much_is_given_to_nobody_twice(worker: Worker) -> None:
    worker.sample(0.9, 450)  # 500 W
    windows = [worker.close(1.0), worker.close(1.9)]
    worker.sample(2.0, 50)
    windows.append(worker.close(2.1))
    worker.sample(3.0, 600)
    windows.append(worker.close(3.1))
    assert [w.energy_uj for w in windows] == [450_000_000, 450_000_000, None, 200_000_000]
    assert worker.windows.dropped == {"unsettled": 1}


def test_after_a_gap_there_is_no_power_to_give_an_advance_at(worker: Worker) -> None:
    worker.sample(0.9, None, gap="reset")
    worker.close(1.0)
    assert worker.close(1.5).energy_uj is None


def test_windows_while_no_sample_comes_are_unknown_and_counted(worker: Worker) -> None:
    worker.sample(0.9, 30)
    readings = [worker.close(at).energy_uj for at in (1.0, 3.5, 5.0, 6.0)]
    assert readings[2:] == [None, None]
    assert worker.windows.dropped == {"stalled": 2}


def test_before_a_meter_is_found_windows_have_no_source_and_are_not_counted(worker: Worker) -> None:
    assert worker.windows.close(None, "none", 1.0, 1.0, False) == EnergyReading(None, "none")
    assert worker.windows.dropped == {}


def test_a_window_with_a_stretch_by_power_is_labelled_power(worker: Worker) -> None:
    worker.sample(0.5, 30)
    worker.sample(0.9, 20, source="power")
    mixed = worker.close(1.0)
    worker.sample(1.9, 10)
    assert [mixed, worker.close(2.0)] == [EnergyReading(50_000_000, "power"), EnergyReading(10_000_000, "counter")]


def test_an_advance_at_a_power_that_stood_in_for_the_counter_is_labelled_power(worker: Worker) -> None:
    worker.sample(0.9, 90, source="power")
    assert [worker.close(1.0).source, worker.close(1.5).source] == ["power", "power"]


stretches = st.lists(st.tuples(st.integers(0, 900_000_000), st.floats(0.7, 1.4)), min_size=1, max_size=25)
closings = st.lists(st.floats(0.01, 2.5), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(stretches, closings)
def test_windows_add_up_to_the_stretches_to_the_microjoule_wherever_their_edges_lie(
    samples: list[tuple[int, float]], gaps_between_closings: list[float]
) -> None:
    worker = Worker()
    events, at = [], 0.0
    for uj, seconds in samples:
        events.append((at := at + seconds, uj))
    at = 0.0
    for seconds in gaps_between_closings:
        events.append((at := at + seconds, -1))
    handed = 0
    for at, uj in sorted(events):
        if uj >= 0:
            worker.integral = worker.integral.add(Spent(uj, "counter"), at, "counter")
            continue
        taken = worker.windows._taken.stretches
        reading = worker.close(at)
        if reading.energy_uj is None:
            continue
        handed += reading.energy_uj
        if worker.integral.stretches > taken:
            assert handed == worker.integral.energy_uj


def idle_seconds(worker: Worker, count: int, watts: float, is_shared: bool = False) -> None:
    for _ in range(count):
        worker.second(watts, True, is_shared)


LEARNED = int(SETTLE_S) + LEAST
"""Idle windows of a second after which the idle power is known."""


def test_idle_power_is_unknown_until_it_was_seen_often_enough(worker: Worker) -> None:
    idle_seconds(worker, LEARNED - 1, 60)
    assert worker.second(200, False).idle_energy_uj is None


def test_idle_energy_is_idle_power_for_the_length_of_the_window(worker: Worker) -> None:
    idle_seconds(worker, LEARNED, 60)
    worker.sample(worker.now + 2, 700)
    assert worker.close(worker.now + 2).idle_energy_uj == 120_000_000


def test_idle_energy_is_never_more_than_the_window_used(worker: Worker) -> None:
    idle_seconds(worker, LEARNED, 60)
    assert worker.second(40, False) == EnergyReading(40_000_000, "counter", 40_000_000)


def test_idle_power_is_never_learned_while_something_runs(worker: Worker) -> None:
    for _ in range(40):
        worker.second(20, False)
    assert worker.second(200, False).idle_energy_uj is None


def test_the_seconds_after_work_are_not_idle_power_yet(worker: Worker) -> None:
    for _ in range(6):
        worker.second(400, False)
        idle_seconds(worker, int(SETTLE_S), 300)
    assert worker.second(400, False).idle_energy_uj is None


def test_a_board_that_others_use_teaches_no_idle_power(worker: Worker) -> None:
    idle_seconds(worker, 40, 60, is_shared=True)
    assert worker.second(200, False).idle_energy_uj is None


def test_the_operators_idle_power_stands_whatever_is_seen() -> None:
    worker = Worker(idle_w=25)
    first = worker.second(90, True)
    idle_seconds(worker, 40, 60)
    assert [first.idle_energy_uj, worker.second(90, False).idle_energy_uj] == [25_000_000] * 2


def test_unknown_energy_has_no_idle_part() -> None:
    worker = Worker(idle_w=25)
    worker.sample(0.9, None)
    assert worker.close(1.0) == EnergyReading(None, "counter", None)


def test_a_low_reading_and_high_ones_do_not_set_the_idle_power() -> None:
    idle = IdlePower()
    for watts in (3.0, 60.0, 61.0, 60.0, 300.0, 62.0, 61.0, 290.0):
        idle.see(watts)
    assert idle.watts == 61.0 or idle.watts == 60.0


def test_idle_power_follows_a_device_that_changed() -> None:
    idle = IdlePower()
    for watts in [60.0] * 100 + [80.0] * 64:
        idle.see(watts)
    assert idle.watts == 80.0
