"""Hand-made invoices beside hand-made machine hours: each kind of difference, and that the kinds add up."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.export_cells import exact_sum
from controlplane.finops.invoice import InvoiceError, parse_invoice, seconds_of_unit
from controlplane.finops.reconcile import OurHour, Reconciliation, reconcile

HOUR = 497_222  # 2026-09-21T14:00Z
FULL = 3600 * 10**9
PRICE = 2_000_000_000  # 2 an hour


def ours(hour: int = 0, share: float = 1.0, sku: str = "gpu", **changes: Any) -> OurHour:
    """`share` of hour 14 + `hour`, at 2 an hour."""
    ns = round(FULL * share)
    return OurHour(**{"hour": HOUR + hour, "sku": sku, "ns": ns, "cost_nano": round(PRICE * share), **changes})


def compare(invoice: str, *hours: OurHour, **mapping: str) -> Reconciliation:
    return reconcile(parse_invoice(invoice.splitlines()), hours, mapping)


def row(hour: int = 14, cost: str = "2", hours: str = "1", sku: str = "gpu") -> str:
    return f"\n2026-09-21T{hour:02}:00:00Z,{sku},{cost},{hours}"


HEADER = "start,sku,cost,hours"


def by_cause(found: Reconciliation) -> dict[str, Decimal]:
    assert sum(found.by_cause.values()) == found.difference
    return {cause: amount.normalize() for cause, amount in found.by_cause.items()}


def test_an_invoice_like_the_ledger_has_no_difference() -> None:
    found = compare(HEADER + row(14) + row(15), ours(0), ours(1))
    assert (found.theirs, found.ours, found.difference, found.by_cause, found.grain) == (4, 4, 0, {}, "hour")
    assert not found.exceeds(Decimal(0))


def test_an_hour_they_billed_without_windows_is_a_machine_that_was_on_and_not_serving() -> None:
    found = compare(HEADER + row(14) + row(15), ours(0))
    assert by_cause(found) == {"not_serving": 2}
    assert [(r.resource, r.start.hour, r.ours) for r in found.rows if r.parts] == [("gpu", 15, None)]


def test_an_hour_with_windows_that_they_did_not_bill_is_named() -> None:
    assert by_cause(compare(HEADER + row(14), ours(0), ours(1))) == {"not_billed": -2}


def test_another_price_of_the_hour_is_a_price_difference() -> None:
    assert by_cause(compare(HEADER + row(cost="2.5"), ours())) == {"price": Decimal("0.5")}


def test_an_hour_that_was_served_in_part_is_a_difference_of_quantity() -> None:
    assert by_cause(compare(HEADER + row(), ours(share=0.75))) == {"quantity": Decimal("0.5")}


def test_price_and_quantity_together_are_told_apart() -> None:
    """They: 1 h at 3. We: 0.5 h at 2. Half an hour at our 2 is 1; the dearer hour is 1 more."""
    assert by_cause(compare(HEADER + row(cost="3"), ours(share=0.5))) == {"quantity": 1, "price": 1}


def test_without_a_quantity_nothing_is_guessed_about_price_and_hours() -> None:
    assert by_cause(compare("start,sku,cost\n2026-09-21T14:00Z,gpu,3", ours())) == {"unsplit": 1}


def test_a_sku_without_a_price_explains_what_they_billed_for_it() -> None:
    found = compare(HEADER + row(), ours(cost_nano=None))
    assert (by_cause(found), found.rows[0].ours) == ({"unpriced": 2}, None)


def test_two_machines_of_a_kind_are_one_resource() -> None:
    found = compare(HEADER + row() + row(), ours(share=2))
    assert (found.difference, found.rows[0].their_hours) == (0, 2)


def test_resources_are_mapped_to_our_skus_and_left_out_by_an_empty_one() -> None:
    found = compare(HEADER + row(sku="p5") + row(sku="disk", cost="9"), ours(), p5="gpu", disk="")
    assert (found.difference, found.left_out) == (0, 9)


def test_a_resource_that_is_not_ours_counts_until_it_is_left_out() -> None:
    assert by_cause(compare(HEADER + row() + row(sku="disk", cost="9"), ours())) == {"not_serving": 9}


def test_a_daily_invoice_is_compared_by_day_and_says_how_many_hours_had_no_window() -> None:
    found = compare(
        "date,instance_type,amount,usage_quantity,unit\n2026-09-21,gpu,48,24,Hrs", *(ours(h) for h in range(10))
    )
    assert (found.grain, by_cause(found)) == ("day", {"quantity": 28})
    assert (found.rows[0].hours_without_windows, found.rows[0].our_hours) == (14, 10)


def test_a_monthly_invoice_is_compared_by_month() -> None:
    found = compare("from,to,item,total\n2026-09-01,2026-10-01,gpu,4", ours(), ours(1))
    assert (found.grain, found.difference) == ("month", 0)
    assert found.rows[0].end == datetime(2026, 10, 1, tzinfo=UTC)


def test_an_invoice_across_months_is_one_stretch() -> None:
    found = compare("from,to,item,total\n2026-08-15,2026-10-01,gpu,4", ours(), ours(1))
    assert (found.grain, found.difference, len(found.rows)) == ("invoice", 0, 1)


FOCUS = """ChargePeriodStart,ChargePeriodEnd,SkuId,BilledCost,BillingCurrency,PricingQuantity,PricingUnit,ChargeCategory
2026-09-21T14:00:00Z,2026-09-21T15:00:00Z,gpu,2,USD,1,Hours,Usage
2026-09-21T14:00:00Z,2026-09-21T15:00:00Z,gpu,0.4,USD,,,Tax
2026-09-21T14:00:00Z,2026-09-21T15:00:00Z,gpu,-0.1,USD,,,Credit
"""


def test_a_focus_invoice_is_read_and_its_tax_and_credit_are_causes() -> None:
    found = compare(FOCUS, ours())
    assert by_cause(found) == {"Tax": Decimal("0.4"), "Credit": Decimal("-0.1")}
    assert parse_invoice(FOCUS.splitlines()).currency == "USD"


def test_offsetting_causes_do_not_hide_each_other() -> None:
    """One machine billed twice, another forgotten: the sums agree, the invoice does not."""
    found = compare(HEADER + row() + row(sku="b"), ours(), ours(sku="c"))
    assert (found.difference, found.exceeds(Decimal("0.01"))) == (0, True)


@pytest.mark.parametrize(("tolerance", "exceeds"), [("0.25", False), ("0.24", True)])
def test_the_tolerance_is_a_share_of_the_invoice(tolerance: str, exceeds: bool) -> None:
    assert compare(HEADER + row(), ours(share=0.75)).exceeds(Decimal(tolerance)) is exceeds


def test_minutes_and_seconds_are_hours_and_tokens_are_not() -> None:
    lines = "start,sku,cost,quantity,unit\n" + "\n".join(
        f"2026-09-21T14:00Z,gpu,1,{n},{unit}" for n, unit in ((90, "Minutes"), (1800, "GPU-Seconds"), (5, "Tokens"))
    )
    assert [line.hours for line in parse_invoice(lines.splitlines()).lines] == [Fraction(3, 2), Fraction(1, 2), None]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty; it needs a header and a line for each charge"),
        ("start,sku,cost\n9999-12-31,gpu,1", "line 2: start: '9999-12-31' is not between 1970 and 9998"),
        ("start,sku,cost\n0001-01-01T00:00+05:00,gpu,1", "line 2: start: '0001-01-01T00:00+05:00' is not between"),
        ("start,sku,cost,hours\n2026-09-21,gpu,1,1e999999", "line 2: quantity: '1e999999' is not a plain number"),
        ("start,sku,cost\n2026-09-21,gpu,1e18", "line 2: cost: 1e18 has more than 18 digits"),
        ("start,sku,cost\n2026-09-21,gpu,1_000", "line 2: cost: '1_000' is not a plain number"),
        ("start,sku,price\n", "no column for cost; it has start, sku, price: add --column cost=NAME"),
        ("start,sku,cost\n", "it has no line with a charge"),
        ("start,sku,cost\nyesterday,gpu,1", "line 2: start: 'yesterday' is not a time such as"),
        ("start,sku,cost\n2026-09-21,gpu,$1", "line 2: cost: '$1' is not a plain number such as 1234.56"),
        ("start,sku,cost\n2026-09-21,,1", "line 2: resource: it is empty"),
        ("start,end,sku,cost\n2026-09-21,2026-09-21,gpu,1", "line 2: end: 2026-09-21 is not after the start"),
        ("start,sku,cost,currency\n2026-09-21,a,1,USD\n2026-09-21,a,1,EUR", "currency: EUR and USD in one invoice"),
    ],
)
def test_an_unreadable_invoice_names_the_line_and_the_field(text: str, says: str) -> None:
    with pytest.raises(InvoiceError) as error:
        parse_invoice(text.splitlines())
    assert says in str(error.value)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_an_invoice_from_a_spreadsheet_with_other_delimiters_is_read(delimiter: str) -> None:
    text = "\n" + (HEADER + row(14)).replace(",", delimiter)
    assert compare(text, ours(0)).difference == 0


def test_hours_of_storage_or_of_cores_are_no_hours_of_a_machine() -> None:
    units = ("Hours", "GPU-Hours", "1000 Hours", "GB-Hours", "vCPU-Hours", "Tokens")
    assert [seconds_of_unit(unit) for unit in units] == [3600, 3600, 3_600_000, None, None, None]


def test_a_time_that_says_utc_in_words_and_a_currency_in_small_letters_are_read() -> None:
    found = parse_invoice(["start,sku,cost,currency", "2026-09-21 14:00:00 UTC,gpu,2,usd"])
    assert (found.lines[0].start, found.currency) == (datetime(2026, 9, 21, 14, tzinfo=UTC), "USD")


def test_large_amounts_with_many_decimals_add_up_to_the_last_digit() -> None:
    cost = "123456789012345678.123456789123456789"
    found = compare(HEADER + row(14, cost) * 3, ours(0))
    assert found.theirs == Decimal("370370367037037034.370370367370370367")
    assert exact_sum(found.by_cause.values()) == found.difference


def test_a_long_invoice_with_many_columns_is_not_held_in_memory() -> None:
    filler = "".join(f",column {i}" for i in range(50))
    tracemalloc.start()
    try:
        read = parse_invoice(f"{HEADER if i == 0 else row(cost=str(i)).strip()}{filler}\n" for i in range(1001))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(read.lines), peak < 1000 * 2000) == (1000, True)  # bytes: all fields of a line are over 3000


def test_columns_can_be_named_by_hand() -> None:
    text = "a,b,c,cost\n2026-09-21,gpu,7,1"
    found = parse_invoice(text.splitlines(), {"start": "a", "resource": "b", "cost": "c"})
    assert (found.lines[0].cost, found.columns) == (7, {"start": "a", "resource": "b", "cost": "c"})
    with pytest.raises(InvoiceError, match="no column 'z' for cost"):
        parse_invoice(text.splitlines(), {"cost": "z"})


hours = st.lists(st.tuples(st.integers(0, 4), st.integers(0, FULL), st.integers(0, 10**10)), max_size=5)
lines = st.lists(
    st.tuples(st.integers(0, 4), st.decimals(-9, 99, places=2), st.none() | st.integers(0, 9)), min_size=1, max_size=6
)


@settings(deadline=None, max_examples=60)
@given(hours, lines)
def test_the_causes_of_every_row_add_up_to_its_difference(
    recorded: list[tuple[int, int, int]], billed: list[tuple[int, Decimal, int | None]]
) -> None:
    text = [HEADER, *(f"2026-09-21T{14 + h}:00Z,gpu,{cost},{'' if q is None else q}" for h, cost, q in billed)]
    mine = [OurHour(HOUR + h, "gpu", ns, cost) for h, ns, cost in recorded]
    found = reconcile(parse_invoice(text), mine)
    assert all(sum(part.amount for part in r.parts) == r.amount for r in found.rows)
    assert found.theirs == sum(cost for _, cost, _ in billed)
    assert found.ours * 10**9 == sum(cost for _, _, cost in recorded)
