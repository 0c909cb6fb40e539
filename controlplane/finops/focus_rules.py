"""The rules of FOCUS between columns: what is null together, what a charge needs, periods, quantity x price = cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from controlplane.finops.focus_columns import AI_SUBCATEGORIES, CUSTOM_PREFIX, sku_price_keys
from controlplane.finops.focus_values import Value, is_moment, pairs

Columns = Mapping[str, Sequence[Value]]

PRODUCT_TOLERANCE = Decimal("2e-9")
"""Quantity x unit price may miss the cost by so much: a cell's share of its hour's bill is in whole nano-units."""

TOGETHER = (
    ("ConsumedQuantity", "ConsumedUnit"),
    ("PricingQuantity", "PricingUnit"),
    ("CommitmentDiscountQuantity", "CommitmentDiscountUnit"),
    ("CommitmentDiscountId", "CommitmentDiscountCategory"),
    ("CommitmentDiscountId", "CommitmentDiscountType"),
    ("BillingAccountId", "BillingAccountType"),
    ("SubAccountId", "SubAccountName"),
    ("SubAccountId", "SubAccountType"),
    ("RegionId", "RegionName"),
    ("ResourceId", "ResourceType"),
)
"""Null in one is null in the other."""

ONLY_WITH = (
    ("CapacityReservationId", "CapacityReservationStatus"),
    ("CommitmentDiscountId", "CommitmentDiscountName"),
    ("CommitmentDiscountId", "CommitmentDiscountStatus"),
    ("ResourceId", "ResourceName"),
    ("SkuId", "SkuMeter"),
    ("SkuPriceId", "SkuPriceDetails"),
)
"""Null in the first is null in the second."""

CHARGED = (
    "ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "SkuId", "SkuPriceId",
)  # fmt: skip
"""Not null for a usage or a purchase that is no correction, null for a tax."""

PRODUCTS = (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost"))


def rule_problems(found: Columns, version: str) -> Iterator[str]:
    """One line for each rule between columns that does not hold."""
    yield from _null_rules(found)
    yield from _charge_rules(found)
    yield from _period_rules(found)
    for price, cost in PRODUCTS:
        yield from _product_rule(found, price, cost)
    own = sku_price_keys(version)
    for text in set(found.get("SkuPriceDetails", ())) - {None}:
        strange = [k for k, _ in pairs(str(text)) or () if k not in own and not k.startswith(CUSTOM_PREFIX)]
        if strange:
            yield f"SkuPriceDetails: {strange[0]}: no key of FOCUS {version}; one's own start with {CUSTOM_PREFIX}"
    services = set(zip(found.get("ServiceCategory", ()), found.get("ServiceSubcategory", ()), strict=False))
    for category, subcategory in services:
        if (category == "AI and Machine Learning") != (subcategory in AI_SUBCATEGORIES):
            yield f"ServiceSubcategory: {subcategory!r} is not one of {category!r}"


def _null_rules(found: Columns) -> Iterator[str]:
    for rules, is_both_ways in ((TOGETHER, True), (ONLY_WITH, False)):
        for first, second in rules:
            if first not in found or second not in found:
                continue
            for i, (a, b) in enumerate(zip(found[first], found[second], strict=True)):
                if (a is None and b is not None) or (is_both_ways and a is not None and b is None):
                    without, given = (first, second) if a is None else (second, first)
                    yield f"{without}: row {i}: null although {given} is not"
                    break


def _charge_rules(found: Columns) -> Iterator[str]:
    category, charge_class = found.get("ChargeCategory", ()), found.get("ChargeClass", ())
    charged = [c in ("Usage", "Purchase") and k is None for c, k in zip(category, charge_class, strict=False)]
    taxed = [c == "Tax" for c in category]
    for name in CHARGED:
        for i, (value, is_charged, is_tax) in enumerate(zip(found.get(name, ()), charged, taxed, strict=False)):
            if is_charged and value is None:
                yield f"{name}: row {i}: null in a usage or purchase"
                break
            if is_tax and value is not None:
                yield f"{name}: row {i}: not null in a tax"
                break
    status = found.get("CommitmentDiscountStatus", (None,) * len(category))
    used = [c == "Usage" and s != "Unused" for c, s in zip(category, status, strict=False)]
    consumed = zip(found.get("ConsumedQuantity", ()), used, charge_class, strict=False)
    for i, (value, is_used, correction) in enumerate(consumed):
        if (value is None) == is_used and (correction is None or value is not None):
            yield f"ConsumedQuantity: row {i}: {'null in a usage' if is_used else 'not null outside of usage'}"
            break
    for i, pair in enumerate(zip(category, found.get("ChargeFrequency", ()), strict=False)):
        if pair == ("Purchase", "Usage-Based"):
            yield f"ChargeFrequency: row {i}: a purchase is never Usage-Based"
            break


def _moments(found: Columns, name: str) -> list[datetime | None]:
    def moment(value: Value) -> datetime | None:
        if isinstance(value, datetime):
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        return datetime.fromisoformat(str(value)) if is_moment(value) else None

    known = {value: moment(value) for value in set(found.get(name, ()))}
    return [known[value] for value in found.get(name, ())]


def _period_rules(found: Columns) -> Iterator[str]:
    """Ends are exclusive: after their starts; and a usage lies in its billing period."""
    start, end = _moments(found, "ChargePeriodStart"), _moments(found, "ChargePeriodEnd")
    first, last = _moments(found, "BillingPeriodStart"), _moments(found, "BillingPeriodEnd")
    for names, bounds in (
        (("ChargePeriodEnd", "ChargePeriodStart"), zip(start, end, strict=False)),
        (("BillingPeriodEnd", "BillingPeriodStart"), zip(first, last, strict=False)),
    ):
        for i, (a, b) in enumerate(bounds):
            if a is not None and b is not None and b <= a:
                yield f"{names[0]}: row {i}: not after {names[1]}; an end is exclusive"
                break
    for i, (a, b, inside, until) in enumerate(zip(start, end, first, last, strict=False)):
        if a and b and inside and until and not (inside <= a and b <= until):
            yield f"ChargePeriodStart: row {i}: outside of its billing period"
            break


def _product_rule(found: Columns, price: str, cost: str) -> Iterator[str]:
    rows = zip(found.get("PricingQuantity", ()), found.get(price, ()), found.get(cost, ()), strict=False)
    classes = found.get("ChargeClass", ())
    for i, row in enumerate(rows):
        if None in row or (i < len(classes) and classes[i] is not None):
            continue
        try:
            quantity, unit_price, amount = (v if isinstance(v, Decimal) else Decimal(str(v)) for v in row)
            is_off = abs(quantity * unit_price - amount) > PRODUCT_TOLERANCE
        except ArithmeticError:
            continue  # no number: its own column says so
        if is_off:
            yield f"{cost}: row {i}: {amount} is not PricingQuantity x {price} = {quantity * unit_price}"
            return
