"""What budgets have spent, tick by tick, and what is said of it: each threshold once, each period by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.alerts import Alert, AlertBook
from controlplane.budgets.account import Past
from controlplane.budgets.book import GONE_S, UNREAD_S, BudgetBook, Entry
from controlplane.finops.budget import HARD, BudgetState
from controlplane.finops.periods import period_at
from controlplane.finops.pricing import PriceSheet, parse_prices
from controlplane.finops.spending import spent
from controlplane.policy import Budget, Policy
from controlplane.telemetry import WindowId

CENT = 10_000_000
BUDGET = Budget(Decimal(1), "month", (0.8,), "warn")
PRICES = parse_prices(
    "{version: 1, prices: [{sku: gpu, basis: on_demand, currency: USD, per_hour: 36, source: t, as_of: 2026-01-01,"
    " effective_from: 2026-01-01}]}"
)
NOTHING = Past({}, {}, None, frozenset())


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


NOON = at("2026-11-29T12:00")


class Kept:
    """A book whose past is known, with the alerts that are active."""

    def __init__(self, policy: Policy, sheet: PriceSheet, now: float, past: Past = NOTHING) -> None:
        self.policy, self.sheet, self.book, self.alerts = policy, sheet, BudgetBook(), AlertBook()
        self.book.follow(policy, now)
        for each in self.book.unread():
            self.book.restore(each, past, now)

    def tick(self, now: float, windows: Iterable[Any] = ()) -> Entry:
        for window in windows:
            self.book.take(window)
        entry = self.book.tick(self.policy, self.sheet, now, self.alerts.active.values())
        for name, _ in entry.over:
            self.alerts, _ = self.alerts.clear(name, by="kadence", why="", now=now)
        for alert in entry.raised:
            self.alerts = self.alerts.with_alert(alert)
        return entry


@pytest.fixture
def kept(make_policy: Any, sheet: PriceSheet) -> Callable[..., Kept]:
    def make(*budgets: str, now: float = NOON, past: Past = NOTHING) -> Kept:
        return Kept(make_policy(*budgets), sheet, now, past)

    return make


def told(alerts: Iterable[Alert]) -> list[str]:
    return [alert.subject for alert in alerts]


TEN_CENTS = "name: code, cohort: code, usd: 0.10, period: day, soft: [50%, 80%], on_exceeded: reject"


def test_a_second_of_a_machine_is_spent_at_its_price(kept: Any, make_busy: Any) -> None:
    entry = kept(TEN_CENTS).tick(NOON, [make_busy(NOON - 1), make_busy(NOON - 1, 2, cohort="rest")])
    (status,) = entry.statuses
    assert (status.spent_nano, status.standing, status.verdict) == (CENT, "ok", "allow")


def test_idle_time_is_nobodys_spending(kept: Any, make_worker_window: Any) -> None:
    idle = make_worker_window(1, (), started_at=NOON - 1, device="gpu", busy_s=0.0)
    assert kept(TEN_CENTS).tick(NOON, [idle]).statuses[0].spent_nano == 0


def test_one_tenants_consumption_has_a_budget_and_alerts_of_its_own(kept: Any, make_busy: Any) -> None:
    """Alerts on one user's consumption were wanted for years; here a tenant's budget spans cohorts."""
    of_tenant = kept(
        "name: acme, tenant: acme, usd: 0.02, period: day",
        "name: both, tenant: acme, cohort: rest, usd: 1, period: day",
    )
    seen = [make_busy(NOON - 1, 2, tenants=("acme", "other")), make_busy(NOON - 1, 1, cohort="rest", tenants=("acme",))]
    entry = of_tenant.tick(NOON, seen)
    assert [s.spent_nano for s in entry.statuses] == [2 * CENT, CENT]
    assert told(entry.raised) == ["acme/80%/2026-11-29", "acme/100%/2026-11-29"]


def test_what_no_tenant_is_known_of_counts_for_its_cohort_only(kept: Any, make_busy: Any) -> None:
    entry = kept(TEN_CENTS, "name: t, tenant: t, usd: 1, period: day").tick(NOON, [make_busy(NOON - 1)])
    assert [s.spent_nano for s in entry.statuses] == [CENT, 0]


def test_a_soft_budget_that_is_exceeded_always_has_its_alert(kept: Any, make_busy: Any) -> None:
    """A soft budget was exceeded and nobody was told: also where one step crosses several thresholds."""
    entry = kept(TEN_CENTS).tick(NOON, [make_busy(NOON - 1, 11)])
    assert told(entry.raised) == ["code/50%/2026-11-29", "code/80%/2026-11-29", "code/100%/2026-11-29"]
    assert [alert.severity for alert in entry.raised] == ["warning", "warning", "critical"]


def test_one_crossing_is_one_alert_however_long_it_lasts(kept: Any, make_busy: Any) -> None:
    """A crossing flooded the channel until alerting was switched off."""
    book = kept(TEN_CENTS)
    raised = [alert for i in range(120) for alert in book.tick(NOON + i, [make_busy(NOON + i, 0.1)]).raised]
    assert sorted(told(raised)) == ["code/100%/2026-11-29", "code/50%/2026-11-29", "code/80%/2026-11-29"]


def test_an_alert_that_a_person_cleared_does_not_come_back_in_its_period(kept: Any, make_busy: Any) -> None:
    book = kept(TEN_CENTS)
    book.tick(NOON, [make_busy(NOON - 1, 6)])
    book.alerts = AlertBook()
    assert book.tick(NOON + 1, [make_busy(NOON, 1)]).raised == ()


def test_a_monthly_budget_resets_when_the_month_does(make_policy: Any, sheet: PriceSheet, make_busy: Any) -> None:
    """A monthly budget never reset: here at local midnight, with its alerts."""
    zone, midnight = "Europe/Berlin", at("2026-12-01", "Europe/Berlin")
    policy = make_policy(f"name: m, cohort: code, usd: 0.05, period: month, timezone: {zone}, on_exceeded: reject")
    book = Kept(policy, sheet, midnight - 60)
    before = book.tick(midnight - 50, [make_busy(midnight - 60, 6)]).statuses[0]
    assert (before.standing, before.verdict, before.period.label) == ("exceeded", "reject", "2026-11")
    entry = book.tick(midnight, [])
    after = entry.statuses[0]
    assert (after.spent_nano, after.standing, after.fired, after.period.label) == (0, "ok", (), "2026-12")
    assert entry.over == (
        ("budget:m/80%/2026-11", "the budget was reset"), ("budget:m/100%/2026-11", "the budget was reset"),
    )  # fmt: skip
    assert told(book.tick(midnight + 5, [make_busy(midnight, 5)]).raised) == ["m/80%/2026-12", "m/100%/2026-12"]


def test_a_window_that_comes_after_the_reset_counts_for_the_period_it_began_in(kept: Any, make_busy: Any) -> None:
    midnight = at("2026-11-30")
    book = kept(TEN_CENTS, now=midnight - 10)
    book.tick(midnight - 5, [make_busy(midnight - 10, 3)])
    entry = book.tick(midnight + 1, [make_busy(midnight - 1, 3), make_busy(midnight, 1)])
    assert entry.statuses[0].spent_nano == CENT
    assert [(s.period.label, s.spent_nano) for s in entry.ended] == [("2026-11-29", 6 * CENT)]
    assert told(entry.raised) == ["code/50%/2026-11-29"]
    late = book.tick(midnight + 2, [make_busy(midnight - 2, 2)])
    assert (late.statuses[0].spent_nano, late.ended[0].spent_nano) == (CENT, 8 * CENT)
    assert told(late.raised) == ["code/80%/2026-11-29"]


def test_until_the_ledger_was_read_a_budget_is_unknown(make_policy: Any, sheet: Any, make_busy: Any) -> None:
    book = BudgetBook()
    book.take(make_busy(NOON - 1, 9))
    entry = book.tick(make_policy(TEN_CENTS), sheet, NOON)
    assert (entry.statuses[0].standing, entry.statuses[0].verdict, entry.raised) == ("unknown", "allow", ())
    past = Past({(int(NOON // 3600), "gpu"): 9 * 10**9}, {}, NOON, frozenset({"code/50%/2026-11-29"}))
    book.restore(book.unread()[0], past, NOON)
    entry = book.tick(make_policy(TEN_CENTS), sheet, NOON + 1)
    assert (entry.statuses[0].spent_nano, told(entry.raised)) == (9 * CENT, ["code/80%/2026-11-29"])


def test_windows_are_known_up_to_the_worker_that_is_last_until_it_is_gone(kept: Any, make_busy: Any) -> None:
    book = kept(TEN_CENTS)
    assert book.book.known_until(NOON) == float("inf")
    book.tick(NOON, [make_busy(NOON - 3), make_busy(NOON - 1), make_busy(NOON - 9, id=WindowId("slow", 1, 1))])
    assert book.book.known_until(NOON) == NOON - 8
    assert book.book.known_until(NOON - 8 + GONE_S + 1) == NOON


def test_a_ledger_that_stays_away_is_told_of_once_and_no_longer_when_it_is_read(
    make_policy: Any, sheet: Any, make_busy: Any
) -> None:
    book, active = Kept(make_policy(TEN_CENTS), sheet, NOON), []
    book.book = BudgetBook()
    for later in (0, UNREAD_S - 1, UNREAD_S, UNREAD_S + 1):
        active.append(told(book.tick(NOON + later, [make_busy(NOON + later, 2)]).raised))
    assert active == [[], [], ["code/unknown/2026-11-29"], []]
    book.book.restore(book.book.unread()[0], NOTHING, NOON + 70)
    assert book.tick(NOON + 71).over == (("budget:code/unknown/2026-11-29", "the budget or a price was changed"),)


def test_tokens_are_measured_anew_at_another_price(kept: Any, make_busy: Any, make_sheet: Any) -> None:
    """At three times the price, a third of what a request costs was reserved for minutes."""
    book = kept(TEN_CENTS)
    for i in range(30):
        book.tick(NOON + i, [make_busy(NOON + i - 1, cohort="code", tenants=[None] * 3)])
    before = book.book.costs.of("code", 0.0).input_nano
    assert before > 0
    book.sheet = parse_prices(PRICES.written.replace("per_hour: 36", "per_hour: 108"))
    book.tick(NOON + 31, [make_busy(NOON + 30, cohort="code", tenants=[None] * 3)])
    assert book.book.costs.of("code", 0.0).input_nano == pytest.approx(3 * before)


def test_what_comes_while_the_ledger_is_read_is_spent_once(make_policy: Any, sheet: Any, make_busy: Any) -> None:
    """Reading a month takes seconds, and windows come every second."""
    book, cell = BudgetBook(), (int(NOON // 3600), "gpu")
    book.take(make_busy(NOON, 4))
    book.tick(make_policy(TEN_CENTS), sheet, NOON + 4)
    (unread,) = book.unread()
    book.take(make_busy(NOON + 4, 3))
    book.tick(make_policy(TEN_CENTS), sheet, NOON + 7)
    book.restore(unread, Past({cell: 5 * 10**9}, {}, NOON, frozenset()), NOON + 7)  # the four, and one of before
    assert book.tick(make_policy(TEN_CENTS), sheet, NOON + 8).statuses[0].spent_nano == 8 * CENT


@pytest.mark.parametrize(
    ("later", "budget"),
    [(NOON, TEN_CENTS.replace("period: day", "period: week")), (at("2026-11-30T00:00"), TEN_CENTS)],
)
def test_what_was_read_for_another_period_is_not_taken_for_this_one(
    make_policy: Any, sheet: Any, later: float, budget: str
) -> None:
    book = BudgetBook()
    book.tick(make_policy(TEN_CENTS), sheet, NOON)
    (unread,) = book.unread()
    book.tick(make_policy(budget), sheet, later)
    book.restore(unread, Past({(int(NOON // 3600), "gpu"): 9 * 10**9}, {}, NOON, frozenset()), later)
    assert [each.named.name for each in book.unread()] == ["code"]


def test_a_start_at_midnight_closes_the_last_period_and_tells_what_was_not_told(kept: Any, make_busy: Any) -> None:
    midnight = at("2026-11-30T00:00")
    yesterday = Past(
        {(int(midnight // 3600) - 1, "gpu"): 9 * 10**9}, {}, NOON, frozenset(), frozenset({"code/50%/2026-11-29"})
    )
    book = kept(TEN_CENTS, now=midnight + 5, past=NOTHING._replace(last=yesterday))
    entry = book.tick(midnight + 6)
    assert [(s.period.label, s.spent_nano) for s in entry.ended] == [("2026-11-29", 9 * CENT)]
    assert (told(entry.raised), entry.statuses[0].spent_nano) == (["code/80%/2026-11-29"], 0)
    late = book.tick(midnight + 7, [make_busy(midnight - 1, 1)])
    assert (late.ended[0].spent_nano, told(late.raised)) == (10 * CENT, ["code/100%/2026-11-29"])
    assert book.tick(midnight + 8).ended == ()


def test_a_restart_tells_nothing_again(kept: Any) -> None:
    past = Past(
        {(int(NOON // 3600), "gpu"): 11 * 10**9}, {}, NOON, frozenset(f"code/{s}%/2026-11-29" for s in (50, 80, 100))
    )
    entry = kept(TEN_CENTS, past=past).tick(NOON)
    assert (entry.statuses[0].standing, entry.statuses[0].fired, entry.raised) == ("exceeded", (0.5, 0.8, HARD), ())


def test_time_without_a_price_makes_a_budget_unknown_never_zero(kept: Any, make_busy: Any) -> None:
    """A model without a price was logged at $0 and its budget never tripped."""
    entry = kept(TEN_CENTS).tick(NOON, [make_busy(NOON - 1, 50, device="mystery")])
    (status,) = entry.statuses
    assert (status.standing, status.verdict, status.as_json()["spent"]) == ("unknown", "allow", None)
    assert "mystery has no on_demand price" in status.why
    assert told(entry.raised) == ["code/unknown/2026-11-29"]


def test_what_is_over_the_limit_without_the_unpriced_part_is_over_it_with_that(kept: Any, make_busy: Any) -> None:
    book = kept(TEN_CENTS)
    entry = book.tick(NOON, [make_busy(NOON - 1, 11), make_busy(NOON - 1, 1, device="mystery")])
    assert (entry.statuses[0].standing, entry.statuses[0].verdict) == ("exceeded", "reject")


def test_a_sheet_in_another_currency_computes_no_budget(make_policy: Any, make_sheet: Any, make_busy: Any) -> None:
    book = Kept(make_policy(TEN_CENTS), make_sheet("EUR"), NOON)
    (status,) = book.tick(NOON, [make_busy(NOON - 1, 99)]).statuses
    assert (status.standing, status.verdict) == ("unknown", "allow")
    assert status.why == "budgets are in USD and the price sheet is in EUR; neither is converted"


def test_another_sheet_prices_the_whole_period_again(kept: Any, make_busy: Any, make_sheet: Any) -> None:
    book = kept(TEN_CENTS)
    book.tick(NOON, [make_busy(NOON - 1, 5, device="mystery")])
    book.sheet = make_sheet(sku="mystery")
    entry = book.tick(NOON + 1)
    assert (entry.statuses[0].spent_nano, entry.statuses[0].standing) == (5 * CENT, "soft")
    assert "budget:code/unknown/2026-11-29" not in book.alerts.active


def test_a_raised_budget_tells_its_thresholds_again_when_they_are_reached(
    kept: Any, make_busy: Any, make_policy: Any
) -> None:
    book = kept(TEN_CENTS)
    book.tick(NOON, [make_busy(NOON - 1, 10)])
    book.policy = make_policy(TEN_CENTS.replace("0.10", "0.15"))
    entry = book.tick(NOON + 1)
    assert (entry.statuses[0].standing, entry.raised) == ("soft", ())
    assert ("budget:code/100%/2026-11-29", "the budget or a price was changed") in book.tick(NOON + 2).over + entry.over
    assert told(book.tick(NOON + 3, [make_busy(NOON, 5)]).raised)[-1] == "code/100%/2026-11-29"


def test_a_budget_that_is_gone_leaves_no_alert(kept: Any, make_busy: Any, make_policy: Any) -> None:
    book = kept(TEN_CENTS)
    book.tick(NOON, [make_busy(NOON - 1, 6)])
    book.policy = make_policy()
    assert book.tick(NOON + 1).over == (("budget:code/50%/2026-11-29", "the budget was removed"),)


def test_a_budget_of_another_period_begins_with_its_own_past(kept: Any, make_busy: Any, make_policy: Any) -> None:
    book = kept(TEN_CENTS)
    book.tick(NOON, [make_busy(NOON - 1, 6)])
    book.policy = make_policy(TEN_CENTS.replace("day", "month"))
    assert book.tick(NOON + 1).statuses[0].standing == "unknown"
    assert [named.budget.period for named, *_ in book.book.unread()] == ["month"]


def test_an_exceeded_budget_that_dials_names_its_cohort_until_the_reset(kept: Any, make_busy: Any) -> None:
    book = kept("name: d, cohort: code, usd: 0.05, period: day, on_exceeded: dial")
    assert book.tick(NOON, [make_busy(NOON - 1, 4)]).dialled == ()
    assert book.tick(NOON + 1, [make_busy(NOON, 1)]).dialled == ("code",)
    assert book.tick(at("2026-11-30")).dialled == ()


def test_of_very_many_budgets_no_tick_forecasts_all_and_all_have_one_soon(make_policy: Any, sheet: PriceSheet) -> None:
    policy = make_policy(*(f"name: t{i}, tenant: t{i}, usd: 1, period: day" for i in range(100)))
    book = Kept(policy, sheet, NOON, NOTHING._replace(since=NOON - 3600))
    known = [sum(status.forecast is not None for status in book.tick(NOON + i).statuses) for i in range(8)]
    assert (known[0], known[-1]) == (16, 100)


PARTS = st.lists(st.dictionaries(st.tuples(st.integers(497_000, 497_003), st.just("gpu")), st.integers(0, 10**13)))


@settings(max_examples=60, deadline=None)
@given(PARTS)
def test_money_of_parts_is_the_money_of_the_whole_rounded_once(parts: list[dict[tuple[int, str], int]]) -> None:
    prices = PRICES
    state, money = BudgetState(period_at(BUDGET, NOON)), spent({}, prices)
    for part in parts:
        state, money = state.with_use(part), money.plus(spent(part, prices))
    assert money == spent(state.ns, prices)
    assert abs(money.nano - sum(state.ns.values()) // 100) <= 1
