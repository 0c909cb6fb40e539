"""Which K a worker obeys: the newest plan, the fallback once it has expired, the kill switch over all.

`wall` is set by people and by time servers; `uptime` is the monotonic clock, which nobody sets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import structlog

from controlplane.decision.plan import Plan, StagedPlan
from controlplane.policy import parse_policy
from controlplane.telemetry import LOAD_BUCKETS, MAX_K, PRICE_LOADS
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


class Clocks:
    """What the wall says, and how long the machine is up: they go on together until the wall's clock is set."""

    def __init__(self):
        self.wall, self.uptime = 1000.0, 50.0

    def wait(self, seconds):
        self.wall += seconds
        self.uptime += seconds


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def make_client(clocks):
    def make(plan=None, **names):
        plan = make_plan() if plan is None else plan
        return PlanClient(plan, lambda: clocks.wall, **names, monotonic=lambda: clocks.uptime)

    return make


@pytest.fixture(autouse=True)
def quiet():
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture
def sequences(make_engine, ask):
    """Decoding sequences: two of cohort default, one of each other."""
    engine = make_engine(0, "none", eos=())
    for i, cohort in enumerate(["default", "default", "a", "unknown"]):
        engine.submit(ask([3], f"{i}", cohort=cohort))
        engine.step()
    return engine.scheduler.running


def test_k_is_looked_up_by_cohort_and_load(sequences, make_client) -> None:
    client = make_client()
    # Cohort a has no K in this plan: its fallback stands. A cohort that the plan does not know does not speculate.
    assert client.k_for(sequences) == (4, 4, 1, 0)
    assert client.k_for(sequences + sequences[:1]) == (0, 0, 1, 0, 0)


def test_an_expired_plan_means_the_fallback(sequences, make_client, clocks) -> None:
    client = make_client()
    clocks.wait(9.9)
    assert (client.is_expired, client.k_for(sequences)) == (False, (4, 4, 1, 0))
    clocks.wait(0.1)
    assert (client.is_expired, client.k_for(sequences)) == (True, (2, 2, 1, 0))


def test_a_newer_plan_is_taken_between_two_steps(make_engine, ask, clock) -> None:
    engine = make_engine(0, "target", eos=(), clock=clock)
    engine.submit(ask([3, 4, 5], max_tokens=30))
    drafted = []
    for k in (0, 0, 2, 4):
        engine.plan_client.accept(replace(constant_plan(k, ["default"]), version=k))
        drafted += [step[0] for chunk in engine.step() for step in chunk.steps]
    assert drafted == [0, 2, 4]


def test_all_sequences_of_a_step_obey_one_plan(sequences, make_client) -> None:
    """Ranks that chose K by themselves ran different steps and hung (vllm 45963): a plan that comes amid one waits."""
    client = make_client()

    class Batch(list):
        def __iter__(self):
            for i, sequence in enumerate(super().__iter__()):
                if i == 1:
                    client.accept(make_plan(version=2, kill_switch="zero"))
                yield sequence

    assert client.k_for(Batch(sequences)) == (4, 4, 1, 0)
    assert client.k_for(sequences) == (0, 0, 0, 0)


def test_an_older_version_is_refused(make_client) -> None:
    client = make_client(make_plan(version=5))
    client.accept(make_plan(version=4, issued_at=1001.0, expires_at=1011.0))
    assert (client.plan.version, client.refused) == (5, {"version": 1})


def test_a_controller_that_lost_is_refused(make_client) -> None:
    client = make_client(make_plan(epoch=2, version=5))
    client.accept(make_plan(epoch=1, version=9))
    assert (client.plan.epoch, client.refused) == (2, {"epoch": 1})


