"""The plan: complete, versioned and expiring. A lost one heals at the next report, because each carries everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controlplane.telemetry import LOAD_BUCKETS, load_bucket

KillSwitch = Literal["off", "fallback", "zero"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every worker obeys between two steps.

    epoch: start of the controller that issued it, unix nanoseconds; version: rises by one with every change of K,
    policy or kill switch, across epochs too. issued_at, expires_at: unix seconds. k: cohort -> K by load bucket
    (len(LOAD_BUCKETS) entries, each a rung of the cohort's ladder). fallback: cohort -> K once the plan has expired.
    """

    epoch: int
    version: int
    issued_at: float
    expires_at: float
    k: Mapping[str, tuple[int, ...]]
    fallback: Mapping[str, int]
    policy_revision: str
    kill_switch: KillSwitch = "off"

    def __post_init__(self) -> None:
        for cohort, by_load in self.k.items():
            if len(by_load) != len(LOAD_BUCKETS):
                raise ValueError(f"plan for {cohort!r} has {len(by_load)} load buckets, not {len(LOAD_BUCKETS)}")

    def is_expired(self, now: float) -> bool:
        return now >= self.expires_at

    def k_for(self, cohort: str, running: int, now: float) -> int:
        """K for a sequence of `cohort` beside `running` sequences on this worker; an unknown cohort gets 0."""
        if self.kill_switch == "zero":
            return 0
        if self.kill_switch == "fallback" or self.is_expired(now):
            return self.fallback.get(cohort, 0)
        by_load = self.k.get(cohort)
        return by_load[load_bucket(running)] if by_load else self.fallback.get(cohort, 0)
