"""The conformance check, column by column, against a transcription of FOCUS 1.2 that is not the code's own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from controlplane.finops.focus_check import from_text, problems
from controlplane.finops.focus_columns import columns

# name, s(tring) d(ecimal) t(ime) j(son), M(andatory) C(onditional) R(ecommended), null or not
TABLE = """
AvailabilityZone s R null|BilledCost d M -|BillingAccountId s M -|BillingAccountName s M null
BillingAccountType s C null|BillingCurrency s M -|BillingPeriodEnd t M -|BillingPeriodStart t M -
CapacityReservationId s C null|CapacityReservationStatus s C null|ChargeCategory s M -|ChargeClass s M null
ChargeDescription s M null|ChargeFrequency s R -|ChargePeriodEnd t M -|ChargePeriodStart t M -
CommitmentDiscountCategory s C null|CommitmentDiscountId s C null|CommitmentDiscountName s C null
CommitmentDiscountQuantity d C null|CommitmentDiscountStatus s C null|CommitmentDiscountType s C null
CommitmentDiscountUnit s C null|ConsumedQuantity d C null|ConsumedUnit s C null|ContractedCost d M -
ContractedUnitPrice d C null|EffectiveCost d M -|InvoiceId s R null|InvoiceIssuerName s M -|ListCost d M -
ListUnitPrice d C null|PricingCategory s C null|PricingCurrency s C -|PricingCurrencyContractedUnitPrice d C null
PricingCurrencyEffectiveCost d C -|PricingCurrencyListUnitPrice d C null|PricingQuantity d M null|PricingUnit s M null
ProviderName s M -|PublisherName s M -|RegionId s C null|RegionName s C null|ResourceId s C null
ResourceName s C null|ResourceType s C null|ServiceCategory s M -|ServiceName s M -|ServiceSubcategory s R -
SkuId s C null|SkuMeter s C null|SkuPriceDetails j C null|SkuPriceId s C null|SubAccountId s C null
SubAccountName s C null|SubAccountType s C null|Tags j C null
"""
COLUMNS = [entry.split() for line in TABLE.split("\n") for entry in line.split("|") if entry]
MANDATORY = [name for name, _, level, _ in COLUMNS if level == "M"]

# One usage row with every column of FOCUS 1.2 that can be filled in a usage.
ROW: dict[str, Any] = {
    "AvailabilityZone": "eu-1a", "BilledCost": "0.25", "BillingAccountId": "a1", "BillingAccountName": "Acme",
    "BillingAccountType": "Installation", "BillingCurrency": "USD", "BillingPeriodEnd": "2026-10-01T00:00:00Z",
    "BillingPeriodStart": "2026-09-01T00:00:00Z", "CapacityReservationId": "cr1", "CapacityReservationStatus": "Used",
    "ChargeCategory": "Usage", "ChargeClass": None, "ChargeDescription": "tokens", "ChargeFrequency": "Usage-Based",
    "ChargePeriodEnd": "2026-09-21T15:00:00Z", "ChargePeriodStart": "2026-09-21T14:00:00Z",
    "CommitmentDiscountCategory": "Spend", "CommitmentDiscountId": "cd1", "CommitmentDiscountName": "one year",
    "CommitmentDiscountQuantity": "1.5", "CommitmentDiscountStatus": "Used", "CommitmentDiscountType": "Reservation",
    "CommitmentDiscountUnit": "Hours", "ConsumedQuantity": "500000", "ConsumedUnit": "Tokens", "ContractedCost": "0.5",
    "ContractedUnitPrice": "1", "EffectiveCost": "0.2", "InvoiceId": "in1", "InvoiceIssuerName": "Acme",
    "ListCost": "1", "ListUnitPrice": "2", "PricingCategory": "Committed", "PricingCurrency": "USD",
    "PricingCurrencyContractedUnitPrice": "1", "PricingCurrencyEffectiveCost": "0.2",
    "PricingCurrencyListUnitPrice": "2", "PricingQuantity": "0.5", "PricingUnit": "1000000 Tokens",
    "ProviderName": "Acme", "PublisherName": "Acme", "RegionId": "eu-1", "RegionName": "Europe", "ResourceId": "r1",
    "ResourceName": "box", "ResourceType": "GPU", "ServiceCategory": "AI and Machine Learning",
    "ServiceName": "Kadence", "ServiceSubcategory": "Generative AI", "SkuId": "s1", "SkuMeter": "Output Tokens",
    "SkuPriceDetails": '{"GpuCount": 8, "x_ModelId": "m"}', "SkuPriceId": "s1/p", "SubAccountId": "t1",
    "SubAccountName": "Team", "SubAccountType": "Tenant", "Tags": '{"cohort": "json"}',
}  # fmt: skip
ALLOWED = {
    "CapacityReservationStatus", "ChargeCategory", "ChargeClass", "ChargeFrequency", "CommitmentDiscountCategory",
    "CommitmentDiscountStatus", "PricingCategory", "ServiceCategory", "ServiceSubcategory",
}  # fmt: skip
NOT_NULL = [name for name, *_, nulls in COLUMNS if nulls == "-"]


def check(row: dict[str, Any], version: str = "1.2") -> list[str]:
    return problems({name: [value] for name, value in row.items()}, version)


def changed(**values: Any) -> list[str]:
    return check({**ROW, **values})


def named(lines: Sequence[str]) -> set[str]:
    return {line.split(":")[0] for line in lines}


def test_the_table_has_the_57_columns_of_1_2_with_their_type_level_and_nullability() -> None:
    short = {"string": "s", "decimal": "d", "datetime": "t", "json": "j"}
    ours = [[c.name, short[c.type], c.level[0].upper(), "null" if c.is_nullable else "-"] for c in columns("1.2")]
    assert ours == COLUMNS
    assert (len(COLUMNS), len(MANDATORY)) == (57, 21)


def test_a_row_with_every_column_conforms() -> None:
    assert sorted(ROW) == [name for name, *_ in COLUMNS]
    assert check(ROW) == []


def test_the_order_of_columns_does_not_matter() -> None:
    assert check(dict(reversed(ROW.items()))) == []


@pytest.mark.parametrize("name", MANDATORY)
def test_a_mandatory_column_must_be_present(name: str) -> None:
    found = check({key: value for key, value in ROW.items() if key != name})
    assert f"{name}: missing; it is mandatory in FOCUS 1.2" in found


@pytest.mark.parametrize("name", [name for name, _, level, _ in COLUMNS if level != "M"])
def test_another_column_may_be_absent(name: str) -> None:
    assert check({key: value for key, value in ROW.items() if key != name}) == []


@pytest.mark.parametrize("name", NOT_NULL)
def test_a_column_that_may_not_be_null_is_not(name: str) -> None:
    assert f"{name}: row 0: null, which it may not be" in changed(**{name: None})


@pytest.mark.parametrize("name", [name for name, *_ in COLUMNS])
def test_empty_text_is_not_a_way_to_say_null(name: str) -> None:
    assert name in named(changed(**{name: ""}))


@pytest.mark.parametrize("name", [name for name, kind, *_ in COLUMNS if kind == "d"])
@pytest.mark.parametrize("text", ["$1.00", "1,000.5", "1/2", "+1", "1e+3", "NaN", "ten", "0x1f"])
def test_a_decimal_is_a_plain_number(name: str, text: str) -> None:
    assert name in named(changed(**{name: text}))


@pytest.mark.parametrize("text", ["-0.25", "0.250000000", "25E-2", "25e-2"])
def test_a_decimal_may_be_negative_or_in_e_notation(text: str) -> None:
    assert changed(BilledCost=text) == []


@pytest.mark.parametrize("name", [name for name, kind, *_ in COLUMNS if kind == "t"])
@pytest.mark.parametrize(
    "text",
    ["2026-09-21 14:00:00Z", "2026-09-21T14:00:00", "2026-09-21T14:00:00+00:00", "2026-09-21", "2026-13-01T00:00:00Z"],
)
def test_a_time_is_iso_8601_in_utc_with_z(name: str, text: str) -> None:
    assert name in named(changed(**{name: text}))


def test_a_typed_time_in_another_zone_or_without_one_is_refused() -> None:
    paris = datetime(2026, 9, 21, 14, tzinfo=timezone(timedelta(hours=2)))
    assert named(changed(ChargePeriodStart=paris)) == {"ChargePeriodStart"}
    assert "ChargePeriodStart" in named(changed(ChargePeriodStart=datetime(2026, 9, 21, 14)))


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_column_with_allowed_values_has_no_other(name: str) -> None:
    assert name in named(changed(**{name: "Something"}))


def test_charge_class_is_null_or_correction() -> None:
    assert changed(ChargeClass="Correction") == []
    assert named(changed(ChargeClass="Refund")) == {"ChargeClass"}


@pytest.mark.parametrize("name", ["PricingUnit", "ConsumedUnit", "CommitmentDiscountUnit"])
@pytest.mark.parametrize(("unit", "is_good"), [("tokens", False), ("1e6 Tokens", False), ("GB/Hour", True)])
def test_a_unit_is_a_capitalised_noun(name: str, unit: str, is_good: bool) -> None:
    assert (name not in named(changed(**{name: unit}))) is is_good


def test_a_currency_has_three_capital_letters() -> None:
    assert named(changed(BillingCurrency="dollars")) == {"BillingCurrency"}


@pytest.mark.parametrize("name", ["ListUnitPrice", "ContractedUnitPrice"])
def test_a_unit_price_is_not_negative(name: str) -> None:
    assert name in named(changed(**{name: "-1"}))


@pytest.mark.parametrize("name", ["Tags", "SkuPriceDetails"])
@pytest.mark.parametrize("text", ["cohort=json", '["a"]', '{"x_A": {"b": 1}}', '{"x_A": [1]}', '{"x_A": 1, "x_A": 2}'])
def test_key_values_are_one_flat_json_object_without_repetition(name: str, text: str) -> None:
    assert name in named(changed(**{name: text}))


def test_a_key_of_ones_own_in_sku_price_details_starts_with_x() -> None:
    assert "SkuPriceDetails: ModelId: no key of FOCUS 1.2" in changed(SkuPriceDetails='{"ModelId": "m"}')[0]


@pytest.mark.parametrize("name", ["EnergyJoules", "energy_joules", "x_energy", "X_Energy", "ListCosts"])
def test_a_column_that_is_not_focus_has_an_x_prefix(name: str) -> None:
    assert named(changed(**{name: "1"})) == {name}
    assert changed(x_EnergyJoules="1") == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ConsumedQuantity", "ConsumedUnit"),
        ("PricingQuantity", "PricingUnit"),
        ("CommitmentDiscountQuantity", "CommitmentDiscountUnit"),
        ("CommitmentDiscountId", "CommitmentDiscountType"),
        ("SubAccountId", "SubAccountName"),
        ("SubAccountId", "SubAccountType"),
        ("RegionId", "RegionName"),
        ("ResourceId", "ResourceType"),
        ("BillingAccountId", "BillingAccountType"),
    ],
)
def test_what_is_null_together_is_not_null_alone(first: str, second: str) -> None:
    assert f"{second}: row 0: null although {first} is not" in changed(**{second: None})
    assert f"{first}: row 0: null although {second} is not" in changed(**{first: None})


@pytest.mark.parametrize(
    ("first", "second"), [("SkuPriceId", "SkuPriceDetails"), ("SkuId", "SkuMeter"), ("ResourceId", "ResourceName")]
)
def test_a_detail_needs_the_thing_it_is_of(first: str, second: str) -> None:
    assert f"{first}: row 0: null although {second} is not" in changed(**{first: None})
    assert changed(**{second: None}) == []


@pytest.mark.parametrize("name", ["SkuId", "SkuPriceId", "PricingCategory", "ListUnitPrice", "ContractedUnitPrice"])
def test_a_usage_has_a_price(name: str) -> None:
    assert f"{name}: row 0: null in a usage or purchase" in changed(**{name: None})


def test_a_correction_may_lack_a_price() -> None:
    assert changed(ChargeClass="Correction", ListUnitPrice=None, PricingCategory=None) == []


def test_a_tax_has_no_price() -> None:
    found = named(changed(ChargeCategory="Tax"))
    assert {"ListUnitPrice", "PricingQuantity", "SkuId", "ConsumedQuantity"} <= found


def test_a_usage_has_a_quantity_unless_it_is_an_unused_commitment() -> None:
    without = {"ConsumedQuantity": None, "ConsumedUnit": None}
    assert changed(**without) == ["ConsumedQuantity: row 0: null in a usage"]
    assert changed(**without, CommitmentDiscountStatus="Unused") == []


def test_a_purchase_is_not_usage_based() -> None:
    found = changed(ChargeCategory="Purchase", ConsumedQuantity=None, ConsumedUnit=None)
    assert found == ["ChargeFrequency: row 0: a purchase is never Usage-Based"]


def test_ends_are_exclusive() -> None:
    assert named(changed(ChargePeriodEnd=ROW["ChargePeriodStart"])) == {"ChargePeriodEnd"}
    assert "BillingPeriodEnd" in named(changed(BillingPeriodEnd=ROW["BillingPeriodStart"]))


def test_a_charge_that_ends_with_its_billing_period_is_in_it_and_an_hour_later_it_is_not() -> None:
    last = {"ChargePeriodStart": "2026-09-30T23:00:00Z", "ChargePeriodEnd": "2026-10-01T00:00:00Z"}
    assert changed(**last) == []
    later = {"ChargePeriodStart": "2026-10-01T00:00:00Z", "ChargePeriodEnd": "2026-10-01T01:00:00Z"}
    assert changed(**later) == ["ChargePeriodStart: row 0: outside of its billing period"]


@pytest.mark.parametrize("name", ["ListCost", "ContractedCost"])
def test_quantity_times_unit_price_is_the_cost(name: str) -> None:
    assert named(changed(**{name: str(Decimal(ROW[name]) + Decimal("1e-8"))})) == {name}


def test_a_subcategory_is_of_its_category() -> None:
    assert named(changed(ServiceCategory="Compute")) == {"ServiceSubcategory"}


def test_a_problem_names_the_row_where_it_first_is() -> None:
    found = problems(
        {name: [value] * 3 for name, value in {**ROW, "BilledCost": "1"}.items()} | {"BilledCost": ["1", "1", None]}
    )
    assert found == ["BilledCost: row 2: null, which it may not be"]


def test_rows_of_a_csv_file_have_null_for_an_empty_field() -> None:
    assert from_text([{"a": "", "b": "1"}, {"a": "x", "b": "2"}]) == {"a": [None, "x"], "b": ["1", "2"]}
    assert from_text([]) == {}


def test_1_4_has_the_allocation_columns_and_no_provider_or_publisher() -> None:
    before, after = {c.name for c in columns("1.2")}, {c.name for c in columns("1.4")}
    assert before - after == {"ProviderName", "PublisherName"}
    assert {"ServiceProviderName", "HostProviderName", "AllocatedMethodId", "AllocatedTags"} <= after - before
    moved = {key: value for key, value in ROW.items() if key not in ("ProviderName", "PublisherName")}
    assert check({**moved, "ServiceProviderName": "Acme", "HostProviderName": "Acme"}, "1.4") == []
    assert named(check(ROW, "1.4")) == {"ProviderName", "PublisherName", "ServiceProviderName", "HostProviderName"}


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"focus_version: '1\.3' is none of 1\.2, 1\.4"):
        columns("1.3")


def test_a_typed_value_that_is_no_number_is_refused() -> None:
    assert named(changed(EffectiveCost=Decimal("Infinity"))) == {"EffectiveCost"}
    assert changed(EffectiveCost=Decimal("1"), ChargePeriodStart=datetime(2026, 9, 21, 14, tzinfo=UTC)) == []
