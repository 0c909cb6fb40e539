"""The meter of a device that cannot be measured: it says so, and why."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.telemetry import EnergySource
from workers.energy.base import Spent


@dataclass(frozen=True, slots=True)
class NoEnergyReader:
    detail: str
    source: EnergySource = "none"

    def spent(self, now: float) -> Spent:
        return Spent(None, self.source, "lost", self.detail)

    def close(self) -> None:
        pass
