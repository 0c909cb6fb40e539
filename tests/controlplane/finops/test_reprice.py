"""Another sheet over history: first reported, now, and the difference, without losing either."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.attribution import cost_of_time
from controlplane.finops.pricing import NANO, FirstPrice, FirstPrices, Price, PriceError, PriceSheet
from controlplane.finops.reprice import reprice

HOUR = 497_208
"""2026-09-21T00:00Z."""
NS = 3_600_000_000_000


def sheet(per_hour: str = "2", sku: str = "gpu", **changes: Any) -> PriceSheet:
    values: dict[str, Any] = {
        "currency": "USD",
        "per_hour": Decimal(per_hour),
        "region": "",
        "source": "x",
        "as_of": date(2026, 9, 1),
        "effective_from": 0.0,
    }
    return PriceSheet((Price(sku, "on_demand", **{**values, **changes}),))


def first(
    *amounts: int | None, sku: str = "gpu", currency: str = "USD", later: PriceSheet | None = None
) -> FirstPrices:
    """Hours from HOUR on, each with what it was first reported with (nano-units; None: unpriced)."""
    rows = (
        FirstPrice(HOUR + i, sku, "on_demand", nano, None if nano is None else currency, "abc", 0.0)
        for i, nano in enumerate(amounts)
    )
    return FirstPrices(tuple(rows), later or PriceSheet())


def test_a_new_sheet_shows_by_day_what_changes() -> None:
    times = [(HOUR, "gpu", NS), (HOUR + 1, "gpu", NS // 2)]
    result = reprice(times, first(10**9, 10**9), sheet("2"), "on_demand")
    (row,) = result.rows
    assert (row.key, row.first_nano, row.now_nano, row.difference_nano) == (
        "2026-09-21", 1_500_000_000, 3_000_000_000, 1_500_000_000)  # fmt: skip


def test_rows_by_sku_are_apart_and_the_total_is_their_sum() -> None:
    times = [(HOUR, "gpu", NS), (HOUR, "cpu", NS)]
    both = PriceSheet((*sheet("2").prices, *sheet("0.5", "cpu").prices))
    result = reprice(times, FirstPrices((), both), both, "on_demand", "sku")
    assert [(row.key, row.now_nano) for row in result.rows] == [("cpu", 500_000_000), ("gpu", 2_000_000_000)]
    assert (result.total.first_nano, result.total.difference_nano) == (2_500_000_000, 0)


def test_what_was_unpriced_is_not_taken_for_nothing() -> None:
    times = [(HOUR, "gpu", NS), (HOUR + 1, "gpu", NS)]
    (row,) = reprice(times, first(None, 10**9), sheet("2"), "on_demand").rows
    assert (row.first_nano, row.difference_nano, row.first_unpriced_ns) == (None, None, NS)
    assert (row.now_nano, row.now_unpriced_ns) == (4_000_000_000, 0)


def test_hours_that_are_not_on_record_are_counted_and_priced_by_the_sheet_in_force() -> None:
    result = reprice([(HOUR + 9, "gpu", NS)], first(10**9, later=sheet("3")), sheet("2"), "on_demand")
    assert (result.open_hours, result.total.first_nano, result.total.now_nano) == (1, 3 * 10**9, 2 * 10**9)


def test_two_currencies_have_no_difference() -> None:
    with pytest.raises(PriceError, match="first reported in EUR, the sheet is in USD"):
        reprice([(HOUR, "gpu", NS)], first(1, currency="EUR"), sheet(), "on_demand")


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, NS), st.integers(0, 10**11)), min_size=1, max_size=60), st.integers(0, 10**11))
def test_the_rows_are_the_bills_of_the_hours_whatever_the_new_price(hours: list[tuple[int, int]], new: int) -> None:
    times = [(HOUR + i, "gpu", ns) for i, (ns, _) in enumerate(hours)]
    result = reprice(times, first(*(nano for _, nano in hours)), sheet(str(Decimal(new) / NANO)), "on_demand")
    assert sum(row.first_nano or 0 for row in result.rows) == sum(cost_of_time(*hour) for hour in hours)
    assert result.total.now_nano == sum(cost_of_time(ns, new) for ns, _ in hours)
    assert sum(row.ns for row in result.rows) == sum(ns for ns, _ in hours)
