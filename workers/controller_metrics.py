"""What a controller counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from workers.backend import JournalCounts


def of_controller(counts: JournalCounts) -> Iterator[Metric]:
    """Decisions, refused reports, alerts, budgets, and what waits to be written or is lost."""
    family = CounterMetricFamily("kadence_decisions", "Decisions on K by reason.", labels=["cohort", "reason"])
    for (cohort, reason), count in sorted(counts.decisions.items()):
        family.add_metric([cohort, reason], count)
    yield family
    refused = CounterMetricFamily("kadence_reports_refused", "Reports not decided on, by reason.", labels=["reason"])
    for reason, count in sorted(counts.reports_refused.items()):
        refused.add_metric([reason], count)
    yield refused
    yield GaugeMetricFamily(
        "kadence_controller_stepped_down",
        "1 when the controller found a later one in its database and decides no more.",
        float(counts.stepped_down),
    )
    # Absent, not 0, where it never answered: whoever starts without a controller must be told so, too.
    silence = GaugeMetricFamily(
        "kadence_controller_silence_seconds",
        "Seconds since the controller last answered this endpoint; absent while it never did.",
        labels=[],
    )
    if counts.silence_s is not None:
        silence.add_metric([], counts.silence_s)
    yield silence
    alerts = GaugeMetricFamily("kadence_alerts_active", "1 while an alert is not cleared.", labels=["alert"])
    for name in sorted(counts.alerts):
        alerts.add_metric([name], 1)
    yield alerts
    yield from _budgets(counts)
    spooled, lost = counts.ledger_spooled, counts.ledger_lost
    yield GaugeMetricFamily("kadence_ledger_rows_spooled", "Rows waiting to be written to the database.", spooled)
    yield CounterMetricFamily("kadence_ledger_rows_lost", "Rows that could not be kept for the database.", lost)


def _budgets(counts: JournalCounts) -> Iterator[Metric]:
    spent = GaugeMetricFamily(
        "kadence_budget_spent_usd", "Dollars spent in the present period; absent while unknown.", labels=["budget"]
    )
    limit = GaugeMetricFamily("kadence_budget_limit_usd", "Dollars of a period.", labels=["budget"])
    ahead = GaugeMetricFamily(
        "kadence_budget_forecast_usd",
        "Dollars expected to be spent by the reset; absent while unknown.",
        labels=["budget"],
    )
    period = GaugeMetricFamily("kadence_budget_period_seconds", "Length of the present period.", labels=["budget"])
    reset = GaugeMetricFamily(
        "kadence_budget_reset_timestamp_seconds", "When the present period ends, unix time.", labels=["budget"]
    )
    rejections = CounterMetricFamily("kadence_budget_rejections", "Requests refused by a budget.", labels=["budget"])
    for status in counts.budgets:
        if status.standing != "unknown":
            spent.add_metric([status.name], status.spent_nano / 1e9)
        limit.add_metric([status.name], status.limit_nano / 1e9)
        if status.forecast is not None:
            ahead.add_metric([status.name], status.forecast.at_reset_nano / 1e9)
        period.add_metric([status.name], status.period.end - status.period.start)
        reset.add_metric([status.name], status.period.end)
        rejections.add_metric([status.name], status.rejections)
    yield from (spent, limit, ahead, period, reset, rejections)
    text = "Requests that an endpoint decided on by the last word it had, because the controller did not answer."
    yield CounterMetricFamily("kadence_budget_unasked", text, counts.budgets_unasked)
