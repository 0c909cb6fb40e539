"""Whatever becomes of controllers, links and clocks: serving goes on at a legal K, and the plan's age tells."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controlplane.store.journal import SqlJournal
from controlplane.store.queries import last_plan_version, latest_plan

HOUR_S = 3600.0


def learn(system) -> int:
    """Let control settle; the K that it came to, which differs from start and fallback."""
    system.run(20)
    k = system.worker.k
    assert k == system.ladder[-1]
    return k


def test_a_killed_controller_leaves_k_until_the_plan_expires_and_then_the_fallback(system) -> None:
    k = learn(system)
    system.link.controller = None
    used = system.run(30)
    alive = int(system.ttl_s)
    assert set(used[: alive - 2]) == {k}
    assert set(used[alive + 1 :]) == {system.fallback}
    assert system.worker.client.is_expired
    assert system.worker.client.age_s == pytest.approx(30.0, abs=1.5)


def test_what_was_counted_meanwhile_reaches_the_next_controller_once(system) -> None:
    system.link.controller = None
    system.run(30)
    system.link.controller = system.start(first_version=100)
    system.run(5)
    ids = [report.window.id.sequence for report in system.journal.reports]
    assert sorted(ids) == list(range(1, system.worker.sequence + 1))
    assert system.worker.client.plan.version >= 100
    assert not system.worker.client.is_expired


def test_a_partition_on_the_way_back_counts_nothing_twice_and_heals_at_once(system) -> None:
    """Requests arrive, answers do not: the controller goes on deciding for a worker that cannot hear."""
    learn(system)
    system.link.answers = False
    used = system.run(25)
    assert used[-1] == system.fallback
    system.link.answers = True
    system.run(1)
    assert system.worker.client.plan.version == system.link.controller.plan.version
    assert system.worker.client.age_s <= 1.5
    system.run(2)
    ids = [report.window.id.sequence for report in system.journal.reports]
    assert sorted(ids) == list(range(1, system.worker.sequence + 1))
    assert system.link.controller.refused["duplicate"] > 0


def test_answers_slower_than_a_plan_lives_are_not_obeyed(system) -> None:
    learn(system)
    system.link.delay_s = system.ttl_s + 5.0
    used = system.run(40)
    assert set(used[int(system.ttl_s) + 2 :]) == {system.fallback}
    assert system.worker.client.refused["stale"] > 0
    assert system.worker.client.age_s > system.ttl_s


def test_answers_slower_than_a_second_are_obeyed_and_show_in_the_age(system) -> None:
    k = learn(system)
    system.link.delay_s = 4.0
    assert set(system.run(40)) == {k}
    assert 4.0 <= system.worker.client.age_s < system.ttl_s


@pytest.mark.parametrize("kill_switch", ["off", "zero"])
def test_a_controller_restarted_from_the_journal_goes_on_with_higher_versions_and_the_same_switch(
    system, sqlite_ledger, kill_switch
) -> None:
    journal = SqlJournal(sqlite_ledger)
    system.journal = journal
    system.link.controller = system.start(first_version=7)
    system.run(5)
    system.link.controller.set_kill_switch(kill_switch, by="ops", why="drill", now=system.t0 + system.time.now)
    system.run(3)
    before = system.worker.client.plan
    journal.flush()
    system.link.controller = None
    system.run(20)
    stored = latest_plan(sqlite_ledger)
    revived = system.start(first_version=last_plan_version(sqlite_ledger) + 1)
    revived.set_kill_switch(stored.kill_switch, by="kadence", why="restart", now=system.t0 + system.time.now)
    system.link.controller = revived
    system.run(2)
    after = system.worker.client.plan
    assert after.version > before.version
    assert after.epoch > before.epoch
    assert (after.kill_switch, system.worker.k == 0) == (kill_switch, kill_switch == "zero")
    journal.close()


def test_of_two_controllers_the_later_epoch_wins_and_the_other_is_not_heard(system) -> None:
    first = system.link.controller
    second = system.start(first_version=1000)
    second.set_kill_switch("zero", by="ops", why="to tell them apart", now=system.t0 + system.time.now)
    used = []
    for i in range(40):
        system.link.controller = (first, second)[i % 2]
        used += system.run(1)
        for each in (first, second):
            each.tick(system.t0 + system.time.now)
    assert set(used[2:]) == {0}
    assert system.worker.client.plan.epoch == second.plan.epoch
    assert system.worker.client.refused["epoch"] >= 19


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 30.0, -30.0])
def test_a_workers_clock_that_jumps_changes_no_k(system, jump_s) -> None:
    k = learn(system)
    system.time.worker_off = jump_s
    assert set(system.run(25)) == {k}
    assert system.worker.client.age_s < system.ttl_s
    system.time.worker_off = 0.0  # and back
    assert set(system.run(25)) == {k}


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 30.0, -30.0])
def test_a_controllers_clock_that_jumps_costs_no_more_than_the_fallback_and_the_age_tells(system, jump_s) -> None:
    """Neither the worker's clock nor the plan before can confirm what it says: its plans lapse, until it is right."""
    k = learn(system)
    system.time.controller_off = jump_s
    used = system.run(25)
    assert set(used) == {k, system.fallback}
    assert set(used[int(system.ttl_s) + 1 :]) == {system.fallback}
    assert system.worker.client.age_s == pytest.approx(26.0, abs=2.0)
    assert sum(system.worker.client.refused.values()) >= 20
    system.time.controller_off = 0.0
    assert set(system.run(10)[2:]) == {k}


