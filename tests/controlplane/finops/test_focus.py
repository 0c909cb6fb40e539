"""FOCUS rows from billed cells: one hour by hand, the four costs, and the sums for random hours."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.attribution import NS_PER_SECOND, cost_by_part
from controlplane.finops.export_cells import machine_hours
from controlplane.finops.focus import FocusSource, focus_rows
from controlplane.finops.focus_check import problems
from controlplane.finops.focus_fields import fields
from controlplane.finops.pricing import Price, PriceSheet
from controlplane.store.cost_rows import CostCell

HOUR = 497_222  # 2026-09-21T14:00Z
AT = HOUR * 3600.0


def price(basis: str, per_hour: str, **changes: Any) -> Price:
    """3.6 an hour is a thousandth a second."""
    values = {"effective_from": 0.0, **changes}
    return Price("gpu", basis, "USD", Decimal(per_hour), "", "test", date(2026, 9, 1), **values)  # type: ignore[arg-type]


ON_DEMAND = price("on_demand", "3.6")
SHEET = PriceSheet((ON_DEMAND, price("reserved", "1.8")))


def cell(direction: str = "output", seconds: float = 20, **changes: Any) -> CostCell:
    ns = round(seconds * NS_PER_SECOND)
    is_idle = direction == "idle"
    values: dict[str, Any] = {
        "hour": HOUR, "sku": "gpu", "model": "m", "cohort": None if is_idle else "json",
        "tenant": None if is_idle else "acme", "direction": direction, "ns": ns, "wasted_ns": 0,
        "cost_nano": ns // 1000, "wasted_cost_nano": 0, "uj": None, "wasted_uj": None, "energy_source": "none",
        "tokens": 0, "steps": 0, "planned_k_steps": 0, "draft_tokens": 0, "accepted_tokens": 0, "requests": 0,
    }  # fmt: skip
    return CostCell(**{**values, **changes})


TINY = (
    cell("input", 10, tokens=2000, uj=1_000_000, energy_source="counter"),
    cell(
        "output", 20, tokens=500, steps=200, planned_k_steps=700, draft_tokens=600, accepted_tokens=350, requests=3,
        wasted_cost_nano=5_000_000, uj=2_500_000, wasted_uj=600_000, energy_source="counter",
    ),
    cell("idle", 70, uj=7_000_000, energy_source="counter"),
)  # fmt: skip


def rows(cells: Any = TINY, version: str = "1.2", **source: Any) -> list[dict[str, Any]]:
    given = FocusSource(**{"prices": SHEET, "basis": "on_demand", "version": version, **source})
    names = [field.name for field in fields(version)]
    return [dict(zip(names, row, strict=True)) for group in machine_hours(cells) for row in focus_rows(given, group)]


def test_a_tiny_hour_is_the_hand_computed_one() -> None:
    first, second, idle = rows(policy_in=lambda hour: "r1", carbon=lambda uj, at: Decimal(uj or 0).scaleb(-6))
    assert first == {
        "BilledCost": Decimal("0.01"),
        "BillingAccountId": "kadence",
        "BillingAccountName": "kadence",
        "BillingAccountType": "Installation",
        "BillingCurrency": "USD",
        "BillingPeriodEnd": datetime(2026, 10, 1, tzinfo=UTC),
        "BillingPeriodStart": datetime(2026, 9, 1, tzinfo=UTC),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": "Input Tokens of m on gpu for json",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": datetime(2026, 9, 21, 15, tzinfo=UTC),
        "ChargePeriodStart": datetime(2026, 9, 21, 14, tzinfo=UTC),
        "ConsumedQuantity": Decimal(2000),
        "ConsumedUnit": "Tokens",
        "ContractedCost": Decimal("0.005"),
        "ContractedUnitPrice": Decimal("2.5"),
        "EffectiveCost": Decimal("0.005"),
        "InvoiceId": None,
        "InvoiceIssuerName": "Kadence",
        "ListCost": Decimal("0.01"),
        "ListUnitPrice": Decimal(5),
        "PricingCategory": "Standard",
        "PricingQuantity": Decimal("0.002"),
        "PricingUnit": "1000000 Tokens",
        "ProviderName": "Kadence",
        "PublisherName": "Kadence",
        "RegionId": None,
        "RegionName": None,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Kadence",
        "ServiceSubcategory": "Generative AI",
        "SkuId": "gpu/m/input-tokens",
        "SkuMeter": "Input Tokens",
        "SkuPriceDetails": '{"x_ModelId": "m", "x_MachineType": "gpu", "x_TokenDirection": "Input"}',
        "SkuPriceId": "gpu/m/input-tokens/on_demand",
        "SubAccountId": "acme",
        "SubAccountName": "acme",
        "SubAccountType": "Tenant",
        "Tags": '{"cohort": "json"}',
        "x_AcceptedDraftTokens": None,
        "x_BilledBasis": "on_demand",
        "x_CarbonGrams": Decimal(1),
        "x_ContractedBasis": "reserved",
        "x_DraftTokens": None,
        "x_EffectiveBasis": "reserved",
        "x_EnergyJoules": Decimal(1),
        "x_EnergySource": "counter",
        "x_IdleShare": Decimal("0.7"),
        "x_ListBasis": "on_demand",
        "x_MachineSeconds": Decimal(10),
        "x_MeanK": None,
        "x_PolicyVersion": "r1",
        "x_RejectedDraftTokens": None,
        "x_Requests": None,
        "x_WastedCost": Decimal(0),
        "x_WastedJoules": None,
    }
    speculation = ("x_AcceptedDraftTokens", "x_DraftTokens", "x_RejectedDraftTokens", "x_MeanK", "x_WastedCost")
    assert [second[name] for name in speculation] == [350, 600, 250, Decimal("3.5"), Decimal("0.005")]
    assert (second["ConsumedQuantity"], second["ListUnitPrice"], second["x_WastedJoules"]) == (500, 40, Decimal("0.6"))
    assert (idle["BilledCost"], idle["PricingUnit"], idle["ListUnitPrice"]) == (
        Decimal("0.07"),
        "Hours",
        Decimal("3.6"),
    )
    assert (idle["PricingQuantity"], idle["SkuMeter"]) == (Decimal("0.019444444444444"), "Idle Hours")
    assert (idle["SubAccountId"], idle["Tags"], idle["x_DraftTokens"], idle["x_WastedCost"]) == (None, None, None, None)


@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_the_rows_conform(version: str) -> None:
    found = rows(version=version)
    assert problems({name: [row[name] for row in found] for name in found[0]}, version) == []


def test_a_row_without_a_tenant_has_no_sub_account_of_any_kind() -> None:
    (row,) = rows([cell(tenant=None, tokens=1)])
    assert [row[name] for name in ("SubAccountId", "SubAccountName", "SubAccountType")] == [None] * 3


def test_work_that_gave_no_token_is_counted_in_hours() -> None:
    """Say, a prefill whose request was counted in the hour before: its cost must not vanish with its quantity."""
    (row,) = rows([cell("input", 36)])
    assert (row["ConsumedUnit"], row["ConsumedQuantity"], row["ListUnitPrice"]) == (
        "Hours",
        Decimal("0.01"),
        Decimal("3.6"),
    )


def costs(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Cost of an hour and the basis it came from, for list, contracted, effective and billed."""
    names = ("List", "Contracted", "Effective", "Billed")
    return [(f"{row[name + 'Cost'].normalize():f}", row[f"x_{name}Basis"]) for name in names]


