"""What an energy meter may say: a difference, or nothing; never a negative number and never a 0 for the unknown."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from controlplane.telemetry import EnergySource
from workers.energy import EnergyMeter, NoEnergyReader, Reading, energy_between, select_energy_reader
from workers.energy.nvml import NvmlUnavailable, board


class ScriptedReader:
    """Cumulative microjoules from a list."""

    source: EnergySource = "counter"
    detail = "a script"

    def __init__(self, values: Iterable[int | None]) -> None:
        self._values = iter(values)

    def read(self) -> Reading:
        return Reading(next(self._values), self.source)

    def close(self) -> None:
        pass


def test_energy_is_the_difference_of_two_readings() -> None:
    assert energy_between(Reading(1_000, "counter"), Reading(1_750, "counter")) == 750


def test_no_use_is_zero_and_not_unknown() -> None:
    assert energy_between(Reading(1_000, "counter"), Reading(1_000, "counter")) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Reading(None, "counter"), Reading(5, "counter")),
        (Reading(5, "counter"), Reading(None, "counter")),
        (Reading(5, "counter"), Reading(9, "power")),
        (Reading(1_000, "counter"), Reading(10, "counter")),
    ],
    ids=["unknown before", "unknown after", "another source", "counter reset"],
)
def test_a_difference_that_is_not_known_is_none(before: Reading, after: Reading) -> None:
    assert energy_between(before, after) is None


def test_a_meter_answers_per_window_and_drops_the_one_with_a_reset() -> None:
    meter = EnergyMeter(ScriptedReader([100, 150, 20, 60, None, 80, 90]))
    windows = [meter.since_last()[0] for _ in range(6)]
    assert windows == [50, None, 40, None, None, 10]


def test_nothing_is_measured_on_a_cpu_and_the_meter_says_so() -> None:
    meter = select_energy_reader("cpu")
    assert (meter.source, meter.since_last(), meter.read()) == ("none", (None, "none"), Reading(None, "none"))
    assert "cpu" in meter.detail


def test_the_empty_reader_never_says_zero() -> None:
    reader = NoEnergyReader("no meter")
    assert [reader.read().energy_uj for _ in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("cuda", None, 0),
        ("cuda:1", "", 1),
        ("cuda:0", "3,1", 3),
        ("cuda:1", "3, 1", 1),
        ("cuda:0", "GPU-aa-bb", "GPU-aa-bb"),
    ],
)
def test_a_torch_device_is_a_board_behind_the_visible_devices(
    device: str, visible: str | None, name: int | str
) -> None:
    assert board(device, visible) == name


@pytest.mark.parametrize(("device", "visible", "says"), [("cuda:2", "0,1", "no device 2"), ("cuda", "MIG-1", "MIG")])
def test_a_device_without_a_board_of_its_own_is_refused(device: str, visible: str, says: str) -> None:
    with pytest.raises(NvmlUnavailable, match=says):
        board(device, visible)
