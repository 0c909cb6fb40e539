"""The shell of the control loop: merging reports, versions, expiry, kill switch, policy changes, a failing journal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.alerts import Alert
from controlplane.controller import Controller
from controlplane.decision.decide import Decision, Reason
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.rollout import Rollout
from controlplane.telemetry import (
    CohortWindow,
    Report,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
)
from controlplane.tolerant_journal import Journal

TEXT = """
version: 1
cohorts:
  - {name: json, match: {api_key: [json]},
     speculation: {tuner: threshold, ladder: [0, 1, 2, 4], start: 2, fallback: 1}}
  - {name: default, match: {}, speculation: {tuner: threshold, ladder: [0, 1, 2], start: 1, fallback: 0}}
"""
POLICY = parse_policy(TEXT)
T0 = 1000.0


class KeptJournal:
    """Keeps everything in lists."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.decisions: list[Decision] = []
        self.plans: list[Plan] = []
        self.policies: list[tuple[Policy, str, str, float]] = []
        self.alerts: list[Alert] = []
        self.tellings: list[str] = []

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        self.reports += reports
        self.decisions += decisions
        self.plans.append(plan)

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        self.policies.append((policy, by, why, now))

    def rollout_changed(self, rollout: Rollout) -> None:
        pass

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        self.tellings.append(kind)

    def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None:
        self.alerts.append(alert)
        self.decisions += decisions


class BrokenJournal:
    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        raise OSError("disk full")

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        raise OSError("disk full")

    def rollout_changed(self, rollout: Rollout) -> None:
        raise OSError("disk full")

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        raise OSError("disk full")

    def alert(self, alert: Alert, decisions: Sequence[Decision]) -> None:
        raise OSError("disk full")


def controller(journal: Journal | None = None, policy: Policy = POLICY, **options: Any) -> Controller:
    return Controller(policy, journal or KeptJournal(), epoch=int(T0 * 1e9), **options)


def report(
    sequence: int = 0,
    *,
    cohort: str = "json",
    counts: Sequence[tuple[int, int, bool, int]] = ((2, 2, False, 60),),
    worker: str = "w1",
    ended_at: float = T0,
    **changes: Any,
) -> Report:
    cells = (StepCell(0, 2, tuple(StepCount(*c) for c in counts), 1.0),)
    window = WorkerWindow(
        id=WindowId(worker, 1, sequence),
        model="m",
        drafter="ngram",
        device="cpu",
        started_at=ended_at - 1.0,
        ended_at=ended_at,
        busy_s=0.9,
        energy_uj=None,
        energy_source="none",
        plan_version=1,
        plan_expired=False,
        plan_age_s=0.5,
        running=1,
        waiting=0,
        kv_used=0,
        kv_total=1,
        cohorts=(CohortWindow(cohort, cells),),
    )
    return Report(replace(window, **changes))


def assert_same_beliefs(ours: Controller, theirs: Controller) -> None:
    np.testing.assert_equal(asdict(ours.state), asdict(theirs.state))


def test_the_first_plan_is_the_start_of_every_cohort() -> None:
    plan = controller(first_version=7).plan
    assert (plan.version, plan.k_for("json", 1, T0), plan.k_for("default", 1, T0)) == (7, 2, 1)


def test_a_tick_decides_on_what_was_reported_and_raises_the_version() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report())
    plan = control.tick(T0 + 1)
    assert (plan.version, plan.k["json"][0], plan.k["default"][0]) == (2, 4, 1)
    assert [(d.cohort, d.new_k, d.plan_version) for d in journal.decisions] == [("json", 4, 2)]
    assert journal.plans == [plan]


def test_a_tick_that_changes_nothing_keeps_the_version_and_renews_the_expiry() -> None:
    control = controller(plan_ttl_s=10.0)
    plan = control.tick(T0 + 5)
    assert (plan.version, plan.issued_at, plan.expires_at) == (1, T0 + 5, T0 + 15)


def test_an_expired_plan_means_the_fallback() -> None:
    plan = controller().tick(T0)
    assert plan.k_for("json", 1, T0 + 10) == 1


def test_the_answer_to_a_report_is_the_newest_plan() -> None:
    control = controller()
    newest = control.tick(T0)
    assert control.observe(report()) is newest


def test_a_window_counts_once_however_often_it_comes() -> None:
    once, twice = controller(), controller()
    once.observe(report())
    for _ in range(3):
        twice.observe(report())
    once.tick(T0)
    twice.tick(T0)
    twice.observe(report())
    assert twice.tick(T0 + 1) == once.tick(T0 + 1)
    assert_same_beliefs(twice, once)
    assert twice.refused["duplicate"] == 3


def test_the_same_sequence_of_another_worker_or_start_is_another_window() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report())
    control.observe(report(worker="w2"))
    control.observe(report(id=WindowId("w1", 2, 0)))
    control.tick(T0)
    assert len(journal.reports) == 3


