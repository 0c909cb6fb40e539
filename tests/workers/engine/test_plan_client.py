"""Which K a worker obeys: the newest plan, the fallback once it has expired, the kill switch over all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.decision.plan import Plan
from controlplane.policy import parse_policy
from controlplane.telemetry import LOAD_BUCKETS
from workers.plan_client import PlanClient, constant_plan, unplanned

POLICY = """
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 2, 4], start: 4, fallback: 2}
"""


def make_plan(epoch=1, version=1, **changes):
    """From 1000 to 1010: K = 4 up to four running sequences, 0 beyond."""
    by_load = tuple(4 if bound <= 4 else 0 for bound in LOAD_BUCKETS)
    return replace(
        Plan(epoch, version, 1000.0, 1010.0, {"default": by_load}, {"default": 2, "a": 1}, "revision"), **changes
    )


@pytest.fixture
def sequences(make_engine, ask):
    """Decoding sequences: two of cohort default, one of each other."""
    engine = make_engine(0, "none", eos=())
    for i, cohort in enumerate(["default", "default", "a", "unknown"]):
        engine.submit(ask([3], f"{i}", cohort=cohort))
        engine.step()
    return engine.scheduler.running


def test_k_is_looked_up_by_cohort_and_load(sequences, clock) -> None:
    client = PlanClient(make_plan(), clock)
    # Cohort a has no K in this plan: its fallback stands. A cohort that the plan does not know does not speculate.
    assert client.k_for(sequences) == (4, 4, 1, 0)
    assert client.k_for(sequences + sequences[:1]) == (0, 0, 1, 0, 0)


def test_an_expired_plan_means_the_fallback(sequences, clock) -> None:
    client = PlanClient(make_plan(), clock)
    clock.now = 1009.9
    assert (client.is_expired, client.k_for(sequences)) == (False, (4, 4, 1, 0))
    clock.now = 1010.0
    assert (client.is_expired, client.k_for(sequences)) == (True, (2, 2, 1, 0))


def test_a_newer_plan_is_taken_between_two_steps(make_engine, ask, clock) -> None:
    engine = make_engine(0, "target", eos=(), clock=clock)
    engine.submit(ask([3, 4, 5], max_tokens=30))
    drafted = []
    for k in (0, 0, 2, 4):
        engine.plan_client.accept(replace(constant_plan(k, ["default"]), version=k))
        drafted += [step[0] for chunk in engine.step() for step in chunk.steps]
    assert drafted == [0, 2, 4]


def test_an_older_version_is_ignored(clock) -> None:
    client = PlanClient(make_plan(version=5), clock)
    client.accept(make_plan(version=4))
    assert client.plan.version == 5


def test_a_controller_that_lost_is_ignored(clock) -> None:
    client = PlanClient(make_plan(epoch=2, version=5), clock)
    client.accept(make_plan(epoch=1, version=9))
    assert client.plan.epoch == 2


def test_a_new_controller_is_obeyed_whatever_its_version(clock) -> None:
    client = PlanClient(make_plan(epoch=1, version=9), clock)
    client.accept(make_plan(epoch=2, version=1))
    assert (client.plan.epoch, client.plan.version) == (2, 1)


def test_the_same_version_with_a_later_expiry_keeps_a_plan_alive(clock) -> None:
    client = PlanClient(make_plan(), clock)
    client.accept(make_plan(issued_at=1005.0, expires_at=1015.0))
    clock.now = 1012.0
    assert not client.is_expired


@pytest.mark.parametrize(("mode", "k"), [("off", (4, 4, 1, 0)), ("fallback", (2, 2, 1, 0)), ("zero", (0, 0, 0, 0))])
def test_the_kill_switch_is_over_the_plan(sequences, clock, mode, k) -> None:
    assert PlanClient(make_plan(kill_switch=mode), clock).k_for(sequences) == k


def test_the_kill_switch_zero_outlives_the_plan(sequences, clock) -> None:
    clock.now = 2000.0
    assert PlanClient(make_plan(kill_switch="zero"), clock).k_for(sequences) == (0, 0, 0, 0)


def test_a_worker_without_a_controller_runs_on_the_fallback(sequences, clock) -> None:
    client = PlanClient(unplanned(parse_policy(POLICY)), clock)
    assert client.is_expired
    assert client.k_for(sequences)[:2] == (2, 2)
    assert client.age_s == 0.0


def test_any_plan_replaces_having_none(clock) -> None:
    client = PlanClient(unplanned(parse_policy(POLICY)), clock)
    client.accept(make_plan())
    assert client.plan.version == 1


def test_the_age_of_a_plan_counts_from_its_issue(clock) -> None:
    client = PlanClient(make_plan(), clock)
    clock.now = 1003.5
    assert client.age_s == 3.5
    clock.now = 990.0
    assert client.age_s == 0.0
