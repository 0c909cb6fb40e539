"""Wrong text blocks its drafter in the answer to the report that says so, until an operator clears it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from controlplane.alerts import Alert, CanaryCheck
from controlplane.controller import Controller
from controlplane.decision.decide import Decision
from controlplane.decision.guard import Reason
from controlplane.policy import parse_policy
from controlplane.replay import as_stored, compare
from controlplane.telemetry import Report

POLICY = parse_policy("""
version: 1
cohorts:
  - {name: json, match: {api_key: [json]}, speculation: {tuner: fixed, ladder: [0, 1, 2, 4], start: 2, fallback: 1}}
  - {name: off, match: {api_key: [off]}, speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}}
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 1, 2], start: 1, fallback: 0}}
""")
T0 = 1_790_000_000.0
WRONG = CanaryCheck("r1", "w1", "json", "ngram@1", T0 + 5, "greedy", 40, 0, 3, 7.5, 1.1, 12, 90, 0.2)


class KeptJournal:
    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.decisions: list[Decision] = []

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Any, now: float) -> None:
        pass

    def policy_applied(self, *args: Any) -> None:
        pass

    def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None:
        self.alerts.append(alert)
        self.decisions += decisions


@pytest.fixture
def journal() -> KeptJournal:
    return KeptJournal()


@pytest.fixture
def control(journal: KeptJournal) -> Controller:
    made = Controller(POLICY, journal, epoch=int(T0 * 1e9), first_version=7)
    made.tick(T0 + 4)
    return made


@pytest.fixture
def report(make_worker_window: Any) -> Any:
    numbers = iter(range(1, 100))

    def make(*checks: CanaryCheck) -> Report:
        window = make_worker_window(cohorts=())
        at = {"started_at": T0 + 4, "ended_at": T0 + 5}
        return Report(replace(window, id=window.id._replace(sequence=next(numbers)), **at), canary=checks)

    return make


def k(plan: Any, cohort: str = "json", drafter: str = "ngram@1") -> int:
    return int(plan.k_for(cohort, 1, T0 + 5, drafter=drafter))


def test_the_answer_to_the_report_blocks_the_drafter_and_no_other(control: Controller, report: Any) -> None:
    plan = control.observe(report(WRONG))
    assert (k(plan), k(plan, "default"), k(plan, drafter="ngram@2")) == (0, 0, 2)


def test_it_is_a_newer_issue_of_the_same_version_and_lives_no_longer(control: Controller, report: Any) -> None:
    before = control.plan
    plan = control.observe(report(WRONG))
    assert (plan.version, plan.expires_at, plan.k) == (before.version, before.expires_at, before.k)
    assert before.issued_at < plan.issued_at < before.issued_at + 0.001


def test_an_expired_plan_still_blocks(control: Controller, report: Any) -> None:
    plan = control.observe(report(WRONG))
    assert plan.k_for("json", 1, T0 + 1000, drafter="ngram@1") == 0
    assert plan.k_for("json", 1, T0 + 1000, drafter="ngram@2") == 1


def test_it_stays_blocked_over_ticks_policies_and_a_restart(control: Controller, report: Any) -> None:
    control.observe(report(WRONG))
    assert k(control.tick(T0 + 6)) == 0
    control.apply_policy(POLICY, by="ops", why="again", now=T0 + 7)
    assert k(control.plan) == 0
    restarted = Controller(POLICY, KeptJournal(), epoch=int(T0 * 1e9) + 1, alerts=control.alerts.active.values())
    assert k(restarted.plan) == 0


def test_each_cohort_that_loses_its_drafts_has_a_decision_with_the_sentence(
    control: Controller, report: Any, journal: KeptJournal
) -> None:
    control.observe(report(WRONG))
    assert [(d.cohort, d.old_k, d.new_k, d.reason, d.at) for d in journal.decisions] == [
        ("json", 2, 0, Reason.CANARY, T0 + 5),
        ("default", 1, 0, Reason.CANARY, T0 + 5),
    ]
    assert journal.decisions[0].sentence.startswith("json 2 -> 0: canary: text of json drafted by ngram@1")
    assert control.decided["json", "canary"] == 1


def test_more_of_the_same_counts_and_decides_nothing_new(
    control: Controller, report: Any, journal: KeptJournal
) -> None:
    control.observe(report(WRONG, replace(WRONG, request_id="r2", at=T0 + 5.5)))
    control.observe(report(replace(WRONG, request_id="r3", at=T0 + 5.9)))
    assert [alert.count for alert in journal.alerts] == [1, 2, 3]
    assert len(journal.decisions) == 2


def test_a_report_that_comes_twice_counts_once(control: Controller, report: Any, journal: KeptJournal) -> None:
    twice = report(WRONG)
    control.observe(twice)
    control.observe(twice)
    assert [alert.count for alert in journal.alerts] == [1]


def test_a_window_that_is_refused_takes_no_check_with_it(control: Controller, report: Any) -> None:
    """A verifier that is broken enough to give NaN is what the canary is for."""
    bad = report(WRONG)
    bad = replace(bad, window=replace(bad.window, busy_s=float("nan")))
    assert control.observe(bad).blocked_drafters == ("ngram@1",)
    assert control.refused["bad busy_s"] == 1


def test_clearing_frees_the_drafter_at_once_and_is_journalled(
    control: Controller, report: Any, journal: KeptJournal
) -> None:
    control.observe(report(WRONG))
    ended = control.clear_alert("canary:ngram@1", by="ann", why="kernel fixed", now=T0 + 8)
    assert (k(control.plan), ended.state, journal.alerts[-1]) == (2, "cleared", ended)
    assert journal.decisions[-2].sentence == "json 0 -> 2: alert canary:ngram@1 cleared by ann: kernel fixed"


def test_clearing_what_is_not_active_is_refused(control: Controller) -> None:
    with pytest.raises(ValueError, match="no active alert is named 'canary:x@1'"):
        control.clear_alert("canary:x@1", by="ann", why="", now=T0)


def test_right_text_and_near_ties_change_nothing(control: Controller, report: Any, journal: KeptJournal) -> None:
    before = control.plan
    fine = replace(WRONG, mismatches=0, worst_gap=0.0, first_mismatch=None)
    assert control.observe(report(fine, replace(fine, near_ties=2))) is before
    assert journal.alerts == []


def test_a_check_that_cannot_be_true_is_refused_with_its_reason(
    control: Controller, report: Any, journal: KeptJournal
) -> None:
    control.observe(report(replace(WRONG, at=float("nan"))))
    assert (control.refused["bad at"], journal.alerts) == (1, [])


def test_a_journal_that_fails_does_not_keep_the_drafter_running(report: Any) -> None:
    class Broken(KeptJournal):
        def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None:
            raise OSError("disk full")

    control = Controller(POLICY, Broken(), epoch=int(T0 * 1e9))
    assert k(control.observe(report(WRONG))) == 0
    assert control.journal_failures == 1


def test_a_replay_of_the_journal_leaves_these_decisions_out(
    control: Controller, report: Any, journal: KeptJournal
) -> None:
    """They belong to no tick, and the plan's K and version are as if they had not been."""
    control.observe(report(WRONG))
    assert compare(map(as_stored, journal.decisions), []) == []
