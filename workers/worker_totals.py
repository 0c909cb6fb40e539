"""One worker's totals since its start, as an endpoint asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controlplane.alerts import CanaryCheck
from controlplane.finops.attribution import WindowUse, window_use
from controlplane.telemetry import CohortWindow, EnergySource, WorkerWindow, merge_cohorts


class CanaryTotals(NamedTuple):
    """Requests checked, those of them with wrong text, tokens that differ within rounding, and seconds spent."""

    checked: int = 0
    wrong: int = 0
    near_ties: int = 0
    seconds: float = 0.0

    def add(self, check: CanaryCheck) -> CanaryTotals:
        return CanaryTotals(
            self.checked + 1,
            self.wrong + (check.verdict == "mismatch"),
            self.near_ties + check.near_ties,
            self.seconds + check.seconds,
        )


class CohortUse(NamedTuple):
    """Machine time (ns) of a cohort, and of it what went into draft tokens that were not kept; likewise microjoules.

    wasted_uj, uj: of the windows that were measured, None where none was; uj is without the energy of idling.
    """

    ns: int = 0
    wasted_ns: int = 0
    wasted_uj: int | None = None
    uj: int | None = None

    def plus(self, other: CohortUse) -> CohortUse:
        return CohortUse(
            self.ns + other.ns,
            self.wasted_ns + other.wasted_ns,
            _measured(self.wasted_uj, other.wasted_uj),
            _measured(self.uj, other.uj),
        )


def _measured(*amounts: int | None) -> int | None:
    """The sum of those that were measured, None where none was."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def cohort_uses(use: WindowUse) -> dict[str, CohortUse]:
    """A window's use by cohort."""
    found: dict[str, CohortUse] = {}
    for each in use.uses:
        more = CohortUse(each.ns, each.wasted_ns, each.wasted_uj, each.uj)
        found[each.cohort] = found.get(each.cohort, CohortUse()).plus(more)
    return found


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """One worker's state at the moment it was asked.

    epoch: the worker's start; totals start at zero there. totals: by cohort, since then. last_window: by cohort, the
    last closed window (its acceptance length and mean K are shown as gauges). energy_uj: microjoules by source, since
    the start. kv_used, kv_total: tokens. plan_age_s: seconds since the plan was issued. drafter: name@version.
    plans_refused: by reason, plan_k_clamped: entries of plans that were no K, reports_lost: dropped while no controller
    answered; energy_windows_dropped: windows that an energy meter had no answer for, by reason; canary: by cohort and
    drafter; all since the start. requests_cut: requests that were refused or ended before their answer was complete, by
    reason, since the start. is_draining: it takes no more requests in. is_compiled: the step of its target is.
    prefix_cache_queries: prompt tokens of requests that were taken in, prefix_cache_hits: of those, the ones that the
    prefix cache had; preemptions; by cohort, since the start.
    """

    worker: str
    epoch: int
    model: str
    totals: Mapping[str, CohortWindow]
    last_window: Mapping[str, CohortWindow] = field(default_factory=dict)
    energy_uj: Mapping[EnergySource, int] = field(default_factory=dict)
    plan_version: int = 0
    plan_age_s: float = 0.0
    plan_expired: bool = False
    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    kv_total: int = 0
    drafter: str = ""
    plans_refused: Mapping[str, int] = field(default_factory=dict)
    plan_k_clamped: int = 0
    reports_lost: int = 0
    requests_cut: Mapping[str, int] = field(default_factory=dict)
    is_draining: bool = False
    is_compiled: bool = False
    energy_windows_dropped: Mapping[str, int] = field(default_factory=dict)
    canary: Mapping[tuple[str, str], CanaryTotals] = field(default_factory=dict)
    device: str = ""
    use: Mapping[str, CohortUse] = field(default_factory=dict)
    last_use: Mapping[str, CohortUse] = field(default_factory=dict)
    idle_ns: int = 0
    prefix_cache_queries: Mapping[str, int] = field(default_factory=dict)
    prefix_cache_hits: Mapping[str, int] = field(default_factory=dict)
    preemptions: Mapping[str, int] = field(default_factory=dict)


class WorkerTotals:
    """One worker's totals since its start: the sum of the windows it has closed."""

    def __init__(self) -> None:
        self._totals: dict[str, CohortWindow] = {}
        self._energy_uj: dict[EnergySource, int] = {}
        self._canary: dict[tuple[str, str], CanaryTotals] = {}
        self._use: dict[str, CohortUse] = {}
        self._idle_ns = 0

    def add(self, window: WorkerWindow, canary: Iterable[CanaryCheck] = ()) -> MetricsSnapshot:
        """Add a window and the checks that came with it, each once and in order, and return the state after it."""
        for check in canary:
            key = check.cohort, check.drafter
            self._canary[key] = self._canary.get(key, CanaryTotals()).add(check)
        # Tenants are the ledger's: whoever came once would be kept and summed for as long as the worker lives.
        cohorts = [replace(cohort, tenants=()) for cohort in window.cohorts]
        self._totals = merge_cohorts([*self._totals.values(), *cohorts])
        use = window_use(replace(window, cohorts=tuple(cohorts)))
        last_use = cohort_uses(use)
        for cohort, used in last_use.items():
            self._use[cohort] = self._use.get(cohort, CohortUse()).plus(used)
        self._idle_ns += use.idle_ns
        if window.energy_uj is not None:
            source = window.energy_source
            self._energy_uj[source] = self._energy_uj.get(source, 0) + window.energy_uj
        return MetricsSnapshot(
            worker=window.id.worker,
            epoch=window.id.epoch,
            model=window.model,
            totals=dict(self._totals),
            last_window=merge_cohorts(cohorts),
            energy_uj=dict(self._energy_uj),
            plan_version=window.plan_version,
            plan_age_s=window.plan_age_s,
            plan_expired=window.plan_expired,
            running=window.running,
            waiting=window.waiting,
            kv_used=window.kv_used,
            kv_total=window.kv_total,
            drafter=window.drafter,
            canary=dict(self._canary),
            device=window.device,
            use=dict(self._use),
            last_use=last_use,
            idle_ns=self._idle_ns,
        )
