"""Anomalies in words, and alerts: one a stretch of hours, whoever looks how often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.alerts import Alert
from controlplane.finops.anomaly import Anomaly, Factors
from controlplane.finops.anomaly_text import alerts_due, episodes, hour_text, sentence

HOUR = 494_487
BEFORE: Factors = {"price": 0.0, "idle": 0.2, "prefill": 0.1, "load": 14.0, "acceptance": -1.0}


def unusual(hour: int = HOUR, cohort: str = "chat", metric="cost", value: float = 4.0) -> Anomaly:
    """Twice the usual by acceptance."""
    now: Factors = {**BEFORE, "acceptance": -1.0 + 0.693147}
    parts: Factors = {name: now[name] - BEFORE[name] for name in now}
    return Anomaly(cohort, hour, metric, value, 2.0, 6.0, "day", 40, parts, now, BEFORE, 3.0, 2.5)


def due(hours: list[int], known: list[Alert], cohort: str = "chat") -> list[Alert]:
    return alerts_due(episodes(unusual(hour, cohort) for hour in hours), known, "USD")


def test_a_sentence_says_how_much_how_unusual_and_why() -> None:
    text = sentence(unusual(), "USD")
    assert text.startswith(f"chat at {hour_text(HOUR)}: 4 USD per million tokens, usually 2 (+100 %, z +6.0)")
    assert "likely cause acceptance: 1.36 tokens a step, usually 2.72" in text
    assert "drafting 3.00 tokens a step, usually 2.50" in text


def test_cost_and_energy_of_one_hour_are_one_alert() -> None:
    (alert,) = alerts_due(episodes([unusual(), unusual(metric="energy")]), [], "USD")
    assert "USD per million" in alert.detail
    assert "J per token" in alert.detail


def test_an_alert_is_named_by_cohort_and_hour() -> None:
    (alert,) = due([HOUR], [])
    assert (alert.name, alert.severity, alert.count) == (f"anomaly:chat/{hour_text(HOUR)}", "warning", 1)


def test_hours_in_a_row_are_one_alert_that_counts_them() -> None:
    (alert,) = due([HOUR, HOUR + 1, HOUR + 2], [])
    assert alert.count == 3


def test_hours_with_a_usual_one_between_are_two_alerts() -> None:
    assert len(due([HOUR, HOUR + 2], [])) == 2


def test_two_cohorts_have_an_alert_each() -> None:
    found = [unusual(), unusual(cohort="code")]
    assert {alert.subject.split("/")[0] for alert in alerts_due(episodes(found), [], "USD")} == {"chat", "code"}


def test_a_cheap_hour_calls_nobody() -> None:
    assert episodes([unusual(value=1.0)]) == []


def test_looking_again_at_the_same_hours_gives_nothing_new() -> None:
    assert due([HOUR, HOUR + 1], due([HOUR, HOUR + 1], [])) == []


def test_one_hour_more_goes_on_with_the_alert() -> None:
    (first,) = due([HOUR], [])
    (alert,) = due([HOUR, HOUR + 1], [first])
    assert (alert.name, alert.first_seen, alert.count) == (first.name, first.first_seen, 2)


def test_an_alert_goes_on_when_its_first_hours_are_no_longer_looked_at() -> None:
    (first,) = due([HOUR, HOUR + 1], [])
    (alert,) = due([HOUR + 1, HOUR + 2, HOUR + 3], [first])
    assert (alert.name, alert.count) == (first.name, 4)


def test_what_an_operator_cleared_stays_silent_while_it_goes_on() -> None:
    (first,) = due([HOUR], [])
    cleared = replace(first, state="cleared", cleared_at=first.last_seen + 60)
    assert due([HOUR, HOUR + 1], [cleared]) == []


def test_the_same_cohort_days_later_is_a_new_alert() -> None:
    (first,) = due([HOUR], [])
    (alert,) = due([HOUR + 48], [first])
    assert alert.name != first.name


def test_an_alert_of_another_kind_is_not_gone_on_with() -> None:
    (first,) = due([HOUR], [])
    assert len(due([HOUR], [replace(first, kind="budget")])) == 1


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        ("price", "7200 USD a machine hour"),
        ("idle", "50 % of the machine time idle"),
        ("prefill", "50 % of the busy time for prompts"),
        ("load", "2e-06 ms of a machine"),
        ("power", "2000 W a machine"),
    ],
)
def test_each_cause_has_a_figure_of_its_own(cause, text) -> None:
    now = {cause: 0.693147}
    anomaly = replace(unusual(), parts=now, now=now, before={cause: 0.0})
    assert text in sentence(anomaly, "USD")