def test_a_window_far_behind_its_worker_counts_as_seen() -> None:
    control = controller()
    control.observe(report(5000))
    control.observe(report(1))
    assert control.refused["duplicate"] == 1


def test_a_late_window_is_journalled_and_not_decided_on() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report(ended_at=T0 - 61))
    plan = control.tick(T0)
    assert (plan.version, len(journal.reports), journal.decisions, control.refused["late"]) == (1, 1, [], 1)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_order_and_repetition_of_reports_change_nothing(rng: random.Random, size: int) -> None:
    reports = [report(i, worker=f"w{i % 2}", counts=((2, i % 3, False, 10 * i), (0, 0, False, 5))) for i in range(size)]
    shuffled = reports + rng.choices(reports, k=3)
    rng.shuffle(shuffled)
    straight, mixed = controller(), controller()
    for each in reports:
        straight.observe(each)
    for each in shuffled:
        mixed.observe(each)
    assert straight.tick(T0) == mixed.tick(T0)
    assert_same_beliefs(straight, mixed)


def stream(rng: random.Random, seconds: int) -> list[Report]:
    """Two workers, a window a second each, whose acceptance changes half way."""
    return [
        report(
            second,
            worker=worker,
            ended_at=T0 + second,
            counts=((2, 2 if (second < seconds / 2) == (rng.random() < 0.8) else 0, False, rng.randint(1, 60)),),
        )
        for second in range(seconds)
        for worker in ("w1", "w2")
    ]


def ticked(reports: Sequence[Report], seconds: int, control: Controller) -> list[dict[str, tuple[int, ...]]]:
    """K by cohort after every second, each report coming in the second in which its window ended."""
    said = []
    for second in range(seconds):
        for each in reports:
            if each.window.ended_at == T0 + second:
                control.observe(each)
        said.append(dict(control.tick(T0 + second).k))
    return said


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_duplicated_reports_change_no_decision_of_a_whole_stream(rng: random.Random) -> None:
    reports = stream(rng, 20)
    repeated = [each for each in reports for _ in range(rng.randint(1, 3))]
    once, often = controller(), controller()
    assert ticked(reports, 20, once) == ticked(repeated, 20, often)
    assert_same_beliefs(once, often)


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_late_reports_change_no_decision_of_a_whole_stream(rng: random.Random) -> None:
    reports = stream(rng, 20)
    straight, disturbed = controller(), controller()
    said = ticked(reports, 20, straight)
    stale = [report(500 + i, worker="w3", ended_at=T0 - 61 - i, counts=((2, 0, False, 500),)) for i in range(5)]
    for each in stale:
        disturbed.observe(each)
    assert ticked(reports, 20, disturbed) == said
    assert disturbed.refused["late"] == 5


@settings(max_examples=8, deadline=None)
@given(st.randoms(use_true_random=False))
def test_missing_reports_leave_every_k_a_rung(rng: random.Random) -> None:
    reports = [each for each in stream(rng, 30) if rng.random() < 0.5]
    for k in ticked(reports, 30, controller()):
        assert set(k["json"]) <= {0, 1, 2, 4}
        assert set(k["default"]) == {1}


NAN = float("nan")


def test_a_window_that_cannot_be_true_is_refused_with_its_reason() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report(busy_s=NAN))
    control.tick(T0)
    assert (dict(control.refused)["bad busy_s"], journal.reports) == (1, [])


def test_a_refused_window_may_come_again_corrected() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report(busy_s=NAN))
    control.observe(report())
    control.tick(T0)
    assert len(journal.reports) == 1


def test_a_cohort_that_the_policy_does_not_know_is_only_journalled() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report(cohort="gone"))
    plan = control.tick(T0)
    assert ("gone" in plan.k, len(journal.reports)) == (False, 1)


def test_a_journal_that_fails_does_not_stop_control(caplog: pytest.LogCaptureFixture) -> None:
    control = controller(BrokenJournal())
    control.observe(report())
    assert control.tick(T0).k["json"][0] == 4
    control.apply_policy(POLICY, by="ops", why="again", now=T0)
    assert control.journal_failures == 3
    assert "journal failed" in caplog.text


def fail(*args: Any) -> Any:
    """Stands in for a defect of decide(): every window that it could stumble over is refused before it."""
    raise ArithmeticError("defect")


def fails(*_: object) -> None:
    raise OverflowError


def test_a_tick_that_fails_to_decide_still_journals_what_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.observe(report())
    monkeypatch.setattr("controlplane.controller.decide", fails)
    with pytest.raises(OverflowError):
        control.tick(T0)
    assert len(journal.reports) == 1


