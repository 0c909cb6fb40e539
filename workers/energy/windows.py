"""Hands the running sum of an energy meter out to windows: each microjoule to one window, or to none.

A window takes what was added since the window before it took, so windows add up to the sum of the stretches wherever
their edges lie. A window that closes before its sample came is given an advance, its length at the last stretch's
power, and the next one that much less. A stretch of which the energy is not known makes the window it falls into None:
no partial sums, and nothing of it goes to another window.
"""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.telemetry import EnergySource
from workers.energy.base import EnergyReading, Gap
from workers.energy.idle import SETTLE_S, IdlePower
from workers.energy.integral import Integral


class WindowEnergy:
    """One worker's energy by window. Owned by the engine's thread; no I/O.

    started_at: seconds as the first window opened, by the clock of `now`; at: monotonic seconds then. stale_s: without
    a sample for so long the energy is not known. idle: what is known of the device's idle power.
    """

    def __init__(self, started_at: float, at: float, stale_s: float, idle: IdlePower) -> None:
        self._stale_s = stale_s
        self._idle = idle
        self._window_at = started_at
        self._taken = Integral(at)
        self._handed_uj = 0
        self._closed_at = at
        self._idle_since: float | None = None
        self._dropped: dict[str, int] = {}

    @property
    def dropped(self) -> Mapping[str, int]:
        """Windows that the meter had no answer for, by reason, since the start."""
        return dict(self._dropped)

    def close(
        self, integral: Integral | None, source: EnergySource, now: float, at: float, is_idle: bool
    ) -> EnergyReading:
        """The window that ends `now`, by a clock that is not set, and `at`, monotonic; source: the meter's best."""
        seconds, self._window_at = max(now - self._window_at, 0.0), now
        idle_since = self._follow_idle(at, is_idle)
        if source == "none":
            return EnergyReading(None, source)
        if integral is None or at - integral.at > self._stale_s:
            return self._drop("stalled", source)
        before, self._taken = self._taken, integral
        if integral.gaps != before.gaps:
            self._handed_uj = integral.energy_uj
            return self._drop(integral.gap, source)
        if integral.stretches == before.stretches:
            if integral.watts is None:
                return self._drop(integral.gap, source)
            energy_uj, is_fallback = self._advance(integral.watts, seconds, is_idle), integral.is_fallback
        else:
            energy_uj, is_fallback = integral.energy_uj - self._handed_uj, integral.fallbacks != before.fallbacks
            if energy_uj < 0:
                return self._drop("unsettled", source)
            if idle_since is not None and before.at >= idle_since + SETTLE_S and integral.shared == before.shared:
                self._idle.see(integral.mean_watts_since(before))
        self._handed_uj += energy_uj
        if is_fallback:
            source = "power"
        return EnergyReading(energy_uj, source, self._idle_energy_uj(energy_uj, seconds))

    def _advance(self, watts: float, seconds: float, is_idle: bool) -> int:
        if is_idle and self._idle.watts is not None:
            watts = min(watts, self._idle.watts)
        return round(watts * seconds * 1e6)

    def _idle_energy_uj(self, energy_uj: int, seconds: float) -> int | None:
        return None if self._idle.watts is None else min(round(self._idle.watts * seconds * 1e6), energy_uj)

    def _follow_idle(self, at: float, is_idle: bool) -> float | None:
        """Since when nothing has run, monotonic seconds; None where something has in the window that closes at `at`."""
        if not is_idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._closed_at
        self._closed_at = at
        return self._idle_since

    def _drop(self, gap: Gap, source: EnergySource) -> EnergyReading:
        self._dropped[gap] = self._dropped.get(gap, 0) + 1
        return EnergyReading(None, source)