@pytest.mark.parametrize(
    ("basis", "others", "expected"),
    [
        ("on_demand", {}, [("3.6", "on_demand")] * 4),
        ("spot", {}, [("3.6", "spot")] * 4),
        ("reserved", {"on_demand": "5"}, [("5", "on_demand"), *[("3.6", "reserved")] * 3]),
        (
            "on_demand",
            {"reserved": "2", "owned": "1"},
            [("3.6", "on_demand"), ("2", "reserved"), ("1", "owned"), ("3.6", "on_demand")],
        ),
        (
            "reserved",
            {"on_demand": "5", "owned": "1"},
            [("5", "on_demand"), ("3.6", "reserved"), ("3.6", "reserved"), ("3.6", "reserved")],
        ),
    ],
)
def test_each_cost_takes_the_price_of_its_kind_or_says_which_stands_in(
    basis: str, others: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    sheet = PriceSheet((price(basis, "3.6"), *(price(name, amount) for name, amount in others.items())))
    (row,) = rows([cell(seconds=3600, tokens=1)], prices=sheet, basis=basis)
    assert costs(row) == expected


def test_a_negotiated_price_says_itself_what_the_list_price_is() -> None:
    sheet = PriceSheet((price("on_demand", "3.6", list_per_hour=Decimal("4.5")), price("reserved", "2")))
    (row,) = rows([cell(seconds=3600, tokens=1)], prices=sheet)
    assert costs(row)[:2] == [("4.5", "list"), ("3.6", "on_demand")]


def test_a_price_that_is_not_in_force_in_that_hour_stands_in_for_nothing() -> None:
    late = price("reserved", "1.8", effective_from=AT + 3600)
    (row,) = rows([cell(seconds=3600, tokens=1)], prices=PriceSheet((ON_DEMAND, late)))
    assert [basis for _, basis in costs(row)] == ["on_demand"] * 4


def test_an_hour_without_a_price_is_refused_and_not_written_as_zero() -> None:
    with pytest.raises(ValueError, match="gpu has no spot price on 2026-09-21"):
        rows([cell(cost_nano=None)], basis="spot")


def test_of_a_part_of_an_hour_no_idle_share_is_told() -> None:
    assert {row["x_IdleShare"] for row in rows(is_whole=False)} == {None}
    assert {row["AllocatedMethodDetails"] for row in rows(version="1.4", is_whole=False)} == {None}


def test_in_december_the_billing_period_ends_with_the_year() -> None:
    (row,) = rows([cell(hour=HOUR + 24 * 75, tokens=1)])
    assert row["BillingPeriodEnd"] == datetime(2027, 1, 1, tzinfo=UTC)


def test_1_4_says_how_the_machine_hour_was_split() -> None:
    first, second, idle = rows(version="1.4")
    elements = [json.loads(row["AllocatedMethodDetails"])["Elements"][0] for row in (first, second, idle)]
    assert [e["AllocatedRatio"] for e in elements] == [0.1, 0.2, 0.7]
    assert elements[0] == {"AllocatedRatio": 0.1, "UsageUnit": "Seconds", "UsageQuantity": 10.0}
    assert [row["AllocatedResourceId"] for row in (first, second, idle)] == ["json", "json", None]
    assert json.loads(first["SkuPriceDetails"]) == {"ModelId": "m", "x_MachineType": "gpu", "TokenDirection": "Input"}
    assert (first["ServiceProviderName"], "ProviderName" in first) == ("Kadence", False)


def test_names_that_are_not_ascii_and_quotes_stay_as_they_are() -> None:
    (row,) = rows([cell(cohort='prüfung "a"', tenant="名", tokens=1)])
    assert (json.loads(row["Tags"]), row["SubAccountName"]) == ({"cohort": 'prüfung "a"'}, "名")


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 4 * 10**12), min_size=1, max_size=6), min_size=1, max_size=3),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_the_billed_costs_of_a_file_are_the_bill_and_every_row_conforms(
    hours: list[list[int]], per_hour_nano: int, reserved_nano: int
) -> None:
    money = [Decimal(n).scaleb(-9) for n in (per_hour_nano, reserved_nano)]
    sheet = PriceSheet((price("on_demand", str(money[0])), price("reserved", str(money[1]))))
    cells = []
    for i, parts in enumerate(hours):
        for j, (ns, cost) in enumerate(zip(parts, cost_by_part(parts, per_hour_nano), strict=True)):
            direction = "idle" if j == 0 else ("input", "output")[j % 2]
            work = {"hour": HOUR + i, "ns": ns, "cost_nano": cost, "tokens": 0 if j == 0 else ns % 7}
            cells.append(cell(direction, **work))
    found = rows(cells, prices=sheet)
    assert sum(row["BilledCost"] for row in found) * 10**9 == sum(c.cost_nano or 0 for c in cells)
    reserved = sum(sum(cost_by_part(parts, reserved_nano)) for parts in hours)
    assert sum(row["ContractedCost"] for row in found) * 10**9 == reserved
    assert problems({name: [row[name] for row in found] for name in found[0]}) == []
