"""Alerts and canary checks, written by the journal and read back, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.alerts import AlertBook, CanaryCheck
from controlplane.decision.plan import Plan
from controlplane.store.alerts import alert_log, canary_summary
from controlplane.store.journal import SqlJournal
from controlplane.store.time_range import TimeRange
from controlplane.store.upkeep import prune, verify
from controlplane.telemetry import Report

CHECK = CanaryCheck("r1", "w1", "json", "ngram@1", 100.0, "greedy", 40, 0, 0, 0.0, 0.0, None, 90, 0.25)
WRONG = replace(CHECK, request_id="r2", mismatches=3, worst_gap=7.5, tolerance=1.1, first_mismatch=12)
PLAN = Plan(1, 1, 0.0, 10.0, {}, {}, "x")


@pytest.fixture
def journal(ledger):
    made = SqlJournal(ledger)
    yield made
    made.close()


def test_an_alert_is_one_row_until_it_is_cleared(ledger, journal) -> None:
    book, alert = AlertBook().take(WRONG)
    journal.alert(alert)
    book, alert = book.take(replace(WRONG, at=130.0))
    journal.alert(alert)
    journal.flush()
    assert alert_log(ledger, "active") == [alert]
    _, ended = book.clear(alert.name, by="ops\0", why="fixed", now=200.0)
    journal.alert(ended)
    journal.flush()
    assert alert_log(ledger, "active") == []
    assert alert_log(ledger) == [replace(ended, cleared_by="ops")]


def test_what_was_cleared_is_not_raised_again_by_a_late_write(ledger, journal) -> None:
    book, alert = AlertBook().take(WRONG)
    _, ended = book.clear(alert.name, by="ops", why="", now=200.0)
    for each in (alert, ended, alert):
        journal.alert(each)
    journal.flush()
    assert [a.state for a in alert_log(ledger)] == ["cleared"]


def test_checks_are_summed_by_cohort_and_drafter(ledger, journal, make_worker_window) -> None:
    checks = (CHECK, WRONG, replace(CHECK, request_id="r3", cohort="chat", near_ties=1, worst_gap=0.2, tolerance=0.5))
    report = Report(make_worker_window(), canary=checks)
    journal.record([report], (), PLAN, 1.0)
    journal.record([report], (), PLAN, 2.0)  # reported twice
    journal.flush()
    chat, json = canary_summary(ledger, TimeRange(0.0, 1000.0))
    assert (chat.cohort, chat.requests, chat.wrong, chat.near_ties, chat.worst_gap) == ("chat", 1, 0, 1, 0.2)
    assert (json.requests, json.wrong, json.positions, json.mismatches, json.seconds) == (2, 1, 80, 3, 0.5)


def test_old_checks_go_with_old_requests_and_alerts_stay(ledger, journal, make_worker_window) -> None:
    journal.record(
        [Report(make_worker_window(), canary=(CHECK, replace(CHECK, request_id="r9", at=3e9)))], (), PLAN, 1.0
    )
    journal.alert(AlertBook().take(WRONG)[1])
    journal.flush()
    prune(ledger, before=2.9e9)
    counts = verify(ledger).counts
    assert (counts["canary_result"], counts["alert"]) == (1, 1)
