"""A policy on trial in the controller: who obeys what meanwhile, and what becomes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controlplane.controller import Controller
from controlplane.decision.decide import Decision
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.rollout import Rollout, RolloutError, StageOrder
from controlplane.telemetry import (
    PRICE_LOADS,
    CohortWindow,
    LatencyHistogram,
    ProfileCell,
    Report,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
)

T0 = 1_790_000_000.0
WORKERS = ("a", "b", "c", "d")
TEXT = """
version: 1
cohorts:
  - {name: code, match: {api_key: [a]}, speculation: {tuner: fixed, ladder: [0, 2, 4], start: 2, fallback: 0}}
  - {name: chat, match: {api_key: [b]}, speculation: {tuner: fixed, ladder: [0, 2, 4], start: 2, fallback: 0}}
  - {name: rest, match: {}, speculation: {tuner: fixed, ladder: [0, 2, 4], start: 2, fallback: 0}}
"""
OLD = parse_policy(TEXT)
NEW = parse_policy(TEXT.replace("start: 2", "start: 4", 2))
REPLICAS, COHORTS = (StageOrder(0.5, unit, min_windows=30, max_s=600) for unit in ("replicas", "cohorts"))


class KeptJournal:
    """Keeps everything in lists."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.policies: list[tuple[str, str]] = []
        self.rollouts: list[Rollout] = []

    def record(self, reports: Sequence[Report], decisions: Sequence[Decision], plan: Plan, now: float) -> None:
        self.decisions += decisions

    def policy_applied(self, policy: Policy, by: str, why: str, now: float) -> None:
        self.policies.append((policy.revision, why))

    def rollout_changed(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)

    def told(self, kind: str, value: dict[str, Any], *, epoch: int, at: float) -> None:
        raise AssertionError("not told here")

    def alert(self, alert: object, decisions: Sequence[Decision]) -> None:
        raise AssertionError("no alert here")


