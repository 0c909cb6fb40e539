"""The schedule of a savings experiment, and what it does to a controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.controller import Controller
from controlplane.decision.plan import Plan
from controlplane.experiment import (
    HOLDOUT,
    SETTLE_S,
    ExperimentError,
    Run,
    Spec,
    Window,
    holdout_replicas,
)
from controlplane.experiment_control import ExperimentControl
from controlplane.policy import Policy, parse_policy
from controlplane.replay import KeptDecisions
from controlplane.rollout import StageOrder
from controlplane.telemetry import CohortWindow, Report, StepCell, StepCount, WindowId, WorkerWindow

T0 = 10_000.0
TEXT = """
version: 1
cohorts:
  - {name: json, match: {api_key: [json]},
     speculation: {tuner: threshold, ladder: [0, 1, 2, 4], start: 2, fallback: 1}}
  - {name: default, match: {}, speculation: {tuner: threshold, ladder: [0, 1, 2], start: 1, fallback: 1}}
experiment: {holdout: 25%, unit: window, window: 1m, burn_in: 20s}
"""
SPEC = Spec("window", 0.25, 60.0, 20.0, pairs=10)

specs = st.builds(
    Spec,
    unit=st.just("window"),
    holdout=st.floats(0.01, 0.5),
    window_s=st.floats(60, 7200),
    burn_in_s=st.floats(0, 59),
)


def run(spec: Spec = SPEC, seed: int = 7) -> Run:
    return Run("exp", spec, seed, T0, "ann", "to see")


@settings(deadline=None, max_examples=60)
@given(spec=specs, seed=st.integers(0, 2**31), pair=st.integers(0, 500))
def test_every_pair_has_both_arms_one_after_the_other_within_its_own_period(spec: Spec, seed: int, pair: int) -> None:
    first, second = run(spec, seed).windows(pair)
    begin = T0 + pair * spec.pair_every_s
    assert {first.arm, second.arm} == {"control", "treatment"}
    assert first.ended_at == second.started_at
    assert begin <= first.started_at
    assert second.ended_at <= begin + spec.pair_every_s + 1e-6
    for window in (first, second):
        assert window.ended_at - window.started_at == pytest.approx(spec.window_s)
        assert window.burn_in_end - window.started_at == pytest.approx(max(spec.burn_in_s, SETTLE_S))
        assert window.burn_in_end < window.ended_at


@settings(deadline=None, max_examples=30)
@given(spec=specs, seed=st.integers(0, 2**31), pair=st.integers(0, 500))
def test_a_moment_of_a_pair_belongs_to_its_number(spec: Spec, seed: int, pair: int) -> None:
    ours = run(spec, seed)
    first, second = ours.windows(pair)
    assert ours.pair_at(first.started_at + 1e-3) == pair
    assert ours.pair_at(second.ended_at - 1e-3) == pair


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31), holdout=st.floats(0.01, 0.5))
def test_control_windows_are_the_share_of_time_that_was_asked_for(seed: int, holdout: float) -> None:
    ours, pairs = run(Spec("window", holdout, 600.0, 60.0), seed), 50
    control = sum(w.ended_at - w.started_at for i in range(pairs) for w in ours.windows(i) if w.arm == "control")
    assert control / (pairs * ours.spec.pair_every_s) == pytest.approx(holdout)


def test_chance_decides_the_order_and_the_seed_decides_chance() -> None:
    orders = [[run(seed=seed).windows(i)[0].arm for i in range(400)] for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    first = np.array([arm == "control" for arm in orders[0]])
    assert 160 <= first.sum() <= 240
    # No order follows from the one before.
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.15


def test_a_pair_lies_anywhere_in_its_period() -> None:
    """Else every pair would be at the same minute of the hour."""
    starts = [run().windows(i)[0].started_at - T0 - i * SPEC.pair_every_s for i in range(300)]
    free = SPEC.pair_every_s - 2 * SPEC.window_s
    assert min(starts) < 0.05 * free
    assert max(starts) > 0.9 * free


def test_replicas_are_compared_at_once() -> None:
    control, treatment = run(Spec("replica", 0.5, 120.0, 0.0)).windows(3)
    assert (control.started_at, control.ended_at) == (treatment.started_at, treatment.ended_at)
    assert control.started_at == T0 + 360


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"unit": "request"}, "unit: 'request' is not one of window, replica"),
        ({"holdout": 0.6}, "holdout: 0.6 is not a share"),
        ({"window_s": 5}, "window_s: 5 is not within 60"),
        ({"burn_in_s": 200}, "burn_in_s: 200 must be shorter"),
        ({"pairs": 3}, "pairs: 3 is not within 10"),
        ({"pairs": 10.5}, "pairs: 10.5 is not a whole number"),
        ({"holdout": "5%"}, "holdout: '5%' is not a number"),
        ({"windows": 5}, "windows: is not a setting"),
        ({"pairs": float("inf")}, "pairs: inf is not a number"),
        ({"holdout": float("nan")}, "holdout: nan is not a number"),
    ],
)
def test_a_bad_order_is_refused_with_its_field(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        Spec.of(parse_policy(TEXT).experiment, asked)


def test_what_is_not_asked_for_is_the_policys() -> None:
    assert Spec.of(parse_policy(TEXT).experiment, {"pairs": 10}) == SPEC
    with pytest.raises(ExperimentError, match="the policy has no `experiment:` section"):
        Spec.of(None, {"unit": "window", "holdout": 0.5})


def by_replica(holdout: str) -> Policy:
    return parse_policy(TEXT.replace("25%, unit: window", f"{holdout}, unit: replica"))


@pytest.mark.parametrize(
    ("holdout", "replicas", "asked", "count"), [("5%", 4, 0, 1), ("25%", 8, 0, 2), ("5%", 8, 3, 3)]
)
def test_at_least_one_replica_is_held_out(holdout: str, replicas: int, asked: int, count: int) -> None:
    assert holdout_replicas(by_replica(holdout), replicas, asked) == count


def test_no_replica_is_held_out_where_windows_are_compared() -> None:
    assert holdout_replicas(parse_policy(TEXT), 4) == 0


def test_the_only_replica_cannot_be_held_out() -> None:
    with pytest.raises(ExperimentError, match="replicas: 1 are not enough"):
        holdout_replicas(by_replica("5%"), 1)


class Kept(KeptDecisions):
    """Journal of the controller and log of the experiment, in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.told_of: list[tuple[str, dict[str, Any]]] = []
        self.runs: list[Run] = []
        self.windows: list[Window] = []

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        self.told_of.append((kind, value))

    def experiment(self, run: Run) -> None:
        self.runs.append(run)

    def experiment_windows(self, windows: Sequence[Window]) -> None:
        self.windows += windows


