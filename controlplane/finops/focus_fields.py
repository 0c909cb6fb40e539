"""The columns that our FOCUS files have, with the kind of each: those of FOCUS that a ledger fills, and our own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from controlplane.finops.export_cells import Field, Kind
from controlplane.finops.focus_columns import columns

WRITTEN = frozenset(
    (
        "BilledCost", "BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency",
        "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription",
        "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit",
        "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceId", "InvoiceIssuerName", "ListCost",
        "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName",
        "RegionId", "RegionName", "ServiceCategory", "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter",
        "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags",
        "AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName",
        "AllocatedTags", "HostProviderName", "ServiceProviderName",
    )
)  # fmt: skip
"""Of FOCUS's columns. The rest are of concepts that a ledger of machine time does not have: commitments, zones, ..."""

COST_SCALE = 9
SCALES: Mapping[str, int] = {
    "ConsumedQuantity": 15,
    "PricingQuantity": 15,
    "ListUnitPrice": 18,
    "ContractedUnitPrice": 18,
}
"""Decimal places, where they are not those of a cost."""

OWN = (
    Field("x_AcceptedDraftTokens", "integer"),
    Field("x_BilledBasis", "text"),
    Field("x_CarbonGrams", "decimal", 9),
    Field("x_ContractedBasis", "text"),
    Field("x_DraftTokens", "integer"),
    Field("x_EffectiveBasis", "text"),
    Field("x_EnergyJoules", "decimal", 6),
    Field("x_EnergySource", "text"),
    Field("x_IdleShare", "decimal", 9),
    Field("x_ListBasis", "text"),
    Field("x_MachineSeconds", "decimal", 9),
    Field("x_MeanK", "decimal", 6),
    Field("x_PolicyVersion", "text"),
    Field("x_RejectedDraftTokens", "integer"),
    Field("x_Requests", "integer"),
    Field("x_WastedCost", "decimal", 9),
    Field("x_WastedJoules", "decimal", 6),
)

KINDS: Mapping[str, Kind] = {"string": "text", "json": "text", "datetime": "moment", "decimal": "decimal"}


@lru_cache
def fields(version: str) -> tuple[Field, ...]:
    """The file's columns in order: those of FOCUS by name, then our own by name."""
    standard = (
        Field(c.name, KINDS[c.type], SCALES.get(c.name, COST_SCALE) if c.type == "decimal" else 0)
        for c in columns(version)
        if c.name in WRITTEN
    )
    return (*standard, *OWN)