def test_a_plan_from_the_future_is_refused_and_counted(system) -> None:
    k = learn(system)
    held = system.worker.client.plan
    ahead = replace(
        held,
        version=held.version + 5,
        issued_at=held.issued_at + HOUR_S,
        expires_at=held.expires_at + HOUR_S,
        k={cohort: (0,) * len(by_load) for cohort, by_load in held.k.items()},
    )
    system.worker.client.accept(ahead)
    assert (system.worker.k, system.worker.client.refused["future"]) == (k, 1)
    assert set(system.run(20)) == {k}


FAULTS = ("kill", "restart", "down", "deaf", "slow", "controller_clock", "worker_clock", "usurp")


def inflict(system, fault: str, numbers: random.Random) -> None:
    link, time = system.link, system.time
    match fault:
        case "kill":
            link.controller = None
        case "restart":
            link.controller = system.start(first_version=numbers.randrange(1, 5000))
        case "down":
            link.up = numbers.random() < 0.5
        case "deaf":
            link.answers = numbers.random() < 0.5
        case "slow":
            link.delay_s = numbers.choice([0.0, 2.0, 8.0, 20.0])
        case "controller_clock":
            time.controller_off = numbers.choice([0.0, 5.0, -5.0, 90.0, -90.0, HOUR_S])
        case "worker_clock":
            time.worker_off = numbers.choice([0.0, 5.0, -5.0, 90.0, -90.0, HOUR_S])
        case "usurp":
            other = system.start(first_version=1)
            system.worker.client.accept(other.tick(system.t0 + time.now))


@pytest.mark.parametrize("seed", range(6))
def test_any_sequence_of_faults_leaves_a_legal_k_and_heals(system, seed) -> None:
    numbers = random.Random(seed)
    legal = {*system.ladder, system.fallback}
    for _ in range(25):
        inflict(system, numbers.choice(FAULTS), numbers)
        used = system.run(numbers.randrange(1, 15))
        client = system.worker.client
        assert set(used) <= legal
        assert client.age_s >= 0.0
        # K is the plan's while that lives; the fallback after it, and then the age says why.
        if client.is_expired:
            assert (system.worker.k, client.age_s >= system.ttl_s) == (system.fallback, True)
    system.time.controller_off = system.time.worker_off = 0.0
    system.link.up = system.link.answers = True
    system.link.delay_s = 0.0
    system.link.late.clear()
    newest = max(system.worker.client.plan.epoch, int((system.t0 + system.time.now) * 1e9)) + 1
    system.link.controller = system.start(epoch=newest, first_version=10_000)
    system.run(3)
    assert system.worker.client.plan.version >= 10_000
    assert not system.worker.client.is_expired
    assert system.worker.client.age_s <= 2.0


@pytest.fixture
def sqlite_ledger(sqlite_ledger_url):
    from controlplane.store.engine import open_database

    engine = open_database(sqlite_ledger_url)
    yield engine
    engine.dispose()