class Life:
    """A controller, its experiment and a clock, ticked once a second; a worker reports what it was told to do."""

    def __init__(self, text: str = TEXT, **control: Any) -> None:
        self.kept, self.now, self.sequence = Kept(), T0, 0
        self.controller = Controller(parse_policy(text), self.kept, epoch=int(T0 * 1e9))
        self.control = ExperimentControl(self.controller, self.kept, lambda: self.now, **control)

    def start(self, **asked: Any) -> Run:
        return self.control.start({"pairs": 10, **asked}, "ann", "to see", seed=7)

    def tick(self) -> Plan:
        self.now += 1.0
        self.controller.observe(self.report())
        self.control.advance(self.now)
        return self.controller.tick(self.now + 1e-3)

    def until(self, moment: float) -> Plan:
        """Second by second only around the experiment's edges, and else as seldom as a plan lasts: ticks cost time."""
        run = self.control.run
        edges = [] if run is None else [w for pair in range(12) for w in run.windows(pair)]
        for edge in sorted({at for w in edges for at in (w.started_at, w.ended_at) if self.now < at < moment}):
            self.pass_by(edge - 1.5)
            while self.now < edge + 1:
                self.tick()
        self.pass_by(moment - 1.5)
        plan = self.controller.plan
        while self.now < moment:
            plan = self.tick()
        return plan

    def pass_by(self, moment: float) -> None:
        while self.now < moment:
            self.now = min(self.now + 8.0, moment - 1.0)
            self.tick()

    def report(self, worker: str = "worker-1", accepted: int = 16) -> Report:
        self.sequence += 1
        k = self.controller.plan.k_for("json", 1, self.now)
        kept = min(accepted, k)
        cells = (StepCell(0, k, (StepCount(k, kept, False, 30),), 0.9),)
        return Report(
            WorkerWindow(
                id=WindowId(worker, 1, self.sequence), model="m", drafter="ngram@1", device="cpu",
                started_at=self.now - 1.0, ended_at=self.now, busy_s=0.9, energy_uj=None, energy_source="none",
                plan_version=1, plan_expired=False, plan_age_s=0.5, running=1, waiting=0, kv_used=0, kv_total=1,
                cohorts=(CohortWindow("json", cells),),
            )
        )  # fmt: skip

    @property
    def k(self) -> tuple[int, int]:
        plan = self.controller.plan
        return plan.k_for("json", 1, self.now), plan.k_for("default", 1, self.now)


