"""What an energy meter answers. A reader is made once, at the start of a worker; reading it never raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from controlplane.telemetry import EnergySource


@dataclass(frozen=True, slots=True)
class Reading:
    """Microjoules since some fixed moment, whole device; None = could not be measured, which is never 0."""

    energy_uj: int | None
    source: EnergySource


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """What `read_energy(now, is_idle)` answers when a window closes: a look at numbers that are there, no I/O.

    now: the meter's clock, seconds; the difference to the call before is the window's length. is_idle: nothing was
    running, waiting or computed in the window (idle power is learned in such stretches only).
    energy_uj: microjoules of the window, None where they cannot be known (never 0 for that). source: `none` where there
    is no meter at all; a meter that has no answer for this window keeps its own source. idle_energy_uj: idle power x
    length, at most energy_uj; None where energy_uj is None or the idle power is not known.
    """

    energy_uj: int | None
    source: EnergySource
    idle_energy_uj: int | None = None


class EnergyReader(Protocol):
    """One device's meter. detail: a sentence for a person: what is measured, or why nothing can be."""

    @property
    def source(self) -> EnergySource: ...

    @property
    def detail(self) -> str: ...

    def read(self) -> Reading: ...

    def close(self) -> None: ...


def energy_between(before: Reading, after: Reading) -> int | None:
    """Microjoules used between two readings of one reader.

    None when one is missing, when they are of different sources, or when the counter went back (the driver was
    reloaded, the device reset): that window is dropped, never counted as negative or as 0.
    """
    if before.energy_uj is None or after.energy_uj is None or before.source != after.source:
        return None
    used = after.energy_uj - before.energy_uj
    return used if used >= 0 else None


class EnergyMeter:
    """A reader, and what was used between one look at it and the next. Not thread-safe: one worker owns it."""

    def __init__(self, reader: EnergyReader) -> None:
        self._reader = reader
        self._before = reader.read()

    @property
    def source(self) -> EnergySource:
        return self._reader.source

    @property
    def detail(self) -> str:
        return self._reader.detail

    def read(self) -> Reading:
        return self._reader.read()

    def since_last(self) -> tuple[int | None, EnergySource]:
        """Microjoules since the last call (or since the start), None where they are unknown; and their source."""
        now = self._reader.read()
        used, self._before = energy_between(self._before, now), now
        return used, now.source

    def close(self) -> None:
        self._reader.close()