def test_two_controllers_at_once_mean_one_plan(make_client, sequences, clocks) -> None:
    """Whatever order their plans come in, the later controller's count, and they are renewed."""
    client = make_client()
    for _ in range(30):
        clocks.wait(1.0)
        now = {"issued_at": clocks.wall, "expires_at": clocks.wall + 10.0}
        client.accept(make_plan(epoch=2, version=1, k={"default": (1,) * len(LOAD_BUCKETS)}, **now))
        client.accept(make_plan(epoch=1, version=7, **now))
        assert (client.is_expired, client.k_for(sequences)[0]) == (False, 1)
    assert client.refused == {"epoch": 30}


def test_a_new_controller_is_obeyed_whatever_its_version(make_client) -> None:
    client = make_client(make_plan(epoch=1, version=9))
    client.accept(make_plan(epoch=2, version=1))
    assert (client.plan.epoch, client.plan.version) == (2, 1)


def test_the_same_version_issued_later_keeps_a_plan_alive(make_client, clocks) -> None:
    client = make_client()
    clocks.wait(5.0)
    client.accept(make_plan(issued_at=1005.0, expires_at=1015.0))
    clocks.wait(7.0)
    assert not client.is_expired


def test_an_older_renewal_that_comes_last_takes_nothing_back(make_client, clocks) -> None:
    """A broadcast may overtake the answer to a report: the drafter that it blocks stays blocked."""
    client = make_client(drafter="ngram@1")
    clocks.wait(1.0)
    client.accept(make_plan(issued_at=1001.0, expires_at=1011.0, blocked_drafters=("ngram@1",)))
    client.accept(make_plan(issued_at=1000.9, expires_at=1010.9))
    assert (client.is_drafter_off, client.refused) == (True, {"version": 1})


def test_renewals_count_after_the_controllers_clock_was_set_back_by_seconds(make_client, clocks) -> None:
    """They are refused until they seem newer again, which is before the plan in force ends."""
    client = make_client()
    for second in range(1, 30):
        clocks.wait(1.0)
        issued_at = 1000.0 + second - (5.0 if second > 10 else 0.0)
        client.accept(make_plan(issued_at=issued_at, expires_at=issued_at + 10.0))
        assert not client.is_expired


def test_a_plan_that_its_controller_does_not_renew_expires_however_often_it_comes(make_client, clocks) -> None:
    """A controller whose ticks fail still answers reports."""
    client = make_client()
    for _ in range(10):
        clocks.wait(1.0)
        client.accept(make_plan())
    assert client.is_expired


def test_a_plan_is_as_old_on_arrival_as_its_way_was_long(make_client, clocks) -> None:
    client = make_client(unplanned(parse_policy(POLICY)))
    clocks.wait(6.0)
    client.accept(make_plan())
    assert client.age_s == 6.0
    clocks.wait(4.0)
    assert client.is_expired


def test_a_plan_that_was_over_before_it_came_is_refused(make_client, clocks) -> None:
    client = make_client(unplanned(parse_policy(POLICY)))
    clocks.wait(10.0)
    client.accept(make_plan())
    assert (client.plan.version, client.refused) == (0, {"stale": 1})


def test_a_plan_from_the_future_is_refused(make_client) -> None:
    client = make_client()
    client.accept(make_plan(version=2, issued_at=1010.5, expires_at=1020.5))
    assert (client.plan.version, client.refused) == (1, {"future": 1})


def test_a_controllers_clock_may_be_ahead_by_less_than_a_plan_lasts(make_client) -> None:
    client = make_client(unplanned(parse_policy(POLICY)))
    client.accept(make_plan(version=2, issued_at=1009.0, expires_at=1019.0))
    assert (client.plan.version, client.age_s) == (2, 0.0)


@pytest.mark.parametrize("hour", [3600.0, -3600.0])
def test_a_clock_that_is_set_by_an_hour_expires_no_live_plan(make_client, clocks, hour) -> None:
    """Neither the one in force nor its renewals, which then seem an hour old or an hour ahead."""
    client = make_client()
    clocks.wall += hour
    for second in range(1, 31):
        clocks.wait(1.0)
        client.accept(make_plan(issued_at=1000.0 + second, expires_at=1010.0 + second))
        assert not client.is_expired
    assert (client.refused, client.age_s) == ({}, 0.0)


