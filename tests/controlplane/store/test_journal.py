"""Recording never waits; what was recorded arrives once, whatever the database does in between."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.decision.decide import Decision, Reason
from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.migrate import upgrade
from controlplane.store.models import DecisionEntry, PlanEntry, PolicyRevision, Request, Tick, Window, WindowCohort
from controlplane.store.queries import last_plan_version, latest_plan
from controlplane.telemetry import LOAD_BUCKETS, Report, StepCount

Make = Callable[..., Any]

AT = 1_790_000_000.0


@pytest.fixture
def journal(ledger: sa.Engine) -> Iterator[SqlJournal]:
    journal = SqlJournal(ledger)
    yield journal
    journal.close()


def plan(version: int = 1, expires_at: float = AT + 10) -> Plan:
    return Plan(1, version, AT, expires_at, {"json": (4,) * len(LOAD_BUCKETS)}, {"json": 2}, "abcdefabcdef")


def decision(at: float = AT, **changes: Any) -> Decision:
    return replace(
        Decision("json", 0, 2, 4, next(iter(Reason)), "K goes from 2 to 4", 80, (0.9, 0.8), at, 1, "abcdefabcdef"),
        **changes,
    )


def policy() -> Policy:
    return parse_policy(
        "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
        "    speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}\n"
    )


def rows(engine: sa.Engine, table: Any) -> int:
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_a_tick_is_stored_whole(
    journal: SqlJournal,
    ledger: sa.Engine,
    make_worker_window: Make,
    make_cohort_window: Make,
    make_request_record: Make,
) -> None:
    report = Report(
        make_worker_window(1, (make_cohort_window("json", (StepCount(4, 3, False, 2),)),)), (make_request_record(),)
    )
    journal.record([report], [decision()], plan(), AT)
    journal.policy_applied(policy(), "ada", "first", AT)
    assert journal.flush()
    tables = (Tick, Window, WindowCohort, Request, DecisionEntry, PlanEntry, PolicyRevision)
    assert [rows(ledger, table) for table in tables] == [1] * 7


def test_a_window_knows_the_tick_that_took_it_in(
    journal: SqlJournal, ledger: sa.Engine, make_worker_window: Make
) -> None:
    journal.record([Report(make_worker_window(1))], [], plan(), AT + 3)
    assert journal.flush()
    with ledger.connect() as connection:
        assert connection.scalar(sa.select(Window.tick_at)) == connection.scalar(sa.select(Tick.at)) == AT + 3


def test_a_window_reported_twice_changes_nothing(
    journal: SqlJournal, ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    first = make_worker_window(1, (make_cohort_window("json", (StepCount(4, 3, False, 2),)),))
    again = make_worker_window(1, (make_cohort_window("json"), make_cohort_window("poetry")), busy_s=0.9)
    for window in (first, first, again):
        journal.record([Report(window)], [], plan(), AT)
        assert journal.flush()
    with ledger.connect() as connection:
        busy = connection.execute(sa.select(Window.busy_ns)).scalars().all()
        cohorts = connection.execute(sa.select(WindowCohort.cohort, WindowCohort.draft_tokens)).all()
    assert (busy, [tuple(c) for c in cohorts]) == ([500_000_000], [("json", 8)])


def test_a_window_twice_in_one_batch_is_stored_once(
    journal: SqlJournal, ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    window = make_worker_window(1, (make_cohort_window("json"),))
    journal.record([Report(window), Report(window)], [], plan(), AT)
    assert journal.flush()
    assert (rows(ledger, Window), rows(ledger, WindowCohort), journal.lost) == (1, 1, 0)


def test_a_request_id_seen_twice_keeps_its_first_record(
    journal: SqlJournal, ledger: sa.Engine, make_worker_window: Make, make_request_record: Make
) -> None:
    for sequence, tokens in ((1, 5), (2, 99)):
        request = make_request_record("same", completion_tokens=tokens)
        journal.record([Report(make_worker_window(sequence), (request,))], [], plan(), AT)
    assert journal.flush()
    with ledger.connect() as connection:
        assert connection.execute(sa.select(Request.completion_tokens)).scalars().all() == [5]


def test_a_decision_recorded_twice_is_one_row(journal: SqlJournal, ledger: sa.Engine) -> None:
    journal.record([], [decision()], plan(), AT)
    journal.record([], [decision(), decision(AT + 1)], plan(), AT + 1)
    assert journal.flush()
    assert rows(ledger, DecisionEntry) == 2


def test_a_decision_with_nan_in_it_is_stored(journal: SqlJournal, ledger: sa.Engine) -> None:
    journal.record([], [decision(accept_at=(0.5, float("nan")))], plan(), AT)
    assert journal.flush()
    assert (rows(ledger, DecisionEntry), journal.lost) == (1, 0)


def test_a_plan_version_is_one_row_whose_expiry_moves(journal: SqlJournal, ledger: sa.Engine) -> None:
    for later in range(3):
        journal.record([], [], plan(7, AT + 10 + later), AT)
        assert journal.flush()
    found = latest_plan(ledger)
    assert found is not None
    assert (rows(ledger, PlanEntry), found.version, found.expires_at) == (1, 7, AT + 12)
    assert found.k == {"json": (4,) * len(LOAD_BUCKETS)}


def test_the_last_plan_version_survives_a_restart(journal: SqlJournal, ledger: sa.Engine) -> None:
    assert last_plan_version(ledger) == 0
    for version in (41, 42):
        journal.record([], [], plan(version), AT)
    assert journal.flush()
    assert last_plan_version(ledger) == 42


def test_a_row_the_database_refuses_is_lost_alone(
    journal: SqlJournal, ledger: sa.Engine, make_worker_window: Make, make_request_record: Make
) -> None:
    too_large = make_request_record("bad", prompt_tokens=2**70)
    requests = (make_request_record("good-1"), too_large, make_request_record("good-2"))
    journal.record([Report(make_worker_window(1), requests)], [], plan(), AT)
    assert journal.flush()
    assert (rows(ledger, Request), rows(ledger, Window), journal.lost) == (2, 1, 1)


def test_bad_rows_among_many_are_found_in_few_transactions(
    sqlite_ledger_url: str, make_worker_window: Make, make_request_record: Make
) -> None:
    engine = open_database(sqlite_ledger_url)
    begun: list[str] = []
    sa.event.listen(engine, "begin", lambda connection: begun.append("begin"))
    sizes = {3: 2**70, 77: 2**71}
    requests = [make_request_record(f"r-{n}", prompt_tokens=sizes.get(n, 1)) for n in range(100)]
    journal = SqlJournal(engine)
    journal.record([Report(make_worker_window(1), tuple(requests))], [], plan(), AT)
    journal.close()
    assert (rows(engine, Request), journal.lost) == (98, 2)
    assert len(begun) < 40
    engine.dispose()


def test_a_locked_database_loses_nothing(tmp_path: Path, make_worker_window: Make) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    upgrade(url)
    engine = open_database(url, busy_timeout_ms=20)
    journal = SqlJournal(engine)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for sequence in range(1, 21):
            journal.record([Report(make_worker_window(sequence))], [], plan(), AT)
        assert not journal.flush(0.3)
        assert (journal.spooled, rows(engine, Window)) == (41, 0)  # each with its tick, and the plan's version
        other.execute("ROLLBACK")
    assert journal.flush()
    assert (rows(engine, Window), journal.spooled, journal.lost) == (20, 0, 0)
    journal.close()
    engine.dispose()


def test_recording_does_not_wait_for_a_locked_database(tmp_path: Path, make_worker_window: Make) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    upgrade(url)
    engine = open_database(url, busy_timeout_ms=2_000)
    journal = SqlJournal(engine)
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        journal.record([Report(make_worker_window(1))], [], plan(), AT)
        time.sleep(0.05)  # the writer is waiting for the lock now
        before = time.perf_counter()
        journal.record([Report(make_worker_window(2))], [], plan(), AT)
        assert time.perf_counter() - before < 0.5
        other.execute("ROLLBACK")
    journal.close()
    engine.dispose()


def test_a_database_that_is_migrated_late_gets_everything(empty_database_url: str, make_worker_window: Make) -> None:
    engine = open_database(empty_database_url)
    journal = SqlJournal(engine)
    journal.record([Report(make_worker_window(1))], [], plan(), AT)
    assert not journal.flush(0.2)
    upgrade(empty_database_url)
    assert journal.flush()
    assert (rows(engine, Window), journal.lost) == (1, 0)
    journal.close()
    engine.dispose()


def test_a_full_spool_drops_the_oldest_and_counts_them(empty_database_url: str, make_worker_window: Make) -> None:
    engine = open_database(empty_database_url)
    journal = SqlJournal(engine, bound=5)
    for sequence in range(1, 11):
        journal.record([Report(make_worker_window(sequence))], [], plan(), AT)
    assert not journal.flush(0.2)
    assert (journal.spooled, journal.lost) == (5, 16)  # ten windows, each with its tick, and one plan
    upgrade(empty_database_url)
    assert journal.flush()
    with engine.connect() as connection:
        kept = connection.execute(sa.select(Window.sequence).order_by(Window.sequence)).scalars().all()
    assert kept == [8, 9, 10]
    journal.close()
    engine.dispose()


def test_closing_writes_what_is_left(ledger: sa.Engine, make_worker_window: Make) -> None:
    journal = SqlJournal(ledger)
    journal.record([Report(make_worker_window(s)) for s in range(1, 1201)], [], plan(), AT)
    journal.close()
    assert (rows(ledger, Window), journal.spooled, journal.lost) == (1200, 0, 0)


def test_closing_gives_up_in_time_and_says_what_was_lost(tmp_path: Path, make_worker_window: Make) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/never-migrated.db")
    journal = SqlJournal(engine)
    journal.record([Report(make_worker_window(1))], [], plan(), AT)
    before = time.perf_counter()
    journal.close(0.3)
    assert time.perf_counter() - before < 2
    journal.record([Report(make_worker_window(2))], [], plan(), AT)
    assert (journal.spooled, journal.lost) == (0, 5)
    engine.dispose()


def test_two_writers_of_the_same_windows_store_each_once(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    reports = [
        Report(make_worker_window(s, (make_cohort_window("json"), make_cohort_window("poetry")))) for s in range(1, 101)
    ]
    journals = [SqlJournal(ledger), SqlJournal(ledger)]
    threads = [threading.Thread(target=j.record, args=(reports, [], plan(), AT)) for j in journals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for journal in journals:
        journal.close()
    assert (rows(ledger, Window), rows(ledger, WindowCohort)) == (100, 200)
    assert [j.lost for j in journals] == [0, 0]


def test_a_nul_in_what_an_operator_wrote_costs_no_row(journal: SqlJournal, ledger: sa.Engine) -> None:
    journal.record([], [decision(sentence="kill switch zero by ada: \0")], plan(), AT)
    journal.policy_applied(policy(), "a\0da", "why\0not", AT)
    assert journal.flush()
    assert (rows(ledger, DecisionEntry), rows(ledger, PolicyRevision), journal.lost) == (1, 1, 0)
