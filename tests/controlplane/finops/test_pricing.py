"""Prices are exact, dated and sourced; what the sheet does not say is unpriced."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.pricing import BASES, NANO, Basis, PriceError, PriceSheet, load_prices, parse_prices

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


def test_overlapping_prices_are_refused_with_the_day_and_both_lines() -> None:
    (problem,) = problems_of(sheet_text(ENTRY, {**ENTRY, "effective_from": "2026-03-01"}))
    assert problem.startswith("prices.yaml:3: effective_to: gpu (on_demand) has two prices from 2026-03-01 on")
    assert "the other is on line 10" in problem


def test_every_price_that_a_long_one_overlaps_is_refused() -> None:
    days = (("2026-03-01", "2026-04-01"), ("2026-05-01", "2026-06-01"))
    inside = [{**ENTRY, "effective_from": begin, "effective_to": end} for begin, end in days]
    found = problems_of(sheet_text(ENTRY, *inside))
    assert [f"from {begin} on" in problem for problem, (begin, _) in zip(found, days, strict=True)] == [True, True]


def test_two_currencies_in_a_sheet_are_refused() -> None:
    text = sheet_text(ENTRY, {**ENTRY, "sku": "cpu", "currency": "EUR"})
    assert [p for p in problems_of(text) if "EUR, USD" in p]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("basis", "ondemand", 'is not one of on_demand, reserved, spot, owned; did you mean "on_demand"?'),
        ("currency", "dollars", "not a three-letter code"),
        ("per_hour", "a lot", "not a plain number such as 2.95"),
        ("per_hour", "-1", "not between 0 and 1000000"),
        ("per_hour", "nan", "not a plain number"),
        ("per_hour", "0.0000000001", "more than nine decimals"),
        ("as_of", "yesterday", "not a date"),
        ("effective_to", "2025-01-01", "must be after effective_from"),
        ("source", "", "is empty"),
        ("source", "[a, b]", "must be a single value, not a list"),
        ("gpus", "8", "unknown field; known are"),
        ("efective_to", "2026-05-01", 'unknown field; did you mean "effective_to"?'),
        ("effective_to", "2026-05-01T10:30", "write 2026-05-01T10:00 or 2026-05-01T11:00"),
        ("effective_to", "2026-05-01T05:30+05:45", "write 2026-04-30T23:00 or 2026-05-01"),
        ("effective_from", "0001-01-01T00:30+05:00", "is not between 1900-01-01 and 9999-12-31T23:00"),
        ("effective_to", "9999-12-31T23:59:59", "is not between 1900-01-01 and 9999-12-31T23:00"),
        ("per_hour", '"\u0663"', "not a plain number"),
        ("sku", '" gpu"', "is no name"),
        ("sku", '"a\\0b"', "is no name"),
        ("source", '"a\\0b"', "has a NUL in it"),
        ("power_w", "700", "a rented hour has its electricity in it, adding it would bill it twice"),
        ("electricity_per_kwh", "0.1", "a rented hour has its electricity in it"),
        ("capex", "30000", "is for basis owned only; give per_hour"),
    ],
)
def test_a_bad_field_is_named_with_its_line_and_what_is_wrong(field: str, value: str, says: str) -> None:
    entry = {**ENTRY, field: value}
    (problem,) = problems_of(sheet_text(entry))
    assert problem.startswith(f"prices.yaml:{3 + list(entry).index(field)}: prices[0].{field}: ")
    assert says in problem


def test_a_missing_field_is_named_at_the_line_where_its_price_begins() -> None:
    entry = {key: value for key, value in ENTRY.items() if key != "per_hour"}
    assert problems_of(sheet_text(entry)) == ("prices.yaml:3: prices[0].per_hour: is missing",)


def test_all_problems_of_a_sheet_come_at_once_in_the_order_of_the_file() -> None:
    text = sheet_text({**ENTRY, "per_hour": "x", "basis": "z"}, {**ENTRY, "sku": "cpu", "basis": "y"})
    assert [p.split(": ")[1] for p in problems_of(text)] == ["prices[0].basis", "prices[0].per_hour", "prices[1].basis"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: 2\nprices: []", "version: 2 is not allowed"),
        ("version: 1\nprices: 5", "prices: must be a list"),
        ("version: 1\nprices: [5]", "must be a mapping"),
        ("version: 1\nprices: []\nextra: 1", "extra: unknown field"),
        ("version: 1\nprices: []\nstale_after: 1", 'did you mean "stale_after_days"?'),
        ("- a", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_sheet_of_another_shape_is_refused(text: str, says: str) -> None:
    assert says in problems_of(text)[0]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PriceError, match=r"nowhere\.yaml: cannot read the price sheet: No such file"):
        load_prices(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("name", ["prices.yaml", "prices.example.yaml"])
def test_a_shipped_sheet_is_valid_and_prices_this_kind_of_machine(name: str) -> None:
    sheet = load_prices(Path(__file__).parents[3] / name)
    assert sheet.price_at("cpu-2core", "on_demand", at("2026-11-29")) is not None


def test_the_example_sheet_has_every_basis_and_a_source_for_each_line() -> None:
    sheet = load_prices(Path(__file__).parents[3] / "prices.example.yaml")
    assert {p.basis for p in sheet.prices} == set(BASES)
    assert [p for p in sheet.prices if p.owned is not None]
    assert all(p.source and p.region for p in sheet.prices)


def test_a_missing_period_between_two_prices_is_remarked_with_its_dates() -> None:
    text = sheet_text({**ENTRY, "effective_to": "2026-02-01"}, {**ENTRY, "effective_from": "2026-03-01T06:00"})
    (remark,) = parse_prices(text).remarks(at("2026-06-01"))
    assert remark == (3, "effective_to", "gpu (on_demand) has no price from 2026-02-01 to 2026-03-01T06:00: "
                      "these hours are unpriced")  # fmt: skip


def test_a_price_that_ended_without_another_is_remarked_once_it_did() -> None:
    sheet = parse_prices(sheet_text({**ENTRY, "effective_to": "2026-07-01"}))
    assert sheet.remarks(at("2026-06-30")) == ()
    assert [r.message for r in sheet.remarks(at("2026-07-02"))] == [
        "gpu (on_demand) has no price since 2026-07-01: these hours are unpriced"
    ]


def test_a_price_in_force_that_was_read_too_long_ago_is_remarked() -> None:
    text = sheet_text(ENTRY)
    old, later = at("2026-11-16"), at("2026-11-17")  # 180 and 181 days after 2026-05-20
    assert parse_prices(text).remarks(old) == ()
    assert "was read on 2026-05-20, over 180 days ago" in parse_prices(text).remarks(later)[0].message
    patient = text.replace("prices:", "stale_after_days: 365\nprices:")
    assert parse_prices(patient).remarks(later) == ()


def test_a_reading_that_is_yet_to_come_is_remarked() -> None:
    assert "which is to come" in parse_prices(sheet_text(ENTRY)).remarks(at("2026-05-01"))[0].message


def test_a_price_that_is_built_in_code_must_begin_on_a_whole_hour_too() -> None:
    price = parse_prices(sheet_text(ENTRY)).prices[0]
    with pytest.raises(PriceError, match="write 2026-01-01 or 2026-01-01T01:00"):
        PriceSheet((dataclasses.replace(price, effective_from=price.effective_from + 60),))


SKUS = ("gpu", "gpu-a", "cpu")
START = 490_000
HOURS = st.integers(START, START + 40)


@st.composite
def sheets(draw: st.DrawFn) -> PriceSheet:
    """Prices of three skus on two bases in random stretches of hours, without overlaps."""
    template, prices = parse_prices(sheet_text(ENTRY)).prices[0], []
    for sku, basis in itertools.product(SKUS, ("on_demand", "spot")):
        edges = sorted(draw(st.sets(HOURS, max_size=8)))
        edges = edges[: len(edges) - len(edges) % 2]
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            nano = draw(st.integers(0, 10**12))
            prices.append(dataclasses.replace(
                template, sku=sku, basis=cast(Basis, basis), per_hour=Decimal(nano) / NANO,
                effective_from=begin * 3600.0, effective_to=end * 3600.0))  # fmt: skip
    return PriceSheet(tuple(draw(st.permutations(prices))))


@settings(deadline=None, max_examples=40)
@given(sheets(), st.data())
def test_a_price_is_the_one_that_a_scan_of_all_lines_finds(sheet: PriceSheet, data: st.DataObject) -> None:
    for sku in SKUS:
        when = data.draw(HOURS) * 3600.0 + data.draw(st.sampled_from([0.0, 0.5, 3599.999]))
        found = [p for p in sheet.prices if p.sku == sku and p.basis == "spot" and p.covers(when)]
        assert sheet.price_at(sku, "spot", when) == (found[0] if found else None)


@settings(deadline=None, max_examples=40)
@given(sheets())
def test_every_hour_is_priced_or_in_a_gap(sheet: PriceSheet) -> None:
    end = START + 41
    gaps = {
        (gap.before.sku, gap.before.basis, h)
        for gap in sheet.gaps()
        for h in range(int(gap.start // 3600), end if gap.end is None else int(gap.end // 3600))
    }
    for p in sheet.prices:
        for h in range(int(p.effective_from // 3600), end):
            assert (sheet.price_at(p.sku, p.basis, h * 3600.0) is None) == ((p.sku, p.basis, h) in gaps)


@settings(deadline=None, max_examples=20)
@given(sheets(), st.integers(1, 400))
def test_a_sheet_that_was_written_down_reads_back_equal(sheet: PriceSheet, days: int) -> None:
    sheet = dataclasses.replace(sheet, stale_after_days=days)
    again = parse_prices(sheet.written)
    assert again == sheet
    assert again.revision == sheet.revision