@pytest.mark.parametrize("hour", [3600.0, -3600.0])
def test_a_clock_that_is_set_by_an_hour_keeps_no_dead_plan(make_client, clocks, hour) -> None:
    client = make_client()
    clocks.wall += hour
    clocks.wait(10.0)
    client.accept(make_plan())
    assert client.is_expired


@pytest.mark.parametrize("hour", [3600.0, -3600.0])
def test_a_machine_whose_clock_is_set_by_an_hour_goes_on(make_client, clocks, hour) -> None:
    """Controller and worker on it: plans are suddenly issued an hour apart."""
    client = make_client()
    for _ in range(3):
        clocks.wall += hour
        for _ in range(15):
            clocks.wait(1.0)
            client.accept(make_plan(issued_at=clocks.wall, expires_at=clocks.wall + 10.0))
            assert not client.is_expired
    assert client.refused == {}


@pytest.mark.parametrize(("mode", "k"), [("off", (4, 4, 1, 0)), ("fallback", (2, 2, 1, 0)), ("zero", (0, 0, 0, 0))])
def test_the_kill_switch_is_over_the_plan(sequences, make_client, mode, k) -> None:
    assert make_client(make_plan(kill_switch=mode)).k_for(sequences) == k


def test_the_kill_switch_zero_outlives_the_plan(sequences, make_client, clocks) -> None:
    client = make_client(make_plan(kill_switch="zero"))
    clocks.wait(1000.0)
    assert client.k_for(sequences) == (0, 0, 0, 0)


def test_a_renewal_that_changes_nothing_but_the_kill_switch_is_obeyed(sequences, make_client) -> None:
    client = make_client()
    client.k_for(sequences)
    client.accept(make_plan(version=2, kill_switch="zero"))
    assert client.k_for(sequences) == (0, 0, 0, 0)


def test_positions_that_do_not_pay_at_this_load_are_dropped(sequences, make_client) -> None:
    price = tuple(0.3 if running <= 2 else 0.6 for running in PRICE_LOADS)
    plan = make_plan(survival={"default": (0.9, 0.5, 0.35, 0.2)}, price=price, depth=(MAX_K,) * len(PRICE_LOADS))
    client = make_client(plan)
    assert client.k_for(sequences[:2]) == (3, 3)
    assert client.k_for(sequences)[:2] == (1, 1)


@pytest.fixture
def choosing():
    """Nothing pays in the batch that is expected, and everything in that of the fixture."""
    flat = (1.0, 0.0, 0.001, 0.0, *(1.0,) * (MAX_K + 1))
    loads = len(PRICE_LOADS)
    return make_plan(
        k={"default": (4,) * len(LOAD_BUCKETS), "a": (2,) * len(LOAD_BUCKETS)},
        survival={"default": (0.9,) * MAX_K, "a": (0.8,) * MAX_K},
        price=(1.0,) * loads, depth=(0,) * loads, charges=(flat,) * loads,
    )  # fmt: skip


def test_k_is_chosen_for_the_batch_that_runs(sequences, make_client, choosing) -> None:
    assert make_client(choosing).k_for(sequences) == (4, 4, 2, 0)


def test_k_is_chosen_for_the_rows_that_the_worker_computes(sequences, make_client, choosing) -> None:
    dear = tuple((1.0, 0.0, 0.001, 0.0, *(1.0 + 9.0 * k for k in range(MAX_K + 1))) for _ in PRICE_LOADS)
    seen = []

    def padded(running, deepest, positions):
        seen.append(running)
        return np.full_like(positions, running)

    client = make_client(replace(choosing, charges=dear), padded=padded)
    assert (client.k_for(sequences), set(seen)) == ((4, 4, 2, 0), {4})