class System:
    """A controller and four workers that run at a speed by K, a second at a time."""

    def __init__(self, speed: Callable[[int], float]) -> None:
        self.journal = KeptJournal()
        self.controller = Controller(OLD, self.journal, epoch=int(T0 * 1e9))
        self.speed, self.now, self._rng = speed, T0, random.Random(0)

    def run(self, seconds: int, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(seconds):
            self.now += 1
            for worker in WORKERS:
                cohorts = tuple(self._window(worker, c.name) for c in OLD.cohorts)
                self.controller.observe(Report(self._worker(worker, cohorts)))
            self.controller.tick(self.now)
            if until():
                return

    def k(self, worker: str, cohort: str) -> int:
        return self.controller.plan.k_for(cohort, 2, self.now, worker)

    def _window(self, worker: str, cohort: str) -> CohortWindow:
        k = self.k(worker, cohort)
        seconds = 40 / self.speed(k) * self._rng.uniform(0.95, 1.05)
        counts = (StepCount(k, k, False, 40),) if k else (StepCount(0, 0, False, 40),)
        cell = StepCell(1, k, counts, seconds * (k + 1))
        return CohortWindow(cohort, (cell,), requests_finished=1, tpot=LatencyHistogram().observe(0.03))

    def _worker(self, worker: str, cohorts: tuple[CohortWindow, ...]) -> WorkerWindow:
        return WorkerWindow(
            WindowId(worker, 1, int(self.now - T0)), "m", "ngram@1", "cpu", self.now - 1, self.now, busy_s=0.9,
            energy_uj=None, energy_source="none", plan_version=1, plan_expired=False, plan_age_s=0.0, running=6,
            waiting=0, kv_used=0, kv_total=0, cohorts=cohorts,
        )  # fmt: skip


def better(k: int) -> float:
    return 20.0 + 2 * k


def worse(k: int) -> float:
    return 30.0 - 2 * k


def stage(system: System, order: StageOrder, policy: Policy = NEW) -> Rollout:
    system.run(3)
    system.controller.apply_policy(policy, by="ann", why="deeper", now=system.now, rollout=order)
    rollout = system.controller.rollout
    assert rollout is not None
    return rollout


def over(system: System) -> Callable[[], bool]:
    return lambda: system.controller.rollout is not None and system.controller.rollout.is_over


def test_only_the_workers_of_the_part_obey_the_candidate_at_once() -> None:
    system = System(better)
    rollout = stage(system, REPLICAS)
    ks = {worker: system.k(worker, "code") for worker in WORKERS}
    assert {worker for worker, k in ks.items() if k == 4} == set(rollout.member_workers)
    assert system.controller.plan.k["code"] == (2,) * 9
    assert (system.controller.policy, system.controller.plan.policy_revision) == (OLD, OLD.revision)


@pytest.mark.parametrize("order", [REPLICAS, COHORTS])
def test_a_better_policy_comes_into_force_by_itself_with_who_and_why_on_record(order: StageOrder) -> None:
    system = System(better)
    stage(system, order)
    system.run(300, until=over(system))
    assert (system.controller.policy, system.controller.plan.staged) == (NEW, None)
    assert {system.k(worker, "code") for worker in WORKERS} == {4}
    assert system.journal.policies == [(NEW.revision, "promoted: deeper")]
    assert [r.stage for r in system.journal.rollouts if r.is_over] == ["promoted"]
    assert system.journal.decisions[-1].policy_revision == NEW.revision


@pytest.mark.parametrize("order", [REPLICAS, COHORTS])
def test_a_worse_policy_is_rolled_back_by_itself(order: StageOrder) -> None:
    system = System(worse)
    stage(system, order)
    system.run(300, until=over(system))
    rollout = system.journal.rollouts[-1]
    assert (rollout.stage, "slower" in rollout.sentence) == ("rolled_back", True)
    assert (system.controller.policy, system.journal.policies) == (OLD, [])
    assert {system.k(worker, cohort.name) for worker in WORKERS for cohort in OLD.cohorts} == {2}


def test_cohorts_try_the_candidate_only_after_they_were_measured() -> None:
    system = System(better)
    rollout = stage(system, COHORTS)
    system.run(59)
    assert system.controller.plan.k["code"] == (2,) * 9
    system.run(2)
    (tried,) = rollout.members
    assert {name: by_load[0] for name, by_load in system.controller.plan.k.items()} == {
        "code": 2, "chat": 2, "rest": 2, tried: 4,
    }  # fmt: skip
    assert system.journal.rollouts[-1].begins_at is not None


def test_aborting_puts_all_back_at_once() -> None:
    system = System(better)
    stage(system, REPLICAS)
    version = system.controller.plan.version
    system.controller.abort_rollout(by="bob", why="enough", now=system.now)
    assert {system.k(worker, "code") for worker in WORKERS} == {2}
    assert system.controller.plan.version == version + 1
    assert system.journal.rollouts[-1].sentence == "aborted by bob: enough"
    with pytest.raises(RolloutError, match="no policy is being tried"):
        system.controller.abort_rollout(by="bob", why="again", now=system.now)


def test_a_policy_applied_at_once_ends_a_trial() -> None:
    system = System(better)
    stage(system, COHORTS)
    system.run(70)
    other = parse_policy(TEXT.replace("start: 2", "start: 0", 1))
    system.controller.apply_policy(other, by="bob", why="now", now=system.now)
    assert system.journal.rollouts[-1].stage == "aborted"
    assert {name: by_load[0] for name, by_load in system.controller.plan.k.items()} == {"code": 0, "chat": 2, "rest": 2}


def test_two_policies_cannot_be_tried_at_once() -> None:
    system = System(better)
    stage(system, REPLICAS)
    with pytest.raises(RolloutError, match="is being tried"):
        system.controller.apply_policy(NEW, by="bob", why="", now=system.now, rollout=REPLICAS)


def test_a_policy_that_cannot_be_tried_changes_nothing() -> None:
    system = System(better)
    system.run(2)
    before = system.controller.plan
    with pytest.raises(RolloutError, match="nothing can be compared"):
        system.controller.apply_policy(OLD, by="ann", why="", now=system.now, rollout=REPLICAS)
    assert (system.controller.plan, system.controller.rollout) == (before, None)


def test_the_kill_switch_holds_for_those_that_try_a_policy_and_is_not_taken_for_evidence() -> None:
    system = System(better)
    stage(system, REPLICAS)
    system.controller.set_kill_switch("zero", by="ann", why="drill", now=system.now)
    assert {system.k(worker, "code") for worker in WORKERS} == {0}
    system.run(40)
    rollout = system.controller.rollout
    assert rollout is not None
    assert (rollout.stage, rollout.evidence.ticks) == ("staged", 0)


def test_decisions_of_both_policies_are_told_apart() -> None:
    system = System(better)
    tuned = parse_policy(TEXT.replace("fixed", "threshold"))
    stage(system, REPLICAS, parse_policy(tuned.text.replace("start: 2", "start: 4", 1)))
    system.run(15)
    revisions = {decision.policy_revision for decision in system.journal.decisions}
    assert len(revisions) == 2


def test_a_journal_that_fails_does_not_stop_a_trial() -> None:
    system = System(better)

    def fail(rollout: Rollout) -> None:
        raise OSError("disk full")

    system.journal.rollout_changed = fail  # type: ignore[method-assign]
    stage(system, REPLICAS)
    system.run(300, until=over(system))
    assert system.controller.policy == NEW
    assert system.controller.journal_failures >= 2


def test_a_ragged_candidate_is_tried_with_its_prices() -> None:
    text = OLD.text.replace("tuner: fixed", "tuner: goodput, slots: ragged")
    assert text != OLD.text
    system = System(better)
    stage(system, REPLICAS, parse_policy(text))
    profile = tuple(ProfileCell(n, k, 64, 0.02 + 0.001 * k, 0.001 * k) for n in (1, 8) for k in (0, 2, 4))
    window = system._worker("a", (system._window("a", OLD.cohorts[0].name),))
    for i, worker in enumerate(WORKERS):
        system.controller.observe(Report(replace(window, id=WindowId(worker, 2, i), profile=profile)))
    plan = system.controller.tick(system.now)
    assert plan.staged is not None
    assert (plan.price, len(plan.staged.price), set(plan.staged.survival)) == ((), len(PRICE_LOADS), set(plan.k))
    version = plan.version
    assert system.controller.tick(system.now + 1).version == version  # another price is no other K


def test_the_trial_of_a_worker_that_left_goes_on_with_another() -> None:
    system = System(better)
    first = stage(system, REPLICAS)
    window = system._worker("a", ())
    for i, at in enumerate((1.0, 62.0)):
        for worker in set(WORKERS) - first.members:
            system.controller.observe(Report(replace(window, id=WindowId(worker, 2, i), ended_at=system.now + at)))
        system.controller.tick(system.now + at)
    staged = system.controller.plan.staged
    assert staged is not None
    assert len(staged.workers) >= 1
    assert not set(staged.workers) & first.members
