"""What the policy in force allows, for Prometheus: what a graph of K is read against."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from controlplane.policy import Policy


def of_policy(policy: Policy | None) -> Iterator[Metric]:
    """The ends of every cohort's ladder; families without a sample where there is no policy."""
    labels = ["cohort", "tuner"]
    least = GaugeMetricFamily("kadence_ladder_min_tokens", "Least K that the policy allows a cohort.", labels=labels)
    most = GaugeMetricFamily("kadence_ladder_max_tokens", "Largest K that the policy allows a cohort.", labels=labels)
    for cohort in policy.cohorts if policy is not None else ():
        told = cohort.speculation
        least.add_metric([cohort.name, told.tuner], min(told.ladder))
        most.add_metric([cohort.name, told.tuner], max(told.ladder))
    yield from (least, most)
