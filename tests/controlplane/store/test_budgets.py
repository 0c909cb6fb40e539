"""What the ledger knows of budgets: the use before now, which alerts stand, and where each period stood."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from controlplane.alerts import Alert
from controlplane.budget_cli import budget_app
from controlplane.decision.plan import Plan
from controlplane.finops.budget import BudgetState, fire, fresh, status
from controlplane.finops.periods import period_at
from controlplane.finops.spending import Spent
from controlplane.policy import Budget, NamedBudget
from controlplane.store.budgets import CONTROLLER, PastReader, budget_history, save_states
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.telemetry import Report, TenantUse, WindowId

AT = 1_790_000_000.0
"""2026-09-21T14:13:20Z, a Monday."""
HOUR = int(AT // 3600)
PLAN = Plan(1, 1, AT, AT + 10, {}, {}, "")
SECOND = 10**9


def named(
    period: Any = "week", cohort: str | None = "json", tenant: str | None = None, zone: str = "UTC"
) -> NamedBudget:
    return NamedBudget("b", cohort, tenant, Budget(Decimal(1), period, (0.5, 0.8), "reject", zone))


def past(engine: sa.Engine, budget: NamedBudget, now: float = AT) -> dict[str, Any]:
    (found,) = PastReader(engine).read([(budget, period_at(budget.budget, now), (0.5, 0.8, 1.0))])
    return found


@pytest.fixture
def filled(ledger: sa.Engine, make_worker_window: Any, make_cohort_window: Any) -> sa.Engine:
    """A second of json for acme and one for others, an hour and a day ago and just now; the last one comes twice."""
    journal = SqlJournal(ledger)
    tenants = (TenantUse(None, prefill_positions=5), TenantUse("acme", prefill_positions=5))
    for i, hours_ago in enumerate((24, 1, 0, 0)):
        cohorts = (
            make_cohort_window("json", prefill_positions=10, tenants=tenants),
            make_cohort_window("other", prefill_positions=10),
        )
        at = AT - hours_ago * 3600
        window = make_worker_window(
            0, cohorts, started_at=at, ended_at=at + 4, busy_s=4.0, id=WindowId("w", 1, min(i, 2))
        )
        journal.record([Report(window)], [], PLAN, AT + i)
    journal.close()
    return ledger


def test_use_is_that_of_the_period_each_window_once(filled: sa.Engine) -> None:
    found = past(filled, named())
    assert found["in_period"] == {(HOUR - 1, "cpu-2core"): 2 * SECOND, (HOUR, "cpu-2core"): 2 * SECOND}
    assert found["before"] == {(HOUR - 24, "cpu-2core"): 2 * SECOND}  # the Sunday
    assert found["since"] == (HOUR - 24) * 3600.0


def test_any_number_of_budgets_is_read_with_one_look_at_the_hours(filled: sa.Engine) -> None:
    budgets = [named(p, c, t) for p in ("day", "week", "month") for c, t in (("json", None), (None, "acme"))]
    asked: list[str] = []
    sa.event.listen(filled, "before_cursor_execute", lambda *args: asked.append(args[2]))
    found = PastReader(filled).read([(each, period_at(each.budget, AT), ()) for each in budgets])
    assert sum("FROM cost_hour" in query and "sum" in query for query in asked) == 1
    assert found == [{**past(filled, each), "fired": frozenset()} for each in budgets]


@pytest.mark.parametrize(("cohort", "seconds"), [(None, 1), ("json", 1), ("other", 0)])
def test_use_of_a_tenant_is_over_all_cohorts_or_in_one(filled: sa.Engine, cohort: str | None, seconds: int) -> None:
    found = past(filled, named("day", cohort, "acme"))["in_period"]
    assert sum(found.values()) == 2 * seconds * SECOND


def test_a_period_that_begins_within_an_hour_of_utc_counts_its_own_windows(
    ledger: sa.Engine, make_worker_window: Any, make_cohort_window: Any
) -> None:
    """Midnight in Kolkata is half past six in the evening, UTC."""
    budget = named("day", zone="Asia/Kolkata")
    midnight = period_at(budget.budget, AT).end
    journal = SqlJournal(ledger)
    for i, seconds in enumerate((-1, 1, 3600)):
        cohort = make_cohort_window("json", prefill_positions=1)
        at = midnight + seconds
        window = make_worker_window(i, (cohort,), started_at=at, busy_s=1.0)
        journal.record([Report(window)], [], PLAN, at)
    journal.close()
    found = past(ledger, budget, midnight + 10)
    first = int(midnight // 3600)
    assert found["in_period"] == {(first, "cpu-2core"): SECOND, (first + 1, "cpu-2core"): SECOND}


def test_an_alert_stands_unless_the_budget_was_reset_or_changed(ledger: sa.Engine) -> None:
    budget = named()
    state = fresh(budget, AT)
    _, alerts = fire(budget, state, status(budget, state, Spent(total=10**9 * 3600 * 10**9), AT))
    by = [{}, {"state": "cleared", "cleared_by": "ada"}, {"state": "cleared", "cleared_by": CONTROLLER}]
    stored: list[Alert] = [replace(alert, **changes) for alert, changes in zip(alerts, by, strict=True)]
    journal = SqlJournal(ledger)
    for alert in stored:
        journal.alert(alert)
    journal.close()
    assert past(ledger, budget)["fired"] == {"b/50%/2026-W39", "b/80%/2026-W39"}


def test_where_a_budget_stands_is_one_row_for_each_period(ledger: sa.Engine) -> None:
    budget = named()
    for now, dollars in ((AT, 0.4), (AT + 60, 0.9), (AT + 7 * 86400, 0.1)):
        state = BudgetState(period_at(budget.budget, now), fired=frozenset({0.5}) if dollars > 0.5 else frozenset())
        money = Spent(total=int(dollars * 10**9) * 3600 * 10**9)
        save_states(ledger, [status(budget, state, money, now)])
    rows = budget_history(ledger)
    assert [(r.period, r.spent_nano, r.standing, r.fired) for r in rows] == [
        ("2026-W40", 10**8, "ok", []), ("2026-W39", 9 * 10**8, "soft", [0.5]),
    ]  # fmt: skip
    assert budget_history(ledger, "nobody") == []


def test_past_periods_are_told_by_the_command(sqlite_ledger_url: str) -> None:
    engine, budget = open_database(sqlite_ledger_url), named()
    for now, money in ((AT, Spent(total=9 * 10**8 * 3600 * 10**9)), (AT + 7 * 86400, Spent(why="no price"))):
        save_states(engine, [status(budget, fresh(budget, now), money, now)])
    flags = ["history", "--database-url", sqlite_ledger_url]
    shown = CliRunner().invoke(budget_app, flags).stdout.splitlines()
    assert shown == ["2026-W40    b  unknown: at least 0.00 of 1.00 USD", "2026-W39    b  soft: 0.90 of 1.00 USD"]
    periods = json.loads(CliRunner().invoke(budget_app, [*flags, "--json"]).stdout)["periods"]
    assert [(each["spent"], each["why"]) for each in periods] == [(None, "no price"), ("0.90", None)]
