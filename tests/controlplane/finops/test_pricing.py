"""Prices are exact, dated and sourced; what the sheet does not say is unpriced."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from controlplane.finops.pricing import PriceError, PriceSheet, load_prices, parse_prices

ENTRY = {
    "sku": "gpu",
    "basis": "on_demand",
    "currency": "USD",
    "per_hour": "2.95",
    "source": "a page",
    "as_of": "2026-05-20",
    "effective_from": "2026-01-01",
}


def sheet_text(*entries: dict[str, str]) -> str:
    lines = ["version: 1", "prices:"]
    for entry in entries:
        lines += [f"  {'- ' if i == 0 else '  '}{key}: {value}" for i, (key, value) in enumerate(entry.items())]
    return "\n".join(lines)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def problems_of(text: str) -> tuple[str, ...]:
    with pytest.raises(PriceError) as caught:
        parse_prices(text)
    return caught.value.problems


def test_a_price_keeps_its_digits() -> None:
    price = parse_prices(sheet_text({**ENTRY, "per_hour": "0.123456789"})).prices[0]
    assert (price.per_hour, price.per_hour_nano) == (Decimal("0.123456789"), 123_456_789)


def test_a_price_begins_on_its_day_and_ends_before_its_last() -> None:
    sheet = parse_prices(sheet_text({**ENTRY, "effective_to": "2026-02-01"}))
    moments = ("2025-12-31T23:59:59", "2026-01-01", "2026-01-31T23:59:59", "2026-02-01")
    assert [sheet.price_at("gpu", "on_demand", at(m)) is not None for m in moments] == [False, True, True, False]


def test_a_new_price_takes_over_where_the_old_one_ends() -> None:
    sheet = parse_prices(
        sheet_text({**ENTRY, "effective_to": "2026-02-01"}, {**ENTRY, "per_hour": "3", "effective_from": "2026-02-01"})
    )
    prices = [sheet.price_at("gpu", "on_demand", at(m)) for m in ("2026-01-15", "2026-02-01")]
    assert [p and p.per_hour for p in prices] == [Decimal("2.95"), Decimal(3)]


def test_another_sku_and_another_basis_are_unpriced() -> None:
    sheet = parse_prices(sheet_text(ENTRY))
    assert sheet.price_at("tpu", "on_demand", at("2026-06-01")) is None
    assert sheet.price_at("gpu", "spot", at("2026-06-01")) is None


def test_the_reason_of_an_unpriced_sku_names_what_the_sheet_has() -> None:
    sheet = parse_prices(sheet_text({**ENTRY, "effective_to": "2026-02-01"}))
    when = at("2026-06-01")
    assert "close the gap" in sheet.why_unpriced("gpu", "on_demand", when)
    assert "the sheet has on_demand for it" in sheet.why_unpriced("gpu", "spot", when)
    assert "does not name it" in sheet.why_unpriced("tpu", "spot", when)


def test_a_price_of_zero_is_a_price() -> None:
    sheet = parse_prices(sheet_text({**ENTRY, "basis": "owned", "per_hour": "0"}))
    price = sheet.price_at("gpu", "owned", at("2026-06-01"))
    assert price is not None
    assert price.per_hour_nano == 0


def test_null_as_an_end_means_until_further_notice() -> None:
    assert parse_prices(sheet_text({**ENTRY, "effective_to": "null"})).prices[0].effective_to is None


def test_the_default_basis_is_the_first_that_has_a_price() -> None:
    assert parse_prices(sheet_text({**ENTRY, "basis": "owned"}, {**ENTRY, "basis": "spot"})).default_basis == "spot"
    assert PriceSheet().default_basis == "on_demand"


def test_overlapping_prices_are_refused_with_the_day() -> None:
    later = {**ENTRY, "effective_from": "2026-03-01"}
    assert [p for p in problems_of(sheet_text(ENTRY, later)) if "two prices from 2026-03-01 on" in p]


def test_two_currencies_in_a_sheet_are_refused() -> None:
    text = sheet_text(ENTRY, {**ENTRY, "sku": "cpu", "currency": "EUR"})
    assert [p for p in problems_of(text) if "EUR, USD" in p]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("basis", "cheap", "none of on_demand, reserved, spot, owned"),
        ("currency", "dollars", "not a three-letter code"),
        ("per_hour", "a lot", "not a number"),
        ("per_hour", "-1", "not between 0 and 1000000"),
        ("per_hour", "nan", "not between 0 and 1000000"),
        ("per_hour", "0.0000000001", "more than nine decimals"),
        ("as_of", "yesterday", "not a date"),
        ("effective_to", "2025-01-01", "must be after effective_from"),
        ("source", "", "missing"),
        ("source", "[a, b]", "must be one value"),
        ("gpus", "8", "unknown key"),
    ],
)
def test_a_bad_field_is_named_with_what_is_wrong(field: str, value: str, says: str) -> None:
    (problem,) = problems_of(sheet_text({**ENTRY, field: value}))
    assert problem.startswith(f"prices.yaml: prices[0].{field}: ")
    assert says in problem


def test_all_problems_of_a_sheet_come_at_once() -> None:
    text = sheet_text({**ENTRY, "per_hour": "x"}, {**ENTRY, "sku": "cpu", "basis": "y"})
    assert [p.split(":")[1].strip() for p in problems_of(text)] == ["prices[0].per_hour", "prices[1].basis"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 2\nprices: []", "version: must be 1"),
        ("version: 1\nprices: 5", "prices: must be a list"),
        ("version: 1\nprices: [5]", "must be a mapping"),
        ("version: 1\nextra: 1", "extra: unknown key"),
        ("- a", "must be a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_sheet_of_another_shape_is_refused(text: str, says: str) -> None:
    assert says in problems_of(text)[0]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r"nowhere\.yaml: cannot read the price sheet: No such file"):
        load_prices(tmp_path / "nowhere.yaml")


def test_the_example_sheet_is_valid_and_prices_this_kind_of_machine() -> None:
    sheet = load_prices(Path(__file__).parents[3] / "prices.yaml")
    assert sheet.price_at("cpu-2core", "on_demand", at("2026-11-29")) is not None