def in_control(life: Life, began: Run, pair: int = 0) -> tuple[Window, Window]:
    """The controller in the middle of that pair's control window; the pair's windows, control first."""
    by_arm = {window.arm: window for window in began.windows(pair)}
    life.until(by_arm["control"].started_at + 30)
    return by_arm["control"], by_arm["treatment"]


def test_a_control_window_is_k_0_for_every_cohort_within_a_tick_of_its_beginning() -> None:
    life = Life()
    control = {w.arm: w for w in life.start().windows(0)}["control"]
    plan = life.until(control.started_at)
    assert plan.arm == "control"
    assert life.k == (0, 0)
    assert all(plan.k_for(c, n, life.now) == 0 for c in ("json", "default", "nobody") for n in (1, 8, 300))


def test_after_a_control_window_control_goes_on_from_the_k_it_had() -> None:
    life = Life()
    life.tick()
    life.tick()
    life.tick()
    learnt = life.k
    assert learnt == (4, 1)
    control, _ = in_control(life, life.start())
    assert life.k == (0, 0)
    life.until(control.ended_at)
    assert life.controller.arm != "control"
    assert life.k == learnt


def test_nothing_is_learnt_in_a_control_window() -> None:
    life = Life()
    began = life.start()
    control, _ = in_control(life, began)
    before = asdict(life.controller.state)
    life.until(control.ended_at - 2)
    np.testing.assert_equal(asdict(life.controller.state), before)


def test_a_window_of_the_control_window_that_arrives_later_teaches_nothing_either() -> None:
    life, twin = Life(), Life()
    for each in (life, twin):
        control, _ = in_control(each, each.start())
        each.until(control.ended_at - 5)
    late = life.report(accepted=0)
    for each in (life, twin):
        each.until(control.ended_at + 1)
    life.controller.observe(late)
    for each in (life, twin):
        each.tick()
    np.testing.assert_equal(asdict(life.controller.state.estimate), asdict(twin.controller.state.estimate))


def test_between_its_pairs_an_experiment_changes_nothing() -> None:
    life = Life()
    began = life.start()
    last = began.windows(0)[1].ended_at
    life.until(last + 1)
    assert life.controller.plan.arm == ""
    assert life.k[0] > 0
    assert [(w.arm, w.state) for w in life.kept.windows[-2:]] == [(w.arm, "done") for w in began.windows(0)]


def test_the_order_of_every_pair_is_on_record_before_it_is_measured() -> None:
    life = Life()
    began = life.start()
    life.until(began.windows(0)[0].started_at + 1)
    assert life.kept.runs[0].seed == 7
    assert [(w.arm, w.started_at) for w in life.kept.windows] == [(w.arm, w.started_at) for w in began.windows(0)]
    assert {w.policy_revision for w in life.kept.windows} == {life.controller.policy.revision}


