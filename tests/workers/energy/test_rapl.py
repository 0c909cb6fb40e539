"""RAPL, from a folder of files such as the kernel shows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import Settings
from workers.energy import open_reader
from workers.energy.base import Spent
from workers.energy.cpu_time import CpuTime
from workers.energy.rapl import RaplReader, RaplUnavailable, open_rapl

RANGE_UJ = 262_143_328_850
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Machine:
    """Its powercap folder and /proc/stat, and the CPU time of this process."""

    def __init__(self, root: Path) -> None:
        self.root = root / "powercap"
        self.stat = root / "stat"
        self.own_ns = 0
        self.set_busy(0)

    def zone(self, folder: str, name: str, energy_uj: int) -> None:
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{energy_uj}\n")
        (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")

    def set_energy(self, folder: str, energy_uj: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{energy_uj}\n")

    def set_busy(self, ticks: int) -> None:
        """Of user, nice, system, irq and softirq together; idle, iowait, steal and guest are others."""
        user = ticks - 4
        self.stat.write_text(f"cpu  {user} 1 1 90000 777 1 1 55 33 0\ncpu0 1 2 3 4 5 6 7 8 9 0\nintr 1\n")

    def open(self, **options: Any) -> RaplReader:
        return open_rapl(self.root, cpu_time=CpuTime(self.stat, lambda: self.own_ns), **options)

    def run(self, ticks: int, own_ticks: float) -> None:
        """The machine computes for `ticks` of CPU time, this process for so many of them."""
        busy = sum(int(self.stat.read_text().split()[i]) for i in (1, 2, 3, 6, 7))
        self.set_busy(busy + ticks)
        self.own_ns += round(own_ticks * TICK_NS)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.zone("intel-rapl:0", "package-0", 1_000)
    return made


def test_a_process_that_alone_computes_has_all_of_the_package(machine: Machine) -> None:
    reader = machine.open()
    assert reader.spent(0.0).gap == "begin"
    machine.set_energy("intel-rapl:0", 50_001_000)
    machine.run(100, own_ticks=100)
    assert reader.spent(1.0) == Spent(50_000_000, "rapl")


def test_several_packages_add_up_and_their_parts_are_not_added_again(machine: Machine) -> None:
    machine.zone("intel-rapl:1", "package-1", 500)
    for folder, name in (
        ("intel-rapl:2", "psys"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        machine.zone(folder, name, 7)
    reader = machine.open()
    reader.spent(0.0)
    for path in machine.root.iterdir():
        machine.set_energy(path.name, 10_000_000)
    machine.run(100, own_ticks=100)
    assert reader.spent(1.0).energy_uj == 2 * 10_000_000 - 1_000 - 500
    assert "package-0, package-1:" in reader.detail


def test_a_counter_that_starts_over_at_its_end_goes_on(machine: Machine) -> None:
    machine.set_energy("intel-rapl:0", RANGE_UJ - 30_000_000)
    reader = machine.open()
    reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 20_000_000)
    machine.run(100, own_ticks=100)
    assert reader.spent(1.0).energy_uj == 50_000_000


def test_a_counter_that_went_back_far_from_its_end_was_reset(machine: Machine) -> None:
    machine.set_energy("intel-rapl:0", 90_000_000)
    reader = machine.open()
    reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 20_000_000)
    machine.run(100, own_ticks=100)
    assert (reader.spent(1.0).energy_uj, reader.spent(2.0).gap) == (None, "lost")


@pytest.mark.parametrize("ticks", [(50, 30), (1, 0), (33, 67)])
def test_workers_on_one_machine_split_it_and_never_count_it_twice(
    machine: Machine, tmp_path: Path, ticks: tuple[int, int]
) -> None:
    (tmp_path / "other").mkdir()
    other = Machine(tmp_path / "other")
    other.root, other.stat = machine.root, machine.stat
    readers = [machine.open(), other.open()]
    for reader in readers:
        reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 50_001_000)
    machine.run(100, own_ticks=ticks[0])
    other.own_ns += ticks[1] * TICK_NS
    parts = [reader.spent(1.0).energy_uj for reader in readers]
    assert parts == [500_000 * own for own in ticks]


def test_a_resting_worker_is_given_what_the_operator_says_first(machine: Machine) -> None:
    reader = machine.open(idle_w=10.0, workers=2)
    reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 50_001_000)
    machine.run(100, own_ticks=20)
    # 10 J, and a fifth of what two such workers leave of 50 J.
    assert reader.spent(1.0).energy_uj == 10_000_000 + 30_000_000 // 5


def test_workers_are_never_given_more_rest_than_the_machine_drew(machine: Machine) -> None:
    reader = machine.open(idle_w=40.0, workers=2)
    reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 50_001_000)
    machine.run(100, own_ticks=100)
    assert reader.spent(1.0).energy_uj == 25_000_000


def test_a_process_whose_clock_runs_ahead_of_the_machines_has_no_more_than_all(machine: Machine) -> None:
    reader = machine.open()
    reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 50_001_000)
    machine.run(100, own_ticks=104.5)
    assert reader.spent(1.0).energy_uj == 50_000_000


def test_where_no_cpu_time_passed_no_part_can_be_told(machine: Machine) -> None:
    reader = machine.open()
    reader.spent(0.0)
    machine.set_energy("intel-rapl:0", 50_001_000)
    assert reader.spent(1.0).gap == "lost"


def test_a_file_that_cannot_be_read_for_a_while_is_unknown_for_that_while(machine: Machine) -> None:
    reader = machine.open()
    reader.spent(0.0)
    file = machine.root / "intel-rapl:0" / "energy_uj"
    file.unlink()
    lost = reader.spent(1.0)
    machine.set_energy("intel-rapl:0", 90_000_000)
    machine.run(100, own_ticks=100)
    back = reader.spent(2.0)
    machine.set_energy("intel-rapl:0", 91_000_000)
    machine.run(100, own_ticks=100)
    assert (lost.gap, back.gap, reader.spent(3.0).energy_uj) == ("lost", "begin", 1_000_000)
    assert "energy_uj" in lost.detail


@pytest.mark.parametrize("text", ["", "cpu 1 2", "intr 5 6 7 8 9 1 2 3"])
def test_a_proc_stat_of_another_form_is_no_meter(machine: Machine, text: str) -> None:
    machine.stat.write_text(text)
    with pytest.raises(RaplUnavailable, match="does not list CPU time"):
        machine.open()


def test_a_machine_without_packages_is_not_measured_and_says_where_it_looked(tmp_path: Path) -> None:
    reader = open_reader(Settings(energy_powercap=tmp_path / "none"), "cpu")
    assert (reader.source, reader.spent(0.0).energy_uj, reader.spent(1.0).energy_uj) == ("none", None, None)
    assert f"{tmp_path / 'none'}" in reader.detail


def test_a_worker_on_a_cpu_with_packages_is_measured(machine: Machine) -> None:
    assert open_reader(Settings(energy_powercap=machine.root), "cpu").source == "rapl"


@pytest.fixture
def as_somebody_else() -> Iterator[Callable[[], None]]:
    """Gives up root's rights to read everything, where the tests run as root."""
    was = os.geteuid()
    yield lambda: os.seteuid(65534) if was == 0 else None
    os.seteuid(was)


def test_counters_that_only_root_may_read_are_no_meter_and_the_fix_is_said(
    as_somebody_else: Callable[[], None],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        machine = Machine(root)
        machine.zone("intel-rapl:0", "package-0", 1)
        (machine.root / "intel-rapl:0" / "energy_uj").chmod(0)
        as_somebody_else()
        reader = open_reader(Settings(energy_powercap=machine.root), "cpu")
        assert reader.source == "none"
        assert "only root may read" in reader.detail
        assert "chgrp" in reader.detail
        os.seteuid(os.getuid())


def test_this_machines_own_cpu_time_can_be_read() -> None:
    own, machine = CpuTime().read()
    assert 0 < own <= machine
