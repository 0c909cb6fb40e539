"""Verification adds the ledger up again; pruning takes what is old and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.decision.plan import Plan
from controlplane.store.cost_models import CostDay, CostHour, CostMonth, MachineHour
from controlplane.store.journal import SqlJournal
from controlplane.store.models import WindowCohort
from controlplane.store.upkeep import Pruned, prune, verify
from controlplane.telemetry import Report

Make = Callable[..., Any]

AT = 1_790_000_000.0


@pytest.fixture
def filled(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make
) -> sa.Engine:
    """A window of one cohort and a request at 0, 2 and 100 hours."""
    journal = SqlJournal(ledger)
    for i, hours in enumerate((0, 2, 100)):
        at = AT + hours * 3600
        cohort = make_cohort_window("json", prefill_positions=3)
        window = make_worker_window(i, (cohort,), started_at=at, energy_uj=1001, energy_source="counter")
        journal.record([Report(window, (make_request_record(f"r{i}", finished_at=at),))], [], PLAN, at)
    journal.close()
    return ledger


PLAN = Plan(1, 1, AT, AT + 10, {}, {}, "")


def test_a_sound_ledger_has_counts_and_no_problem(filled: sa.Engine) -> None:
    result = verify(filled)
    assert result.problems == ()
    assert {name: n for name, n in result.counts.items() if n} == {
        "window": 3,
        "window_cohort": 3,
        "request": 3,
        "cost_hour": 6,
        "cost_day": 4,
        "cost_month": 2,
        "machine_hour": 3,
        "plan": 1,
        "tick": 3,
    }


@pytest.mark.parametrize(("column", "what"), [("attributed_ns", "machine time"), ("attributed_uj", "energy")])
def test_a_window_that_does_not_add_up_is_found(filled: sa.Engine, column: str, what: str) -> None:
    with filled.begin() as connection:
        one = getattr(WindowCohort, column)
        connection.execute(sa.update(WindowCohort).where(WindowCohort.sequence == 1).values({column: one + 1}))
    assert verify(filled).problems == (
        f"1 windows whose cohorts and idle do not add up to their {what}",
        "2026-09-21T16:00Z: cost_hour is not what the windows add up to",
    )


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        (CostHour, ["2026-09-21T14:00Z, 2026-09-21T16:00Z, 2026-09-25T18:00Z: cost_hour is not what the windows"
                    " add up to",
                    "4 rows of cost_day are not the sums of their hours in cost_hour",
                    "3 rows of machine_hour are not the machine time of cost_hour"]),
        (CostDay, ["4 rows of cost_day are not the sums of their hours in cost_hour",
                   "2026-09: cost_month is not the sum of its days in cost_day"]),
        (CostMonth, ["2026-09: cost_month is not the sum of its days in cost_day"]),
        (MachineHour, ["3 rows of machine_hour are not the machine time of cost_hour"]),
    ],
)  # fmt: skip
def test_a_rollup_that_is_not_the_sum_of_its_windows_is_found(
    filled: sa.Engine, table: type[Any], problems: list[str]
) -> None:
    with filled.begin() as connection:
        connection.execute(sa.update(table).values(ns=table.ns + 1))
    assert verify(filled).problems == tuple(problems)


def test_a_window_that_the_bill_did_not_count_is_found(filled: sa.Engine) -> None:
    with filled.begin() as connection:
        connection.execute(sa.update(MachineHour).values(windows=0).where(MachineHour.hour == int(AT // 3600)))
    assert verify(filled).problems == ("2026-09-21T14:00Z: more windows than the bill has counted",)


def test_pruning_takes_old_windows_with_their_cohorts_and_old_requests(filled: sa.Engine) -> None:
    assert prune(filled, AT + 3 * 3600) == Pruned(windows=2, requests=2)
    counts = verify(filled).counts
    kept = ("window", "window_cohort", "request", "tick", "plan")
    assert [counts[name] for name in kept] == [1, 1, 1, 1, 1]


def test_a_window_that_is_still_partly_young_stays(filled: sa.Engine) -> None:
    assert prune(filled, AT + 0.5) == Pruned(windows=0, requests=1)


def test_pruning_twice_finds_nothing_more(filled: sa.Engine) -> None:
    prune(filled, AT + 3600)
    assert prune(filled, AT + 3600) == Pruned(windows=0, requests=0)