def pull_the_kill_switch(life: Life) -> None:
    life.controller.set_kill_switch("fallback", by="ann", why="incident", now=life.now)


def change_the_policy(life: Life) -> None:
    life.controller.apply_policy(parse_policy(TEXT + "# calmer\n"), by="ann", why="calmer", now=life.now)


def try_a_policy(life: Life) -> None:
    other = life.report("worker-2")
    life.controller.observe(other)
    life.controller.tick(life.now + 0.5)
    order = StageOrder(0.5, "replicas")
    life.controller.apply_policy(
        parse_policy(TEXT.replace("start: 2", "start: 4")), by="ann", why="", now=life.now + 0.6, rollout=order
    )


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (pull_the_kill_switch, "the kill switch was at fallback"),
        (change_the_policy, "the policy was changed from"),
    ],
)
def test_a_pair_that_was_interfered_with_is_given_up_with_the_reason(spoil: Any, reason: str) -> None:
    life = Life()
    in_control(life, life.start())
    spoil(life)
    life.tick()
    assert {(w.state, w.reason.startswith(reason)) for w in life.kept.windows[-2:]} == {("aborted", True)}
    assert life.controller.plan.arm == ""
    assert life.k != (0, 0)
    assert life.control.run.state == "running"


def hang(life: Life) -> None:
    life.now += 11.0


def set_the_clock_back(life: Life) -> None:
    life.now -= 600.0


@pytest.mark.parametrize(
    ("disturb", "reason"),
    [
        (hang, "there was no tick for 12 s, and the plan expired"),
        (set_the_clock_back, "the clock was set back by 599 s"),
    ],
)
@pytest.mark.parametrize("arm", ["control", "treatment"])
def test_a_pair_of_which_nobody_knows_what_ruled_is_given_up(arm: str, disturb: Any, reason: str) -> None:
    """Else control windows last as long as the clock was set back, and a fallback K passes for usual control."""
    life = Life()
    window = {w.arm: w for w in life.start().windows(0)}[arm]
    life.until(window.started_at + 30)
    disturb(life)
    life.tick()
    assert [(w.state, w.reason) for w in life.kept.windows[-2:]] == [("aborted", reason)] * 2
    assert life.controller.arm == ""
    assert life.k != (0, 0)


def test_where_ticks_are_rare_pairs_are_begun_within_the_part_that_is_dropped() -> None:
    life = Life()
    began = life.start()
    first = began.windows(0)[0]
    life.until(first.started_at - 3)
    life.now = first.started_at + 7 - 1  # at a tick every 9 s or so; 10 of the 20 s of burn-in are left
    life.tick()
    assert {(w.pair, w.state) for w in life.kept.windows} == {(0, "running")}


def test_a_pair_that_a_restarted_controller_gave_up_is_not_begun_again_within_its_first_seconds() -> None:
    """Its row stays given up, so that it would be counted by the controller and by nobody else."""
    began = Life().start()
    again = Life(run=began, looked_at=0)
    again.now = began.windows(0)[0].started_at + 1
    again.tick()
    assert again.kept.windows == []
    again.until(began.windows(1)[0].started_at + 1)
    assert [w.pair for w in again.kept.windows] == [1, 1]


def test_a_policy_on_trial_gives_up_the_pair_and_the_trial_sees_no_control_window() -> None:
    life = Life()
    began = life.start()
    treatment = {w.arm: w for w in began.windows(0)}["treatment"]
    life.until(treatment.started_at + 5)
    try_a_policy(life)
    life.tick()
    assert life.kept.windows[-1].reason.endswith("was tried on a part of the system")
    assert life.controller.plan.arm == ""


def test_a_pair_that_falls_due_under_a_kill_switch_is_on_record_as_given_up() -> None:
    life = Life()
    began = life.start()
    pull_the_kill_switch(life)
    life.until(began.windows(0)[1].ended_at)
    assert [w.state for w in life.kept.windows] == ["running", "running", "aborted", "aborted"]
    assert life.control.done == 0


