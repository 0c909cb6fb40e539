"""The running sum of an energy meter's stretches: what the sampling thread writes and the engine's thread picks up."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controlplane.telemetry import EnergySource
from workers.energy.base import Gap, Spent


@dataclass(frozen=True, slots=True)
class Integral:
    """What was added up until `at`, monotonic seconds; swapped as a whole, so a reader never sees half of it.

    stretches: how many there were. energy_uj: of those that are known. gaps: how many are not; gap: why, of the last
    one. fallbacks: stretches from a weaker source than the reader's. shared: stretches in which others used the device.
    watts: of the last stretch, None where it is not known; is_fallback: whether those are of a weaker source.
    """

    at: float
    stretches: int = 0
    energy_uj: int = 0
    gaps: int = 0
    gap: Gap = "begin"
    fallbacks: int = 0
    shared: int = 0
    watts: float | None = None
    is_fallback: bool = False

    def add(self, spent: Spent, at: float, best: EnergySource) -> Integral:
        """With the stretch that ends at `at`. best: the reader's source."""
        ended = replace(self, at=at, stretches=self.stretches + 1)
        if spent.energy_uj is None:
            return replace(ended, gaps=self.gaps + 1, gap=spent.gap or "lost", watts=None)
        return replace(
            ended,
            energy_uj=self.energy_uj + spent.energy_uj,
            fallbacks=self.fallbacks + (spent.source != best),
            is_fallback=spent.source != best,
            shared=self.shared + spent.is_shared,
            watts=spent.energy_uj / 1e6 / (at - self.at) if at > self.at else None,
        )

    def mean_watts_since(self, before: Integral) -> float:
        """Between two different states of one sum."""
        return (self.energy_uj - before.energy_uj) / 1e6 / (self.at - before.at)
