"""Energy of CPU packages through the kernel's powercap files (RAPL; Intel, and AMD since Linux 5.8).

`<root>/intel-rapl:N/` with name, energy_uj and max_energy_range_uj. Only zones named package-* are added up: their
sub-zones (core, dram) lie within them, psys contains them, and intel-rapl-mmio shows the same package again. energy_uj
starts over at max_energy_range_uj every few minutes to hours, and only root may read it unless an operator allows it.

The counter is of the whole machine, so a worker takes the part of it that its process had of the machine's CPU time in
the same stretch: the parts of several workers, and of what else runs, add up to the whole and never to more. Where the
operator says what a resting worker draws, every worker is given that first and the rest is split by CPU time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from controlplane.telemetry import EnergySource
from workers.energy.base import Spent
from workers.energy.cpu_time import CpuTime

POWERCAP = Path("/sys/class/powercap")
MOST_W = 5_000
"""No package draws more: a counter that went back and would mean more was reset, it did not start over."""


class RaplUnavailable(RuntimeError):
    """No RAPL energy can be read on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Zone:
    """One package. most_uj: where its counter starts over, microjoules."""

    name: str
    energy: Path
    most_uj: int

    def read(self) -> int:
        """Microjoules. Raises OSError or ValueError."""
        return int(self.energy.read_text(encoding="ascii"))


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    energy_uj: tuple[int, ...]
    own_ns: int
    machine_ns: int


class RaplReader:
    """The part that the process has of the energy of all packages.

    idle_w: watts that each of `workers` on this machine is given whatever it does; 0: all goes by CPU time.
    """

    source: EnergySource = "rapl"

    def __init__(self, zones: tuple[Zone, ...], cpu_time: CpuTime, idle_w: float = 0.0, workers: int = 1) -> None:
        self._zones = zones
        self._cpu_time = cpu_time
        self._idle_w = idle_w
        self._workers = workers
        self._last: _Seen | None = None
        names = ", ".join(zone.name for zone in zones)
        first = f"{idle_w:g} W a worker and of the rest " if idle_w else ""
        self.detail = f"RAPL of {names}: {first}the part that this process has of the machine's CPU time"

    def spent(self, now: float) -> Spent:
        before, self._last = self._last, None
        try:
            seen = _Seen(now, tuple(zone.read() for zone in self._zones), *self._cpu_time.read())
        except (OSError, ValueError) as e:
            return Spent(None, self.source, "lost", f"RAPL cannot be read: {e}")
        self._last = seen
        if before is None:
            return Spent(None, self.source, "begin", "the first sample")
        return self._between(before, seen)

    def close(self) -> None:
        pass

    def _between(self, before: _Seen, after: _Seen) -> Spent:
        machine_uj = 0
        most = MOST_W * 1e6 * (after.at - before.at)
        for zone, then, now in zip(self._zones, before.energy_uj, after.energy_uj, strict=True):
            used = now - then if now >= then else now - then + zone.most_uj
            if not 0 <= used <= most:
                return Spent(None, self.source, "reset", f"the counter of {zone.name} went from {then} to {now} uJ")
            machine_uj += used
        machine_ns = after.machine_ns - before.machine_ns
        if machine_ns <= 0:
            return Spent(None, self.source, "lost", "the machine's CPU time stood still: no part can be told")
        own_ns = min(after.own_ns - before.own_ns, machine_ns)
        idle_uj = min(round(self._idle_w * 1e6 * (after.at - before.at)), machine_uj // self._workers)
        return Spent(idle_uj + (machine_uj - self._workers * idle_uj) * own_ns // machine_ns, self.source)


def open_rapl(
    root: Path = POWERCAP, idle_w: float = 0.0, workers: int = 1, cpu_time: CpuTime | None = None
) -> RaplReader:
    """The meter of this machine's packages. Raises RaplUnavailable."""
    zones = packages(root)
    cpu_time = cpu_time or CpuTime()
    try:
        cpu_time.read()
        for zone in zones:
            zone.read()
    except PermissionError as e:
        raise RaplUnavailable(
            f"only root may read {e.filename}; let the worker's group read it (chgrp, chmod g+r)"
        ) from e
    except (OSError, ValueError) as e:
        raise RaplUnavailable(f"RAPL cannot be read: {e}") from e
    return RaplReader(zones, cpu_time, idle_w, workers)


def packages(root: Path) -> tuple[Zone, ...]:
    """The package zones under `root`, in order. Raises RaplUnavailable where there is none."""
    zones = []
    try:
        folders = [entry for entry in root.iterdir() if re.fullmatch(r"intel-rapl:\d+", entry.name)]
        for folder in sorted(folders, key=lambda entry: int(entry.name.partition(":")[2])):
            name = (folder / "name").read_text(encoding="ascii").strip()
            if name.startswith("package-"):
                most = int((folder / "max_energy_range_uj").read_text(encoding="ascii"))
                zones.append(Zone(name, folder / "energy_uj", most))
    except FileNotFoundError:
        zones = []
    except (OSError, ValueError) as e:
        raise RaplUnavailable(f"RAPL cannot be read: {e}") from e
    if not zones:
        raise RaplUnavailable(f"no RAPL package under {root} (virtual machines and containers have none)")
    return tuple(zones)
