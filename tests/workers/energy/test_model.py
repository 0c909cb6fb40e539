"""The estimate: only where it was asked for, and of CPU time that really passed."""

from __future__ import annotations

import pytest

from controlplane.settings import Settings, SettingsError, load_settings
from workers.energy import open_reader
from workers.energy.base import Spent
from workers.energy.model import ModelReader, PowerModel, cpu_utilisation


def test_a_stretch_is_idle_power_and_the_used_part_of_the_rest() -> None:
    reader = ModelReader(PowerModel(20, 100), lambda seconds: 0.25, "")
    assert [reader.spent(0.0).gap, reader.spent(2.0)] == ["begin", Spent(80_000_000, "model")]


def test_without_a_utilisation_there_is_no_estimate() -> None:
    reader = ModelReader(PowerModel(20, 100), lambda seconds: None, "")
    reader.spent(0.0)
    assert reader.spent(1.0).energy_uj is None


def test_a_cpu_workers_utilisation_is_its_cpu_time_in_the_time_of_its_threads() -> None:
    clock = iter([0, 3_000_000_000, 20_000_000_000])
    utilisation = cpu_utilisation(2, clock.__next__)
    assert [utilisation(2.0), utilisation(2.0)] == [0.75, 1.0]


def test_nothing_is_estimated_unless_configured(tmp_path: object) -> None:
    reader = open_reader(Settings(energy_powercap=tmp_path), "cpu")
    assert (reader.source, reader.spent(0.0).energy_uj, reader.spent(1.0).energy_uj) == ("none", None, None)


def test_a_cpu_without_a_meter_is_estimated_where_configured_and_says_so(tmp_path: object) -> None:
    settings = Settings(energy_powercap=tmp_path, energy_model_idle_w=10, energy_model_tdp_w=40)
    reader = open_reader(settings, "cpu")
    assert reader.source == "model"
    assert reader.detail.startswith("an estimate from 10 W idle to 40 W full, as configured; not measured: no RAPL")
    reader.spent(0.0)
    assert 10_000_000 <= (reader.spent(1.0).energy_uj or 0) <= 40_000_000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"energy_model_idle_w": 10}, "energy_model_tdp_w is missing"),
        ({"energy_model_tdp_w": 10}, "energy_model_idle_w is missing"),
        ({"energy_model_idle_w": 10, "energy_model_tdp_w": 10}, "energy_model_tdp_w (10) must be over"),
        ({"energy_idle_w": -1}, "--energy-idle-w: input should be greater than or equal to 0"),
        ({"energy_idle_w": "nan"}, "--energy-idle-w"),
    ],
)
def test_impossible_watts_are_refused_by_name(flags: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(**flags)
    assert says in str(refused.value)
