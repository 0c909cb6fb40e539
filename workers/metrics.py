"""Prometheus exposition of what all workers saw: one series per cohort, never one per replica.

Workers report totals since their start. The aggregator turns them into increments, so that a sum over workers never
falls when one of them restarts or goes away. What they had counted before the endpoint started is left out: after an
endpoint was replaced, a sum of those workers alone would look to Prometheus like a counter that was reset and rose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controlplane.finops.attribution import NS_PER_SECOND
from controlplane.policy import Policy
from controlplane.telemetry import (
    LATENCY_BOUNDS_S,
    LatencyHistogram,
    merge_cohorts,
)
from workers.backend import JournalCounts
from workers.controller_metrics import of_controller
from workers.cost_metrics import CostCounters, MachineTime, per_million_tokens
from workers.policy_metrics import of_policy
from workers.worker_totals import MetricsSnapshot

OTHER_COHORTS = "other"
"""Label of cohorts that the policy does not name (a worker may still serve those of an earlier one)."""


class Series(NamedTuple):
    """One counter: the metric, the values of its labels after `model`, and the bucket it counts in a histogram."""

    metric: str
    model: str
    labels: tuple[str, ...]
    bucket: int | None = None


_COHORT = ("cohort",)
_COHORT_DRAFTER = ("cohort", "drafter")
_MODEL_COHORT = ("model", "cohort")
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "drafts": ("Steps that drafted at least one token.", _COHORT),
    "draft_tokens": ("Draft tokens verified, by 0-based position in the draft.", ("cohort", "position")),
    "accepted_tokens": ("Draft tokens kept, by 0-based position in the draft.", ("cohort", "position")),
    "emitted_tokens": ("Completion tokens.", _COHORT),
    "plain_steps": ("Steps that drafted nothing.", _COHORT),
    "requests_started": ("Requests that were given to a worker's engine.", _COHORT),
    "requests_finished": ("Requests that ended with an answer.", _COHORT),
    "requests_failed": ("Requests that ended in an error, or because the client left.", _COHORT),
    "energy_joules": ("Energy of the accelerators by source of the reading; absent where none.", ("source",)),
    "busy_seconds": ("Machine seconds of all workers that went into a cohort's work.", _COHORT),
    "wasted_speculation_seconds": ("Of busy_seconds, those for draft tokens that were not kept.", _COHORT),
    "idle_seconds": ("Machine seconds of all workers in which nothing was computed for a request.", ()),
    "attributed_energy_joules": ("Energy of a cohort's work, without that of idling; absent where none.", _COHORT),
    "wasted_speculation_joules": ("Energy of draft tokens that were not kept; absent where not measured.", _COHORT),
    "energy_windows_dropped": ("Windows that an energy meter had no answer for, by reason.", ("reason",)),
    "canary_checked": ("Finished requests computed again by the target alone.", _COHORT_DRAFTER),
    "canary_mismatch": ("Checked requests whose text was not the target's.", _COHORT_DRAFTER),
    "canary_near_tie": ("Checked tokens that differ by no more than rounding explains.", _COHORT_DRAFTER),
    "canary_seconds": ("Seconds spent on checks.", _COHORT_DRAFTER),
    "plans_refused": ("Plans that a worker did not obey, by reason.", ("reason",)),
    "plan_k_clamped": ("Entries of plans that were no possible K, and were brought into range.", ()),
    "requests_cut": ("Requests refused by a worker, or ended before their answer was, by reason.", ("reason",)),
    "prefix_cache_queries": ("Prompt tokens that were looked up in the prefix cache.", _COHORT),
    "prefix_cache_hits": ("Of those, the ones whose KV was there, so that they were not computed.", _COHORT),
    "preemptions": ("Times that a running sequence lost its KV to others and was computed again.", _COHORT),
    "reports_lost": ("Windows that workers dropped because no controller took them.", ()),
}  # fmt: skip
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Seconds from receiving a request to its first token.",
    "time_per_output_token_seconds": "(End - first token) / (tokens - 1) of a request, in seconds.",
}
_BUSY, _WASTED, _IDLE = "busy_ns", "wasted_ns", "idle_ns"
"""Machine time by cohort and device, and idle by device: counted here, billed in cost_metrics."""
SETTLED_S = 30.0
"""A worker that ran for so long before the endpoint did has served another one."""
_SUM, _COUNT = -1, -2  # pseudo buckets that hold the sum and the count of observations


class MetricsAggregator:
    """Adds up snapshots over workers and over their restarts; one per ingress."""

    def __init__(self, started_at: float | None = None) -> None:
        """started_at: the endpoint's start in unix seconds; None: all that workers ever counted is added up."""
        self._started_at = started_at
        self._last: dict[str, tuple[int, dict[Series, float]]] = {}
        self._sums: dict[Series, float] = {}
        self._snapshots: tuple[MetricsSnapshot, ...] = ()
        self._known: frozenset[str] = frozenset()
        self._costs = CostCounters()

    def observe(self, snapshots: Sequence[MetricsSnapshot], known_cohorts: Iterable[str]) -> None:
        """Take in the workers' newest totals; an outdated snapshot adds nothing."""
        self._known = frozenset(known_cohorts)
        self._snapshots = tuple(snapshots)
        for snapshot in snapshots:
            totals = dict(_series(snapshot))
            unseen = totals if self._is_older(snapshot) else {}
            epoch, last = self._last.get(snapshot.worker, (snapshot.epoch, unseen))
            if snapshot.epoch < epoch:
                continue
            if snapshot.epoch > epoch:
                last = {}
            for series, total in totals.items():
                increment = total - last.get(series, 0)
                labelled = self._label(series)
                self._sums[labelled] = self._sums.get(labelled, 0) + max(increment, 0)
            newest = {series: max(total, last.get(series, 0)) for series, total in totals.items()}
            self._last[snapshot.worker] = (snapshot.epoch, last | newest)

    def begin(self, snapshots: Iterable[MetricsSnapshot]) -> None:
        """What workers have counted so far, for another endpoint: it is not counted here."""
        for snapshot in snapshots:
            self._last[snapshot.worker] = (snapshot.epoch, dict(_series(snapshot)))

    def _is_older(self, snapshot: MetricsSnapshot) -> bool:
        """Whether it served another endpoint: one that did not answer when this one started is known by its age."""
        return self._started_at is not None and snapshot.epoch / 1e9 < self._started_at - SETTLED_S

    def render(self, counts: JournalCounts, policy: Policy | None = None, of_endpoint: Iterable[Metric] = ()) -> bytes:
        """The exposition in Prometheus' text format; counts: the controller's, policy: the one in force, of_endpoint:
        what the endpoint counts itself.
        """
        self._costs.bill(self._machine_time(), counts.prices)
        families = [
            *self._counters(),
            self._step_seconds(),
            *self._histograms(),
            *self._gauges(),
            *self._costs.families(),
            per_million_tokens(self._snapshots, self._known, self._costs.prices),
            *of_controller(counts),
            *of_policy(policy),
            *of_endpoint,
        ]
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(families))
        return generate_latest(registry)

    def _label(self, series: Series) -> Series:
        is_by_cohort = _COUNTERS.get(series.metric, ("", _COHORT))[1][:1] == _COHORT and series.metric != _IDLE
        if not is_by_cohort or series.labels[0] in self._known:
            return series
        return series._replace(labels=(OTHER_COHORTS, *series.labels[1:]))

    def _counters(self) -> Iterator[Metric]:
        for name, (text, labels) in _COUNTERS.items():
            family = CounterMetricFamily(f"kadence_{name}", text, labels=["model", *labels])
            for series, value in sorted(self._sums.items(), key=lambda item: item[0][1:3]):
                if series.metric == name:
                    family.add_metric([series.model, *series.labels], value)
            yield family

    def _machine_time(self) -> dict[MachineTime, float]:
        """Nanoseconds since this aggregator's start."""
        times = {}
        for series, ns in self._sums.items():
            if series.metric in (_BUSY, _WASTED):
                times[MachineTime(series.metric.removesuffix("_ns"), series.model, *series.labels)] = ns
            elif series.metric == _IDLE:
                times[MachineTime("idle", series.model, None, *series.labels)] = ns
        return times

    def _step_seconds(self) -> Metric:
        """Sum and count only: windows carry the seconds of steps as sums."""
        name = "step_seconds"
        family = SummaryMetricFamily(f"kadence_{name}", "Wall seconds of a step of one sequence.", labels=_MODEL_COHORT)
        for model, labels in sorted({(s.model, s.labels) for s in self._sums if s.metric == name}):
            count, total = (self._sums[Series(name, model, labels, bucket)] for bucket in (_COUNT, _SUM))
            family.add_metric([model, *labels], int(count), total)
        return family

    def _histograms(self) -> Iterator[Metric]:
        for name, text in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"kadence_{name}", text, labels=_MODEL_COHORT)
            for model, labels in sorted({(s.model, s.labels) for s in self._sums if s.metric == name}):
                below, buckets = 0.0, []
                for i, bound in enumerate([*map(str, LATENCY_BOUNDS_S), "+Inf"]):
                    below += self._sums.get(Series(name, model, labels, i), 0)
                    buckets.append((bound, below))
                family.add_metric([model, *labels], buckets, self._sums.get(Series(name, model, labels, _SUM), 0))
            yield family

    def _gauges(self) -> Iterator[Metric]:
        planned = GaugeMetricFamily(
            "kadence_planned_speculative_tokens",
            "Mean K that the plan gave the steps of the last window; a step may draft fewer.",
            labels=_MODEL_COHORT,
        )
        k = GaugeMetricFamily(
            "kadence_num_speculative_tokens",
            "Mean number of draft tokens per step in the last window.",
            labels=_MODEL_COHORT,
        )
        acceptance = GaugeMetricFamily(
            "kadence_acceptance_length",
            "1 + accepted draft tokens per drafting step in the last window.",
            labels=_MODEL_COHORT,
        )
        by_model: dict[str, list[MetricsSnapshot]] = {}
        for snapshot in self._snapshots:
            by_model.setdefault(snapshot.model, []).append(snapshot)
        for model, snapshots in sorted(by_model.items()):
            for cohort, window in sorted(merge_cohorts(w for s in snapshots for w in s.last_window.values()).items()):
                if cohort not in self._known:
                    continue
                if steps := window.spec_steps + window.plain_steps:
                    k.add_metric([model, cohort], window.draft_tokens / steps)
                    planned.add_metric([model, cohort], sum(cell.k * cell.steps for cell in window.cells) / steps)
                if window.spec_steps:
                    acceptance.add_metric([model, cohort], 1 + window.accepted_tokens / window.spec_steps)
        yield from (planned, k, acceptance)
        info = GaugeMetricFamily(
            "kadence_drafter_info", "1 for each drafter, name@version, of the workers.", labels=["model", "drafter"]
        )
        for model, drafter in sorted({(s.model, s.drafter) for s in self._snapshots if s.drafter}):
            info.add_metric([model, drafter], 1)
        yield info
        for name, text, value in (
            ("plan_version", "Version of the plan that every worker has reached.", _oldest_plan),
            ("plan_age_seconds", "Seconds since the plan of the worker with the oldest one was issued.", _plan_age),
            ("plan_expired", "1 when a worker's plan has expired, so that it runs on the fallback K.", _plan_expired),
            ("workers", "Workers that answered.", len),
            ("compiled_workers", "Of them, those whose target's step is compiled.", _compiled),
            ("running_sequences", "Sequences being decoded.", lambda s: sum(x.running for x in s)),
            ("waiting_requests", "Requests that wait for a place in a worker.", lambda s: sum(x.waiting for x in s)),
            ("kv_used_tokens", "Tokens of KV blocks that running sequences hold.", lambda s: sum(x.kv_used for x in s)),
            ("kv_total_tokens", "Tokens that the KV caches have room for.", lambda s: sum(x.kv_total for x in s)),
        ):
            family = GaugeMetricFamily(f"kadence_{name}", text, labels=["model"])
            for model, snapshots in sorted(by_model.items()):
                family.add_metric([model], value(snapshots))
            yield family