def test_the_kill_switch_is_obeyed_within_a_control_window() -> None:
    life = Life()
    in_control(life, life.start())
    pull_the_kill_switch(life)
    assert life.k == (1, 1)


def test_a_control_window_does_not_outlive_its_controller() -> None:
    """The plan expires: the fallback K rules, whatever window it was."""
    life = Life()
    in_control(life, life.start())
    plan = life.controller.plan
    assert plan.k_for("json", 1, plan.expires_at) == 1


def test_it_ends_by_itself_when_its_pairs_are_complete() -> None:
    life = Life()
    began = life.start(holdout=0.5)
    life.tick()
    life.until(began.windows(9)[1].ended_at + 2)
    assert life.control.run.state == "finished"
    assert life.kept.runs[-1].sentence == "all 10 pairs are complete"
    assert life.controller.arm == ""


def test_stopping_gives_up_the_pair_under_way_and_speculates_again_at_once() -> None:
    life = Life()
    life.tick()
    life.tick()
    in_control(life, life.start())
    life.control.stop("bob", "enough")
    assert life.k == (4, 1)
    assert life.kept.windows[-1].reason == "stopped by bob: enough"
    assert life.control.run.state == "stopped"


def test_a_second_experiment_is_refused_while_one_runs() -> None:
    life = Life()
    life.start()
    with pytest.raises(ExperimentError, match="is running; stop it first"):
        life.start()


def test_replicas_cannot_be_compared_where_none_is_held_out() -> None:
    with pytest.raises(ExperimentError, match="unit: no replica without a drafter was heard of"):
        Life(TEXT.replace("unit: window", "unit: replica")).start()


def test_an_experiment_by_replica_leaves_the_plan_alone() -> None:
    life = Life(TEXT.replace("unit: window", "unit: replica"))
    life.controller.observe(life.report(HOLDOUT + "ab"))
    life.tick()
    began = life.start()
    life.until(began.windows(1)[0].ended_at + 2)
    assert {w.state for w in life.kept.windows} == {"running", "done"}
    assert "experiment" not in [kind for kind, _ in life.kept.told_of]


def test_a_controller_that_comes_back_within_a_pair_waits_for_the_next() -> None:
    life = Life()
    began = life.start()
    again = Life(run=began, done=0)
    first = began.windows(0)[0]
    again.now = first.started_at + 20
    again.tick()
    assert again.kept.windows == []
    again.until(began.windows(1)[0].started_at + 1)
    assert [w.pair for w in again.kept.windows] == [1, 1]


def test_a_worker_without_a_drafter_teaches_the_controller_nothing() -> None:
    """Its drafter is another one: the controller would take that for a swap, and forget."""
    life, twin = Life(), Life()
    for each in (life, twin):
        each.tick()
        each.tick()
    life.controller.observe(
        Report(replace(life.report(HOLDOUT + "ab").window, drafter="none@0", id=WindowId(HOLDOUT + "ab", 1, 1)))
    )
    twin.sequence += 1
    for each in (life, twin):
        each.tick()
    np.testing.assert_equal(asdict(life.controller.state), asdict(twin.controller.state))


def test_a_worker_without_a_drafter_teaches_a_controller_nothing_that_resumes() -> None:
    life, twin = Life(), Life()
    window = life.report(HOLDOUT + "ab").window
    life.controller.resume({}, [replace(window, drafter="none@0")], life.now)
    twin.controller.resume({}, [], twin.now)
    np.testing.assert_equal(asdict(life.controller.state), asdict(twin.controller.state))


def test_every_switch_of_arms_is_a_decision_with_its_reason() -> None:
    life = Life()
    life.tick()
    life.tick()
    life.tick()
    in_control(life, life.start())
    told = [d for d in life.kept.decisions if d.reason == "experiment"]
    assert {(d.cohort, d.old_k, d.new_k) for d in told} >= {("json", 4, 0)}
    assert "control window of pair 0" in told[0].sentence
