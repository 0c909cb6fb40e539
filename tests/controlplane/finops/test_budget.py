"""What is said of a budget: exact money, certain standings, and sentences that name it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.finops.attribution import NS_PER_HOUR
from controlplane.finops.budget import BudgetStatus, dialled, fresh, reached, refusal, standing, status
from controlplane.finops.forecast import Forecast
from controlplane.finops.spending import Spent, dollars, money
from controlplane.policy import Budget, NamedBudget

AT = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()


def named(action: Any = "reject", usd: str = "10", **scope: str | None) -> NamedBudget:
    whose = {"cohort": "code", "tenant": None, **scope}
    return NamedBudget("b", whose["cohort"], whose["tenant"], Budget(Decimal(usd), "month", (0.5, 0.8), action))


def spent_of(usd: str, why: str = "") -> Spent:
    return Spent(total=int(Decimal(usd) * 10**9) * NS_PER_HOUR, why=why)


def said(usd: str, why: str = "", **changes: Any) -> BudgetStatus:
    of = named(**changes)
    return status(of, fresh(of, AT), spent_of(usd, why), AT, Forecast(12 * 10**9, None, None, 10**7, None))


@pytest.mark.parametrize(
    ("nano", "text"),
    [(0, "0.00"), (10**9, "1.00"), (1_500_000_000, "1.50"), (1, "0.000000001"), (-5 * 10**6, "-0.005")],
)
def test_money_is_exact_with_two_places_at_least(nano: int, text: str) -> None:
    assert money(nano) == text


@given(st.integers(-(10**15), 10**15))
def test_money_reads_back_as_what_it_was(nano: int) -> None:
    assert int(Decimal(money(nano)) * 10**9) == nano


@pytest.mark.parametrize(
    ("nano", "text"),
    [(0, "0.00"), (123_456_789_000, "123.46"), (100_000_000, "0.10"), (62_500_000, "0.0625"), (123_456, "0.0001235")],
)
def test_a_sentence_has_cents_and_more_of_what_is_small(nano: int, text: str) -> None:
    assert dollars(nano) == text


@pytest.mark.parametrize(
    ("usd", "why", "stands", "verdict"),
    [
        ("4.99", "", "ok", "allow"),
        ("5", "", "soft", "warn"),
        ("9.999999999", "", "soft", "warn"),
        ("10", "", "exceeded", "reject"),
        ("4.99", "no price", "unknown", "allow"),
        ("9.99", "no price", "unknown", "allow"),
        ("10", "no price", "exceeded", "reject"),
    ],
)
def test_a_budget_stands_where_its_spending_is_known_to(usd: str, why: str, stands: str, verdict: str) -> None:
    assert standing(named(), spent_of(usd, why)) == stands
    assert said(usd, why).verdict == verdict


def test_a_threshold_is_reached_to_the_nano_dollar() -> None:
    of = named(usd="0.3")
    assert reached(of, 149_999_999) == frozenset()
    assert reached(of, 150_000_000) == {0.5}
    assert reached(of, 240_000_000) == {0.5, 0.8}


def test_what_is_unknown_is_null_and_not_zero() -> None:
    shown = said("1", "gpu has no price").as_json()
    assert (shown["spent"], shown["left"], shown["forecast"], shown["spent_at_least"]) == (None, None, None, "1.00")
    assert shown["why"] == "gpu has no price"


@pytest.mark.parametrize(
    ("scope", "whom"),
    [
        ({}, "cohort code"),
        ({"tenant": "acme", "cohort": None}, "key acme"),
        ({"tenant": "acme"}, "key acme in cohort code"),
    ],
)
def test_a_refusal_says_whose_budget_it_is(scope: dict[str, Any], whom: str) -> None:
    assert refusal(said("12.5", **scope)) == (
        f"The budget 'b' ({whom}) is exhausted: 12.50 of 10.00 USD are spent in 2026-11; "
        "it resets at 2026-12-01T00:00+00:00."
    )


def test_only_an_exceeded_budget_that_dials_does() -> None:
    assert dialled([said("12", action="dial"), said("12", action="reject")]) == ("code",)
    assert dialled([said("9", action="dial")]) == ()