def render(snapshots: Sequence[MetricsSnapshot], counts: JournalCounts, known_cohorts: Iterable[str]) -> bytes:
    """The exposition of these snapshots alone, without a memory of earlier ones."""
    aggregator = MetricsAggregator()
    aggregator.observe(snapshots, known_cohorts)
    return aggregator.render(counts)


def _series(snapshot: MetricsSnapshot) -> Iterator[tuple[Series, float]]:
    """All counters of one worker, flat."""
    model = snapshot.model
    for cohort, w in snapshot.totals.items():
        yield Series("drafts", model, (cohort,)), w.spec_steps
        yield Series("emitted_tokens", model, (cohort,)), w.emitted_tokens
        yield Series("plain_steps", model, (cohort,)), w.plain_steps
        yield Series("requests_started", model, (cohort,)), w.requests_started
        yield Series("requests_finished", model, (cohort,)), w.requests_finished
        yield Series("requests_failed", model, (cohort,)), w.requests_failed
        deepest = max((min(c.drafted, cell.deepest) for cell in w.cells for c in cell.counts), default=0)
        for position in range(deepest):
            yield Series("draft_tokens", model, (cohort, str(position))), w.drafted_at(position)
            yield Series("accepted_tokens", model, (cohort, str(position))), w.accepted_at(position)
        yield Series("step_seconds", model, (cohort,), _COUNT), w.spec_steps + w.plain_steps
        yield Series("step_seconds", model, (cohort,), _SUM), sum(cell.step_seconds for cell in w.cells)
        yield from _buckets("time_to_first_token_seconds", model, cohort, w.ttft)
        yield from _buckets("time_per_output_token_seconds", model, cohort, w.tpot)
    for cohort, use in snapshot.use.items():
        yield Series(_BUSY, model, (cohort, snapshot.device)), use.ns
        yield Series(_WASTED, model, (cohort, snapshot.device)), use.wasted_ns
        yield Series("busy_seconds", model, (cohort,)), use.ns / NS_PER_SECOND
        yield Series("wasted_speculation_seconds", model, (cohort,)), use.wasted_ns / NS_PER_SECOND
        if use.uj is not None:
            yield Series("attributed_energy_joules", model, (cohort,)), use.uj / 1e6
        if use.wasted_uj is not None:
            yield Series("wasted_speculation_joules", model, (cohort,)), use.wasted_uj / 1e6
    yield Series(_IDLE, model, (snapshot.device,)), snapshot.idle_ns
    yield Series("idle_seconds", model, ()), snapshot.idle_ns / NS_PER_SECOND
    for source, microjoules in snapshot.energy_uj.items():
        if source != "none":
            yield Series("energy_joules", model, (source,)), microjoules / 1e6
    for gap, count in snapshot.energy_windows_dropped.items():
        yield Series("energy_windows_dropped", model, (gap,)), count
    for reason, count in snapshot.plans_refused.items():
        yield Series("plans_refused", model, (reason,)), count
    yield Series("plan_k_clamped", model, ()), snapshot.plan_k_clamped
    for labels, totals in snapshot.canary.items():
        yield Series("canary_checked", model, labels), totals.checked
        yield Series("canary_mismatch", model, labels), totals.wrong
        yield Series("canary_near_tie", model, labels), totals.near_ties
        yield Series("canary_seconds", model, labels), totals.seconds
    for name in ("prefix_cache_queries", "prefix_cache_hits", "preemptions"):
        counts: Mapping[str, int] = getattr(snapshot, name)
        for cohort, count in counts.items():
            yield Series(name, model, (cohort,)), count
    yield Series("reports_lost", model, ()), snapshot.reports_lost
    for reason, count in snapshot.requests_cut.items():
        yield Series("requests_cut", model, (reason,)), count


def _buckets(name: str, model: str, cohort: str, histogram: LatencyHistogram) -> Iterator[tuple[Series, float]]:
    for i, count in enumerate(histogram.counts):
        yield Series(name, model, (cohort,), i), count
    yield Series(name, model, (cohort,), _SUM), histogram.sum_s


def _oldest_plan(snapshots: Sequence[MetricsSnapshot]) -> float:
    return min(s.plan_version for s in snapshots)


def _compiled(snapshots: Sequence[MetricsSnapshot]) -> float:
    return sum(s.is_compiled for s in snapshots)


def _plan_age(snapshots: Sequence[MetricsSnapshot]) -> float:
    return max(s.plan_age_s for s in snapshots)


def _plan_expired(snapshots: Sequence[MetricsSnapshot]) -> float:
    return float(any(s.plan_expired for s in snapshots))


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families