def test_the_order_in_which_sequences_run_changes_nothing(sequences, make_client, choosing) -> None:
    assert make_client(choosing).k_for(sequences[::-1]) == (0, 2, 4, 4)


def test_a_plan_that_never_changes_does_not_grow(sequences, make_client, monkeypatch) -> None:
    monkeypatch.setattr("workers.plan_client.MOST_BATCHES", 3)
    client = make_client()
    for n in range(1, 12):
        assert len(client.k_for(sequences[:1] * n)) == n
    assert len(client._held.alive) <= 3


def test_a_staged_plan_is_for_the_workers_it_names(sequences, make_client) -> None:
    staged = StagedPlan(("w-1",), {"default": (1,) * len(LOAD_BUCKETS)}, {"default": 0}, "next")
    assert make_client(make_plan(staged=staged), worker="w-1").k_for(sequences)[0] == 1
    assert make_client(make_plan(staged=staged), worker="w-2").k_for(sequences)[0] == 4


@pytest.mark.parametrize(("planned", "k"), [(-3, 0), (MAX_K + 1, MAX_K), (10**9, MAX_K)])
def test_a_k_outside_of_any_ladder_is_brought_into_range_and_counted(sequences, make_client, planned, k) -> None:
    client = make_client(make_plan(k={"default": (planned,) * len(LOAD_BUCKETS)}))
    assert [client.k_for(sequences)[0] for _ in range(3)] == [k] * 3
    assert client.clamped == 1


def test_a_blocked_drafter_does_not_draft_even_after_the_plan(sequences, make_client, clocks) -> None:
    client = make_client(make_plan(blocked_drafters=("ngram@1",)), drafter="ngram@1")
    other = make_client(client.plan, drafter="ngram@2")
    assert other.k_for(sequences)[0] == 4
    clocks.wait(1000.0)
    assert (client.k_for(sequences), client.is_drafter_off) == ((0, 0, 0, 0), True)


def test_a_drafter_blocked_by_its_worker_stays_so_until_the_controller_knew_and_lets_it_go(
    sequences, make_client
) -> None:
    client = make_client(drafter="ngram@1")
    client.block_drafter()
    k = []
    for version, blocked in ((2, ()), (3, ("ngram@1",)), (4, ())):
        client.accept(make_plan(version=version, blocked_drafters=blocked))
        k.append(client.k_for(sequences)[0])
    assert k == [0, 0, 4]


def test_a_worker_without_a_controller_runs_on_the_fallback(sequences, make_client) -> None:
    client = make_client(unplanned(parse_policy(POLICY)))
    assert client.is_expired
    assert client.k_for(sequences)[:2] == (2, 2)
    assert client.age_s == 0.0


def test_any_plan_replaces_having_none(make_client) -> None:
    client = make_client(unplanned(parse_policy(POLICY)))
    client.accept(make_plan())
    assert client.plan.version == 1


def test_the_age_of_a_plan_counts_from_its_issue(make_client, clocks) -> None:
    client = make_client()
    clocks.wait(3.5)
    assert client.age_s == 3.5
    clocks.wall -= 3600.0
    assert client.age_s == 3.5


def test_in_a_control_window_nothing_is_drafted_and_no_drafter_runs(make_client):
    client = make_client(make_plan(arm="control"))
    assert client.plan.k_for("default", 1, 1000.0) == 0
    assert client.is_drafter_off


def test_a_control_window_ends_with_its_plan_where_nobody_renews_it(make_client, clocks):
    client = make_client(make_plan(arm="control"))
    clocks.wait(11.0)
    assert client.plan.k_for("default", 1, clocks.wall) == 2
    assert not client.is_drafter_off


def test_a_treatment_window_is_a_plan_as_any_other(make_client):
    client = make_client(make_plan(arm="treatment"))
    assert client.plan.k_for("default", 1, 1000.0) == 4
    assert not client.is_drafter_off
