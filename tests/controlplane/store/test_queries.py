"""What the dashboard reads, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.decision.decide import Decision, Reason
from controlplane.decision.plan import Plan
from controlplane.finops.pricing import load_prices
from controlplane.policy import parse_policy
from controlplane.store.engine import StoreError, open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.migrate import upgrade
from controlplane.store.price_book import save_prices, stored_prices
from controlplane.store.queries import (
    TimeRange,
    cohort_series,
    database_state,
    decision_log,
    latest_plan,
    open_ledger,
    policy_log,
    time_bounds,
)
from controlplane.telemetry import Report, StepCount

Make = Callable[..., Any]

AT = 1_790_000_000.0  # a multiple of 10 s
DAY = TimeRange(AT, AT + 86400)
PLAN = Plan(1, 1, AT, AT + 10, {}, {}, "")
DECISION = Decision("json", 0, 2, 4, next(iter(Reason)), "because", 80, (0.9, 0.8), AT, 1, "abcdefabcdef")


def store(engine: sa.Engine, reports: list[Report], decisions: list[Decision], plan: Plan = PLAN) -> None:
    journal = SqlJournal(engine)
    journal.record(reports, decisions, plan, AT)
    journal.close()
    assert journal.lost == 0


def test_a_series_sums_windows_into_buckets(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    counts = (StepCount(0, 0, False, 2), StepCount(4, 3, False, 4))
    cohort = make_cohort_window("json", counts, first_tokens=1)
    store(ledger, [Report(make_worker_window(s, (cohort,))) for s in (1, 2, 11)], [])
    first, second = cohort_series(ledger, DAY, 10.0)
    assert (first.at, first.cohort, first.seconds, second.at) == (AT, "json", 2.0, AT + 10)
    # Each window: 1 first token, 2 plain steps, 4 steps of 4 drafts that emitted 3 + 1.
    assert (first.emitted_tokens, first.spec_steps, first.plain_steps) == (38, 8, 4)
    assert (first.accepted_tokens, first.draft_tokens) == (24, 32)
    assert (first.tokens_per_s, first.acceptance_length) == (19.0, 4.0)


def test_mean_k_is_what_was_drafted_and_planned_k_what_was_allowed(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    cohort = make_cohort_window("json", (StepCount(0, 0, False, 2), StepCount(4, 3, False, 2)), k=4)
    store(ledger, [Report(make_worker_window(1, (cohort,)))], [])
    (point,) = cohort_series(ledger, DAY, 10.0)
    assert (point.mean_k, point.planned_k) == (2.0, 4.0)


def test_a_cohort_that_only_prefilled_has_no_acceptance_and_no_k(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    store(ledger, [Report(make_worker_window(1, (make_cohort_window("json", prefill_positions=5),)))], [])
    (point,) = cohort_series(ledger, DAY, 10.0)
    assert (point.acceptance_length, point.mean_k, point.planned_k) == (None, None, None)


def test_a_bucket_begins_at_or_before_its_windows(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    cohorts = (make_cohort_window("json", prefill_positions=1),)
    starts = [AT + 0.0, AT + 4.999, AT + 5.0, AT + 9.75]
    windows = [make_worker_window(i, cohorts, started_at=at) for i, at in enumerate(starts)]
    store(ledger, [Report(w) for w in windows], [])
    assert [p.at for p in cohort_series(ledger, DAY, 5.0)] == [AT, AT + 5]


def test_a_bucket_without_width_is_refused(ledger: sa.Engine) -> None:
    with pytest.raises(ValueError, match="bucket_s must be over 0"):
        cohort_series(ledger, DAY, 0.0)


def test_the_decision_log_is_newest_first_and_limited(ledger: sa.Engine) -> None:
    store(ledger, [], [replace(DECISION, at=AT + i, new_k=i) for i in range(5)])
    assert [d.new_k for d in decision_log(ledger, DAY, limit=3)] == [4, 3, 2]


def test_the_decision_log_reads_a_decision_as_it_was(ledger: sa.Engine) -> None:
    store(ledger, [], [DECISION])
    (row,) = decision_log(ledger, DAY)
    assert all(getattr(row, name) == getattr(DECISION, name) for name in Decision.__dataclass_fields__)


def test_the_decision_log_can_be_of_one_cohort_and_of_changes(ledger: sa.Engine) -> None:
    hold = replace(DECISION, at=AT + 1, old_k=4)
    store(ledger, [], [DECISION, hold, replace(DECISION, cohort="poetry")])
    assert [d.at for d in decision_log(ledger, DAY, "json")] == [AT + 1, AT]
    assert [d.at for d in decision_log(ledger, DAY, "json", changes_only=True)] == [AT]


def test_the_decision_log_can_be_searched_by_reason_and_by_text(ledger: sa.Engine) -> None:
    lowered = replace(DECISION, at=AT + 1, reason=Reason.LOWERED, sentence="json 4 -> 2: 83 % is Low")
    store(ledger, [], [DECISION, lowered])
    assert [d.at for d in decision_log(ledger, DAY, reasons=["lowered", "raised"])] == [
        AT + 1,
        *([AT] if DECISION.reason == "raised" else []),
    ]
    assert [d.at for d in decision_log(ledger, DAY, text="is low")] == [AT + 1]
    assert [d.at for d in decision_log(ledger, DAY, text="%")] == [AT + 1]  # a character, not a wildcard


def test_the_latest_plan_is_the_one_of_the_highest_version(ledger: sa.Engine) -> None:
    assert latest_plan(ledger) is None
    for version, epoch in ((2, 1), (10, 2), (9, 3)):
        store(ledger, [], [], replace(PLAN, version=version, epoch=epoch, k={"json": (2,) * 9}))
    found = latest_plan(ledger)
    assert found is not None
    assert (found.version, found.epoch, found.k) == (10, 2, {"json": (2,) * 9})


def test_policies_are_logged_as_often_as_they_were_applied(ledger: sa.Engine) -> None:
    policy = parse_policy(
        "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
        "    speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}\n"
    )
    journal = SqlJournal(ledger)
    journal.policy_applied(policy, "ada", "first", AT)
    journal.policy_applied(policy, "bob", "again", AT + 1)
    journal.close()
    assert [(p.applied_by, p.why, p.revision) for p in policy_log(ledger)] == [
        ("bob", "again", policy.revision),
        ("ada", "first", policy.revision),
    ]


def test_bounds_hold_every_window_and_request(
    ledger: sa.Engine, make_worker_window: Make, make_request_record: Make
) -> None:
    assert time_bounds(ledger) is None
    store(ledger, [Report(make_worker_window(1), (make_request_record(finished_at=AT + 7),))], [])
    bounds = time_bounds(ledger)
    assert bounds is not None
    assert bounds.start == AT
    assert AT + 7 < bounds.end < AT + 7.1


def test_the_price_book_reads_back_as_the_sheet_it_was(ledger: sa.Engine) -> None:
    assert stored_prices(ledger).prices == ()
    sheet = load_prices(Path(__file__).parents[3] / "prices.yaml")
    for _ in range(2):
        save_prices(ledger, sheet)
        assert stored_prices(ledger) == sheet


def test_the_state_follows_the_database_from_missing_to_newer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    assert database_state(url) == "missing"
    assert not (tmp_path / "ledger.db").exists()
    engine = open_database(url)
    with engine.connect():
        assert database_state(url) == "empty"
    upgrade(url)
    assert database_state(url) == "ok"
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert database_state(url) == "newer"
    with pytest.raises(StoreError, match="newer revision than this Kadence knows"):
        open_ledger(url)
    engine.dispose()


def test_a_file_that_is_no_database_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("not a database, whatever its name says" * 50)
    assert database_state(f"sqlite:///{tmp_path}/ledger.db") == "unreachable: file is not a database"


def test_a_postgres_server_that_is_away_is_unreachable() -> None:
    state = database_state("postgresql://nobody@127.0.0.1:1/ledger")
    assert state.startswith("unreachable: ")
    assert "\n" not in state
