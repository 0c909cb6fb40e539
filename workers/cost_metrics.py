"""Dollars for Prometheus: machine time that workers counted, billed at the price in force when it is first seen.

A counter cannot be priced again later, the ledger can: bills come from there. No price, no series, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from controlplane.finops.attribution import NS_PER_HOUR
from controlplane.finops.pricing.current import MachinePrices
from workers.worker_totals import CohortUse, MetricsSnapshot

NANO = 1e9

COSTS: dict[str, tuple[str, str]] = {
    "busy": ("cost_usd", "Dollars of the machine time that went into a cohort's work; absent where unpriced."),
    "wasted": (
        "wasted_speculation_cost_usd",
        "Of them, those for draft tokens that were not kept: drafting and verifying them.",
    ),
    "idle": ("idle_cost_usd", "Dollars of the machine time in which nothing was computed."),
}
"""Kind of machine time -> name of its counter and what it is."""


class MachineTime(NamedTuple):
    """Machine time of one kind (a key of COSTS), on one device. cohort: None for idle."""

    kind: str
    model: str
    cohort: str | None
    device: str


class CostCounters:
    """What has been billed so far, by (machine time, basis); one per ingress."""

    def __init__(self) -> None:
        self._prices: MachinePrices | None = None
        self._billed_ns: dict[MachineTime, float] = {}
        self._usd: dict[tuple[MachineTime, str], float] = {}

    @property
    def prices(self) -> MachinePrices | None:
        """The newest ones that a controller told; None before that, when time waits to be billed."""
        return self._prices

    def bill(self, times: Mapping[MachineTime, float], prices: MachinePrices | None) -> None:
        """Bill what came since the last call; times: nanoseconds since the start, prices: None = nothing new."""
        self._prices = prices or self._prices
        if self._prices is None:
            return
        for time, ns in times.items():
            more = ns - self._billed_ns.get(time, 0.0)
            self._billed_ns[time] = ns
            for (sku, basis), per_hour in self._prices.per_hour_nano.items():
                if sku == time.device:
                    self._usd[time, basis] = self._usd.get((time, basis), 0.0) + more * per_hour / NS_PER_HOUR / NANO

    def families(self) -> Iterator[Metric]:
        """The counters by model, basis and cohort, where every device in it has a price of that basis now."""
        prices = self._prices if self._prices is not None and self._prices.currency == "USD" else MachinePrices()
        for kind, (name, text) in COSTS.items():
            labels = ["model", "basis", *(["cohort"] if kind != "idle" else [])]
            family = CounterMetricFamily(f"kadence_{name}", text, labels=labels)
            times = [time for time in self._billed_ns if time.kind == kind]
            for model, cohort in sorted({(time.model, time.cohort) for time in times}, key=str):
                devices = {time.device for time in times if (time.model, time.cohort) == (model, cohort)}
                for basis in sorted({basis for _, basis in prices.per_hour_nano}):
                    if all((device, basis) in prices.per_hour_nano for device in devices):
                        spent = (self._usd.get((MachineTime(kind, model, cohort, d), basis), 0.0) for d in devices)
                        family.add_metric([model, basis, *([cohort] if cohort is not None else [])], sum(spent))
            yield family


def per_million_tokens(
    snapshots: Sequence[MetricsSnapshot], known: frozenset[str], prices: MachinePrices | None
) -> Metric:
    """Cost of a million emitted tokens in the last windows, on the sheet's default basis, idle time apart."""
    family = GaugeMetricFamily(
        "kadence_cost_usd_per_million_tokens",
        "Dollars of busy machine time per million emitted tokens, in the last window, at the default basis.",
        labels=["model", "cohort"],
    )
    if prices is None or prices.currency != "USD":
        return family
    sums: dict[tuple[str, str], tuple[float | None, int]] = {}
    for snapshot in snapshots:
        per_hour = prices.per_hour_nano.get((snapshot.device, prices.basis))
        for cohort in snapshot.last_use.keys() & known:
            usd, tokens = sums.get((snapshot.model, cohort), (0.0, 0))
            tokens += snapshot.last_window[cohort].emitted_tokens
            cost = None if usd is None or per_hour is None else usd + _usd(snapshot.last_use[cohort], per_hour)
            sums[snapshot.model, cohort] = cost, tokens
    for (model, cohort), (usd, tokens) in sorted(sums.items()):
        if usd is not None and tokens:
            family.add_metric([model, cohort], usd / tokens * 1e6)
    return family


def _usd(use: CohortUse, per_hour_nano: int) -> float:
    return use.ns * per_hour_nano / NS_PER_HOUR / NANO
