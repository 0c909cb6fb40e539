"""What an energy meter answers: of one window (EnergyReading), and of one stretch between two samples (Spent)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from controlplane.telemetry import EnergySource

Gap = Literal["begin", "reset", "lost", "stalled", "unsettled"]
"""Why energy is not known. begin: the first sample. reset: the counter went back. lost: the device or file did not
answer. stalled: no sample came for too long. unsettled: more was handed out ahead than the next sample confirms."""


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """What `read_energy(now, is_idle)` answers when a window closes: a look at numbers that are there, no I/O.

    now: seconds of a clock that nobody sets; the difference to the call before is the window's length. is_idle: nothing
    was running, waiting or computed in the window (idle power is learned in such stretches only).
    energy_uj: microjoules of the window, None where they cannot be known (never 0 for that). source: `none` where there
    is no meter at all; a meter that has no answer for this window keeps its own source. idle_energy_uj: idle power x
    length, at most energy_uj; None where energy_uj is None or the idle power is not known.
    """

    energy_uj: int | None
    source: EnergySource
    idle_energy_uj: int | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Energy between two looks at a meter.

    energy_uj: microjoules, this worker's part; None where it is not known, and then `gap` says why and `detail` says
    it for a person. is_shared: other processes used the device, too, and energy_uj is an equal part of what it drew, so
    that their work shows in it.
    """

    energy_uj: int | None
    source: EnergySource
    gap: Gap | None = None
    detail: str = ""
    is_shared: bool = False


class EnergyReader(Protocol):
    """One device's meter, owned by one thread.

    source: the best it can do; a single stretch may come from a weaker one. detail: a sentence for a person: what is
    measured, or why nothing can be.
    """

    @property
    def source(self) -> EnergySource: ...

    @property
    def detail(self) -> str: ...

    def spent(self, now: float) -> Spent:
        """Energy since the call before; the first one only begins. now: monotonic seconds. Does not raise."""
        ...

    def close(self) -> None: ...
