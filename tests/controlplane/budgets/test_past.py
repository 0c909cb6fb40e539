"""What is read for budgets from the ledger at a start."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.budgets.book import BudgetBook
from controlplane.budgets.past import LAST_READ_S, read_pasts
from controlplane.decision.plan import Plan
from controlplane.finops.budget import fresh, status
from controlplane.finops.spending import Spent
from controlplane.store.budgets import PastReader, save_states
from controlplane.store.journal import SqlJournal
from controlplane.telemetry import Report

MIDNIGHT = 1_796_083_200.0
"""2026-12-01T00:00:00Z."""
BUDGET = "name: code, cohort: code, usd: 1, period: month, timezone: {zone}"


@pytest.mark.parametrize(
    ("zone", "shift_s", "later_s", "is_known", "seconds"),
    [
        ("UTC", 0, 60, True, 3),
        ("UTC", 0, 60, False, None),  # a budget that is new has no last month
        ("UTC", 0, LAST_READ_S, True, None),
        ("Asia/Kolkata", -19_800, 60, True, 3),  # its midnight is within an hour of UTC
    ],
)
def test_a_start_just_after_a_reset_reads_the_last_period_too(
    ledger: sa.Engine, make_policy: Any, make_busy: Any,
    zone: str, shift_s: float, later_s: float, is_known: bool, seconds: int | None,
) -> None:  # fmt: skip
    reset, policy = MIDNIGHT + shift_s, make_policy(BUDGET.format(zone=zone))
    journal = SqlJournal(ledger)
    for at in (reset - 7200, reset - 2, reset - 1, reset + 1):
        journal.record([Report(make_busy(at))], [], Plan(1, 1, at, at + 10, {}, {}, ""), at)
    journal.close()
    if is_known:
        (named,) = policy.all_budgets
        save_states(ledger, [status(named, fresh(named, reset - 1), Spent(), reset - 1)])
    book = BudgetBook()
    book.follow(policy, reset + later_s)
    (past,) = read_pasts(PastReader(ledger), book.unread(), reset + later_s)
    assert sum(past.in_period.values()) == 10**9
    assert (None if past.last is None else sum(past.last.in_period.values())) == (seconds and seconds * 10**9)
