"""The plan: complete, versioned and expiring. A lost one heals at the next report, because each carries everything."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from controlplane.telemetry import LOAD_BUCKETS, PRICE_LOADS, load_bucket

KillSwitch = Literal["off", "fallback", "zero"]
PlanArm = Literal["", "control", "treatment"]
"""The window of a savings experiment that a plan is for; "" is none."""


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """What the named workers obey in place of the rest of the plan while another policy is tried on them.

    All but workers as in Plan.
    """

    workers: tuple[str, ...]
    k: Mapping[str, tuple[int, ...]]
    fallback: Mapping[str, int]
    policy_revision: str
    survival: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    price: tuple[float, ...] = ()
    depth: tuple[int, ...] = ()
    probing: Mapping[str, int] = field(default_factory=dict)
    drafted: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    charges: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What every worker obeys between two steps.

    epoch: start of the controller that issued it, unix nanoseconds; version: rises by one with every change of K,
    policy or kill switch, across epochs too. issued_at, expires_at: unix seconds. k: cohort -> K by load bucket
    (len(LOAD_BUCKETS) entries, each a rung of the cohort's ladder). fallback: cohort -> K once the plan has expired.
    price: tokens that a drafted position must bring to pay for itself, at each of PRICE_LOADS running sequences (in
    between it is interpolated); empty where nothing is priced. depth: the deepest draft that pays for a further pass of
    the drafter, at each of PRICE_LOADS (in between the nearest holds). survival: cohort -> probability, by draft
    position, that a token drafted there is emitted; a sequence of a cohort in it drafts no deeper than pays. probing:
    cohort -> load bucket in which its K is on trial and is drafted whatever the price. drafted: cohort -> probability,
    by draft position, that the drafter has a token there; a cohort of survival that is not in it is never silent.
    charges: what a step costs at each of PRICE_LOADS (`charges.Charges.table`), by which a worker chooses for the batch
    that it has (`batch_choice`); empty where nothing is priced.
    blocked_drafters: name@version of those that must not draft, however old the plan is: the canary found wrong text.
    They may change within a version, with a later issued_at: what was decided stands beside them. arm: in a control
    window nothing is drafted, whatever k says, while the plan is alive.
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
    depth: tuple[int, ...] = ()
    probing: Mapping[str, int] = field(default_factory=dict)
    drafted: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    charges: tuple[tuple[float, ...], ...] = ()
    staged: StagedPlan | None = None
    blocked_drafters: tuple[str, ...] = ()
    arm: PlanArm = ""

    def __post_init__(self) -> None:
        for name, values in (("prices", self.price), ("depths", self.depth), ("charges", self.charges)):
            if values and len(values) != len(PRICE_LOADS):
                raise ValueError(f"plan has {len(values)} {name} for {len(PRICE_LOADS)} loads")
        for cohort, by_load in self.k.items():
            if len(by_load) != len(LOAD_BUCKETS):
                raise ValueError(f"plan for {cohort!r} has {len(by_load)} load buckets, not {len(LOAD_BUCKETS)}")

    def is_expired(self, now: float) -> bool:
        return now >= self.expires_at

    def told(self, worker: str | None) -> Plan | StagedPlan:
        """What `worker` is told: the staged part where it tries that."""
        return self.staged if self.staged is not None and worker in self.staged.workers else self

    def is_obeyed(self, now: float, drafter: str | None = None) -> bool:
        """Whether K is as decided for cohort and load, and not as a kill switch, an alert or the plan's age says."""
        is_off = self.kill_switch != "off" or drafter in self.blocked_drafters or self.arm == "control"
        return not is_off and not self.is_expired(now)

    def k_for(
        self, cohort: str, running: int, now: float, worker: str | None = None, drafter: str | None = None
    ) -> int:
        """K by the price for a sequence of `cohort` beside `running` ones on `worker`; an unknown cohort gets 0."""
        k = self.most_k_for(cohort, running, now, worker, drafter)
        told = self.told(worker)
        return affordable(told, cohort, k, running) if self.is_obeyed(now, drafter) and cohort in told.k else k

    def most_k_for(
        self, cohort: str, running: int, now: float, worker: str | None = None, drafter: str | None = None
    ) -> int:
        """The same, whatever positions cost: no batch of so many sequences drafts deeper."""
        if self.kill_switch == "zero" or drafter in self.blocked_drafters:
            return 0
        told = self.told(worker)
        if self.kill_switch == "fallback" or self.is_expired(now):
            return told.fallback.get(cohort, 0)
        if self.arm == "control":
            return 0
        by_load = told.k.get(cohort)
        if by_load is None:
            return told.fallback.get(cohort, 0)
        return by_load[load_bucket(running)]


def affordable(told: Plan | StagedPlan, cohort: str, k: int, running: int) -> int:
    """At most `k`: the draft positions of `cohort` that pay beside `running` sequences."""
    survival = told.survival.get(cohort)
    if not survival or not told.price or told.probing.get(cohort) == load_bucket(running):
        return k
    price, depth = price_at(told, running)
    return next((j for j, chance in enumerate(survival[:k]) if chance < price or j >= depth), k)


def price_at(told: Plan | StagedPlan, running: int) -> tuple[float, int]:
    """The price of a position beside `running` sequences, linear between PRICE_LOADS, and the nearest depth."""
    high = min(bisect_left(PRICE_LOADS, running), len(PRICE_LOADS) - 1)
    low = max(high - 1, 0)
    if not high or running >= PRICE_LOADS[high]:
        return told.price[high], told.depth[high]
    share = (running - PRICE_LOADS[low]) / (PRICE_LOADS[high] - PRICE_LOADS[low])
    price = told.price[low] + share * (told.price[high] - told.price[low])
    return price, told.depth[low if share < 0.5 else high]
