"""The columns of FOCUS, the FinOps Open Cost and Usage Specification: 1.2 as ratified, 1.4 provisional.

One line a column: type, feature level, whether it may be null at all (rules between columns are in focus_check.py), and
what a value must look like. Source: the specification at focus.finops.org, Cost and Usage dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

Version = Literal["1.2", "1.4"]
VERSIONS: tuple[Version, ...] = get_args(Version)
PROVISIONAL: frozenset[str] = frozenset({"1.4"})
"""Written after the published text as far as it is known here; not checked against an official validator."""

Type = Literal["string", "decimal", "datetime", "json"]
Level = Literal["mandatory", "conditional", "recommended"]
Format = Literal["", "unit", "currency", "key_value", "non_negative"]

MANDATORY: Level = "mandatory"
CONDITIONAL: Level = "conditional"
RECOMMENDED: Level = "recommended"

CUSTOM_PREFIX = "x_"


class FocusColumn(NamedTuple):
    """One column. level: conditional = present when the provider has the concept. allowed: empty = any value.

    format: unit = UnitFormat, currency = ISO 4217, key_value = a flat JSON object, non_negative = a price.
    """

    name: str
    type: Type
    level: Level
    is_nullable: bool
    allowed: tuple[str, ...] = ()
    format: Format = ""


SERVICE_CATEGORIES = (
    "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
    "Identity", "Integration", "Internet of Things", "Management and Governance", "Media", "Migration", "Mobile",
    "Multicloud", "Networking", "Other", "Security", "Storage", "Web",
)  # fmt: skip

AI_SUBCATEGORIES = (
    "AI Platforms",
    "Bots",
    "Generative AI",
    "Machine Learning",
    "Natural Language Processing",
    "Other (AI and Machine Learning)",
)
"""The subcategories of our only service category; those of the others are not needed here."""

SKU_PRICE_KEYS = frozenset(
    (
        "CoreCount", "DiskMaxIops", "DiskSpace", "DiskType", "GpuCount", "InstanceSeries", "InstanceType", "MemorySize",
        "NetworkMaxIops", "NetworkMaxThroughput", "OperatingSystem", "Redundancy", "StorageClass",
    )
)  # fmt: skip
"""Keys of SkuPriceDetails that FOCUS defines; every other one starts with x_."""

AI_SKU_PRICE_KEYS = frozenset(
    ("ModelDeveloper", "ModelFamily", "ModelId", "ModelVersion", "TokenCacheAction", "TokenDirection")
)
"""Defined after 1.4; used in the provisional file, and with x_ in front in a 1.2 one."""

_STRING, _DECIMAL, _DATETIME, _JSON = get_args(Type)


def _column(
    name: str, type: Type, level: Level, nulls: str, allowed: tuple[str, ...] = (), format: Format = ""
) -> FocusColumn:
    return FocusColumn(name, type, level, nulls == "null", allowed, format)


_V1_2 = (
    _column("AvailabilityZone", _STRING, RECOMMENDED, "null"),
    _column("BilledCost", _DECIMAL, MANDATORY, "value"),
    _column("BillingAccountId", _STRING, MANDATORY, "value"),
    _column("BillingAccountName", _STRING, MANDATORY, "null"),
    _column("BillingAccountType", _STRING, CONDITIONAL, "null"),
    _column("BillingCurrency", _STRING, MANDATORY, "value", format="currency"),
    _column("BillingPeriodEnd", _DATETIME, MANDATORY, "value"),
    _column("BillingPeriodStart", _DATETIME, MANDATORY, "value"),
    _column("CapacityReservationId", _STRING, CONDITIONAL, "null"),
    _column("CapacityReservationStatus", _STRING, CONDITIONAL, "null", ("Used", "Unused")),
    _column("ChargeCategory", _STRING, MANDATORY, "value", ("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    _column("ChargeClass", _STRING, MANDATORY, "null", ("Correction",)),
    _column("ChargeDescription", _STRING, MANDATORY, "null"),
    _column("ChargeFrequency", _STRING, RECOMMENDED, "value", ("One-Time", "Recurring", "Usage-Based")),
    _column("ChargePeriodEnd", _DATETIME, MANDATORY, "value"),
    _column("ChargePeriodStart", _DATETIME, MANDATORY, "value"),
    _column("CommitmentDiscountCategory", _STRING, CONDITIONAL, "null", ("Spend", "Usage")),
    _column("CommitmentDiscountId", _STRING, CONDITIONAL, "null"),
    _column("CommitmentDiscountName", _STRING, CONDITIONAL, "null"),
    _column("CommitmentDiscountQuantity", _DECIMAL, CONDITIONAL, "null"),
    _column("CommitmentDiscountStatus", _STRING, CONDITIONAL, "null", ("Used", "Unused")),
    _column("CommitmentDiscountType", _STRING, CONDITIONAL, "null"),
    _column("CommitmentDiscountUnit", _STRING, CONDITIONAL, "null", format="unit"),
    _column("ConsumedQuantity", _DECIMAL, CONDITIONAL, "null"),
    _column("ConsumedUnit", _STRING, CONDITIONAL, "null", format="unit"),
    _column("ContractedCost", _DECIMAL, MANDATORY, "value"),
    _column("ContractedUnitPrice", _DECIMAL, CONDITIONAL, "null", format="non_negative"),
    _column("EffectiveCost", _DECIMAL, MANDATORY, "value"),
    _column("InvoiceId", _STRING, RECOMMENDED, "null"),
    _column("InvoiceIssuerName", _STRING, MANDATORY, "value"),
    _column("ListCost", _DECIMAL, MANDATORY, "value"),
    _column("ListUnitPrice", _DECIMAL, CONDITIONAL, "null", format="non_negative"),
    _column("PricingCategory", _STRING, CONDITIONAL, "null", ("Standard", "Dynamic", "Committed", "Other")),
    _column("PricingCurrency", _STRING, CONDITIONAL, "value"),
    _column("PricingCurrencyContractedUnitPrice", _DECIMAL, CONDITIONAL, "null", format="non_negative"),
    _column("PricingCurrencyEffectiveCost", _DECIMAL, CONDITIONAL, "value"),
    _column("PricingCurrencyListUnitPrice", _DECIMAL, CONDITIONAL, "null", format="non_negative"),
    _column("PricingQuantity", _DECIMAL, MANDATORY, "null"),
    _column("PricingUnit", _STRING, MANDATORY, "null", format="unit"),
    _column("ProviderName", _STRING, MANDATORY, "value"),
    _column("PublisherName", _STRING, MANDATORY, "value"),
    _column("RegionId", _STRING, CONDITIONAL, "null"),
    _column("RegionName", _STRING, CONDITIONAL, "null"),
    _column("ResourceId", _STRING, CONDITIONAL, "null"),
    _column("ResourceName", _STRING, CONDITIONAL, "null"),
    _column("ResourceType", _STRING, CONDITIONAL, "null"),
    _column("ServiceCategory", _STRING, MANDATORY, "value", SERVICE_CATEGORIES),
    _column("ServiceName", _STRING, MANDATORY, "value"),
    _column("ServiceSubcategory", _STRING, RECOMMENDED, "value"),
    _column("SkuId", _STRING, CONDITIONAL, "null"),
    _column("SkuMeter", _STRING, CONDITIONAL, "null"),
    _column("SkuPriceDetails", _JSON, CONDITIONAL, "null", format="key_value"),
    _column("SkuPriceId", _STRING, CONDITIONAL, "null"),
    _column("SubAccountId", _STRING, CONDITIONAL, "null"),
    _column("SubAccountName", _STRING, CONDITIONAL, "null"),
    _column("SubAccountType", _STRING, CONDITIONAL, "null"),
    _column("Tags", _JSON, CONDITIONAL, "null", format="key_value"),
)

_REMOVED_BY_1_4 = {"ProviderName", "PublisherName"}

_ADDED_BY_1_4 = (
    _column("AllocatedMethodDetails", _JSON, RECOMMENDED, "null"),
    _column("AllocatedMethodId", _STRING, CONDITIONAL, "null"),
    _column("AllocatedResourceId", _STRING, CONDITIONAL, "null"),
    _column("AllocatedResourceName", _STRING, CONDITIONAL, "null"),
    _column("AllocatedTags", _JSON, CONDITIONAL, "null", format="key_value"),
    _column("CommitmentProgramEligibilityDetails", _JSON, CONDITIONAL, "null"),
    _column("ContractApplied", _JSON, CONDITIONAL, "null"),
    _column("HostProviderName", _STRING, MANDATORY, "null"),
    _column("ServiceProviderName", _STRING, MANDATORY, "value"),
)

_BY_VERSION: Mapping[str, tuple[FocusColumn, ...]] = {
    "1.2": _V1_2,
    "1.4": tuple(sorted((*(c for c in _V1_2 if c.name not in _REMOVED_BY_1_4), *_ADDED_BY_1_4))),
}


def columns(version: str) -> tuple[FocusColumn, ...]:
    """All columns of that version, by name. Raises ValueError for another version."""
    if version not in _BY_VERSION:
        raise ValueError(f"focus_version: {version!r} is none of {', '.join(VERSIONS)}")
    return _BY_VERSION[version]


def sku_price_keys(version: str) -> frozenset[str]:
    """Keys of SkuPriceDetails that may stand without the x_ prefix."""
    return SKU_PRICE_KEYS | (AI_SKU_PRICE_KEYS if version in PROVISIONAL else frozenset())