def test_after_such_a_tick_control_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    control = controller()
    control.observe(report())
    with monkeypatch.context() as patch:
        patch.setattr("controlplane.controller.decide", fails)
        with pytest.raises(OverflowError):
            control.tick(T0)
    control.observe(report(1))
    assert control.tick(T0 + 1).k["json"][0] == 4


def test_the_kill_switch_overrides_at_once_and_is_journalled_with_who_and_why() -> None:
    journal = KeptJournal()
    control = controller(journal)
    control.set_kill_switch("zero", by="ops", why="bad drafter", now=T0)
    plan = control.plan
    assert (plan.version, plan.kill_switch, plan.k_for("json", 1, T0)) == (2, "zero", 0)
    assert journal.decisions[0].sentence == "json 2 -> 0: kill switch zero by ops: bad drafter"
    assert {d.reason for d in journal.decisions} == {Reason.KILL_SWITCH}


def test_the_kill_switch_to_fallback_gives_each_cohort_its_own() -> None:
    control = controller()
    control.set_kill_switch("fallback", by="ops", why="", now=T0)
    assert [control.plan.k_for(name, 1, T0) for name in ("json", "default")] == [1, 0]


def test_nothing_is_decided_while_the_kill_switch_is_on_but_evidence_is_kept() -> None:
    control = controller()
    control.set_kill_switch("fallback", by="ops", why="", now=T0)
    control.observe(report())
    plan = control.tick(T0 + 1)
    assert (plan.version, plan.k["json"][0]) == (2, 2)
    assert control.state.estimate.samples[0] > 0


def test_control_resumes_from_the_k_before_when_the_kill_switch_goes_off() -> None:
    control = controller()
    control.observe(report())
    control.tick(T0)
    control.set_kill_switch("zero", by="ops", why="", now=T0 + 1)
    control.set_kill_switch("off", by="ops", why="", now=T0 + 2)
    assert control.plan.k_for("json", 1, T0 + 2) == 4


def test_an_unknown_kill_switch_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="off, fallback, zero"):
        controller().set_kill_switch("on", by="ops", why="", now=T0)  # type: ignore[arg-type]


def learnt() -> Controller:
    control = controller()
    control.observe(report())
    control.tick(T0)
    return control


def test_a_cohort_with_the_same_ladder_keeps_what_was_learnt_under_a_new_policy() -> None:
    control = learnt()
    control.apply_policy(parse_policy(TEXT.replace("fallback: 1", "fallback: 2")), by="ops", why="", now=T0 + 1)
    plan = control.plan
    assert (plan.k["json"][0], plan.fallback["json"], plan.version) == (4, 2, 3)


def test_a_cohort_with_another_ladder_starts_anew() -> None:
    control = learnt()
    control.apply_policy(parse_policy(TEXT.replace("[0, 1, 2, 4]", "[0, 1, 2, 3]")), by="ops", why="", now=T0 + 1)
    assert control.plan.k["json"][0] == 2
    assert control.state.estimate.samples[0] == 0


def test_a_cohort_that_becomes_fixed_has_its_k_at_once() -> None:
    control = learnt()
    fixed = TEXT.replace("tuner: threshold, ladder: [0, 1, 2, 4]", "tuner: fixed, ladder: [0, 1, 2, 4]")
    control.apply_policy(parse_policy(fixed), by="ops", why="", now=T0 + 1)
    assert set(control.plan.k["json"]) == {2}


def test_an_applied_policy_is_journalled_with_the_changes_it_made() -> None:
    journal = KeptJournal()
    control = controller(journal)
    changed = parse_policy(TEXT.replace("start: 2", "start: 4"))
    control.apply_policy(changed, by="ops", why="try deeper", now=T0)
    assert journal.policies == [(changed, "ops", "try deeper", T0)]
    assert {d.sentence for d in journal.decisions} == {"json 2 -> 4: policy applied by ops: try deeper"}
    assert {d.plan_version for d in journal.decisions} == {2}


def test_a_policy_that_is_not_one_never_replaces_the_good_one() -> None:
    control = controller()
    with pytest.raises(TypeError, match="parsed Policy"):
        control.apply_policy("version: 1", by="ops", why="", now=T0)  # type: ignore[arg-type]
    assert control.policy is POLICY
    assert control.plan.version == 1


def test_decisions_are_counted_by_cohort_and_reason() -> None:
    assert learnt().decided == {("json", "explored"): 1}


def test_versions_rise_with_every_change_and_never_fall() -> None:
    control, versions = controller(first_version=3), []
    for second in range(40):
        accepted = 2 if second < 20 else 0
        control.observe(report(second, counts=((2, accepted, False, 60),), ended_at=T0 + second))
        versions.append(control.tick(T0 + second).version)
    assert versions == sorted(versions)
    assert versions[0] == 4
    assert versions[-1] > versions[0]
