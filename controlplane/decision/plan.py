"""The plan: complete, versioned and expiring. A lost one heals at the next report, because each carries everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.telemetry import LOAD_BUCKETS, load_bucket

KillSwitch = Literal["off", "fallback", "zero"]


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """What the named workers obey in place of the rest of the plan while another policy is tried on them."""

    workers: tuple[str, ...]
    k: Mapping[str, tuple[int, ...]]
    fallback: Mapping[str, int]
    policy_revision: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What every worker obeys between two steps.

    epoch: start of the controller that issued it, unix nanoseconds; version: rises by one with every change of K,
    policy or kill switch, across epochs too. issued_at, expires_at: unix seconds. k: cohort -> K by load bucket
    (len(LOAD_BUCKETS) entries, each a rung of the cohort's ladder). fallback: cohort -> K once the plan has expired.
    price: tokens that a drafted position must bring to pay for itself, at each of LOAD_BUCKETS running sequences (in
    between it is interpolated); empty where nothing is priced. survival: cohort -> probability, by draft position,
    that a token drafted there is emitted; a sequence of a cohort that is in it drafts no deeper than pays.
    blocked_drafters: name@version of those that must not draft, however old the plan is: the canary found wrong text.
    """

    epoch: int
    version: int
    issued_at: float
    expires_at: float
    k: Mapping[str, tuple[int, ...]]
    fallback: Mapping[str, int]
    policy_revision: str
    kill_switch: KillSwitch = "off"
    survival: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    price: tuple[float, ...] = ()
    staged: StagedPlan | None = None
    blocked_drafters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.price and len(self.price) != len(LOAD_BUCKETS):
            raise ValueError(f"plan has {len(self.price)} prices for {len(LOAD_BUCKETS)} load buckets")
        for cohort, by_load in self.k.items():
            if len(by_load) != len(LOAD_BUCKETS):
                raise ValueError(f"plan for {cohort!r} has {len(by_load)} load buckets, not {len(LOAD_BUCKETS)}")

    def is_expired(self, now: float) -> bool:
        return now >= self.expires_at

    def k_for(
        self, cohort: str, running: int, now: float, worker: str | None = None, drafter: str | None = None
    ) -> int:
        """K for a sequence of `cohort` beside `running` sequences on `worker`; an unknown cohort gets 0."""
        if self.kill_switch == "zero" or drafter in self.blocked_drafters:
            return 0
        staged = self.staged if self.staged is not None and worker in self.staged.workers else None
        k, fallback = (self.k, self.fallback) if staged is None else (staged.k, staged.fallback)
        if self.kill_switch == "fallback" or self.is_expired(now):
            return fallback.get(cohort, 0)
        by_load = k.get(cohort)
        if by_load is None:
            return fallback.get(cohort, 0)
        planned = by_load[load_bucket(running)]
        return planned if staged is not None else self.affordable(cohort, planned, running)

    def affordable(self, cohort: str, k: int, running: int) -> int:
        """At most `k`: the draft positions of `cohort` that pay beside `running` sequences."""
        survival = self.survival.get(cohort)
        if not survival or not self.price:
            return k
        price = self.price_at(running)
        return next((j for j, chance in enumerate(survival[:k]) if chance < price), k)

    def price_at(self, running: int) -> float:
        """The price of a position beside `running` sequences: linear between the load buckets' bounds."""
        b = load_bucket(running)
        if running >= LOAD_BUCKETS[b] or not b:
            return self.price[b]
        low, high = LOAD_BUCKETS[b - 1], LOAD_BUCKETS[b]
        share = (running - low) / (high - low)
        return self.price[b - 1] + share * (self.price[b] - self.price[b - 1])
