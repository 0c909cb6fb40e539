"""FOCUS rows from billed cells: one for each hour x model x cohort x tenant x direction x sku, and one for idle time.

The sum of BilledCost is the canonical bill of the cells, to the nano-unit. The other costs are the same machine time at
other prices of the sheet; where the sheet has none of that kind for the hour, the rule in `roles` says what stands in,
and an x_ column names it. Nothing is estimated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from controlplane.finops.attribution import NS_PER_HOUR, cost_by_part, split
from controlplane.finops.export_cells import (
    HOUR_S,
    BilledCell,
    Carbon,
    Row,
    hour_start,
    known,
    ratio,
    scaled,
)
from controlplane.finops.focus_columns import CUSTOM_PREFIX, PROVISIONAL
from controlplane.finops.focus_fields import fields
from controlplane.finops.pricing import Price, Prices

MILLION_TOKENS = "1000000 Tokens"
SERVICE = {
    "ServiceCategory": "AI and Machine Learning",
    "ServiceName": "Kadence",
    "ServiceSubcategory": "Generative AI",
}
PRICING_CATEGORY = {"on_demand": "Standard", "reserved": "Standard", "spot": "Dynamic", "owned": "Other"}
"""Committed would need the id of the commitment, which a price sheet does not have."""

ALLOCATION_METHOD = "MachineTimeByComputedPositions"
RATIO_PLACES = 9


class Rate(NamedTuple):
    """What machine time is charged at for one of the costs. basis: of the price, or `list` for a price's list price."""

    basis: str
    per_hour_nano: int


class Roles(NamedTuple):
    """The rates of ListCost, ContractedCost, EffectiveCost and BilledCost in one hour of one sku."""

    list: Rate
    contracted: Rate
    effective: Rate
    billed: Rate


class Amounts(NamedTuple):
    """What one cell comes to at each of these rates, in nano-units."""

    list: int
    contracted: int
    effective: int
    billed: int


def roles(prices: Prices, sku: str, billed: Price, at: float) -> Roles:
    """Which price each cost takes at `at` (unix seconds); `billed` is the one that the bill was made with.

    List: what the billed price says it is listed at, else on_demand, else the billed one. Contracted: the billed one
    where it says what it is listed at (so it was negotiated), else reserved, else the billed one. Effective: the billed
    one where it is owned or reserved (amortised), else owned, else reserved, else the billed one.
    """
    own = Rate(billed.basis, billed.per_hour_nano)

    def of(basis: str) -> Rate | None:
        price = prices.price_at(sku, basis, at)
        return None if price is None else Rate(basis, price.per_hour_nano)

    listed = None if billed.list_per_hour is None else Rate("list", int(billed.list_per_hour.scaleb(9)))
    is_amortised = billed.basis in ("owned", "reserved")
    return Roles(
        list=listed or of("on_demand") or own,
        contracted=own if listed else of("reserved") or own,
        effective=own if is_amortised else of("owned") or of("reserved") or own,
        billed=own,
    )


@dataclass(frozen=True, slots=True)
class FocusSource:
    """What rows need to know beside the cells.

    provider: who offers the service, and issues its bill. account: id and name of the billing account. is_whole: the
    cells are all of their machine hours, so that shares of these can be told. policy_in: the policy revisions in force
    in that hour since the unix epoch.
    """

    prices: Prices
    basis: str
    version: str = "1.2"
    provider: str = "Kadence"
    account: str = "kadence"
    is_whole: bool = True
    carbon: Carbon = lambda uj, at: None
    policy_in: Callable[[int], str | None] = lambda hour: None


def focus_rows(source: FocusSource, group: Sequence[BilledCell]) -> list[Row]:
    """Rows of `fields(source.version)` for the cells of one machine hour (see `machine_hours`), which are priced.

    Raises ValueError where they are not: what has no price is held back, never written as 0.
    """
    first = group[0]
    at = float(first.hour * HOUR_S)
    billed = source.prices.price_at(first.sku, source.basis, at)
    if billed is None or any(cell.cost_nano is None for cell in group):
        raise ValueError(source.prices.why_unpriced(first.sku, source.basis, at))
    rates = roles(source.prices, first.sku, billed, at)
    costs = {rates.billed.per_hour_nano: [int(cell.cost_nano or 0) for cell in group]}
    for rate in rates:
        if rate.per_hour_nano not in costs:
            costs[rate.per_hour_nano] = cost_by_part([cell.ns for cell in group], rate.per_hour_nano)
    names = [field.name for field in fields(source.version)]
    in_order = itemgetter(*names)
    shared = {**dict.fromkeys(names), **_shared(source, group, billed, rates)}
    shares = split(10**RATIO_PLACES, [cell.ns for cell in group])
    rows = []
    for i, cell in enumerate(group):
        amounts = Amounts(*(costs[rate.per_hour_nano][i] for rate in rates))
        row = {**shared, **_cell_columns(source, cell, rates, amounts)}
        if source.version in PROVISIONAL:
            row |= _allocated(cell, row["Tags"], shares[i] if source.is_whole else None)
        rows.append(in_order(row))
    return rows


Columns = dict[str, str | Decimal | datetime | None]


def _shared(source: FocusSource, group: Sequence[BilledCell], billed: Price, rates: Roles) -> Columns:
    """What all rows of a machine hour have in common."""
    hour = group[0].hour
    start = hour_start(hour)
    month = start.replace(day=1, hour=0)
    idle_ns = sum(cell.ns for cell in group if cell.direction == "idle")
    region = billed.region or None
    return {
        **SERVICE,
        "BillingAccountId": source.account,
        "BillingAccountName": source.account,
        "BillingAccountType": "Installation",
        "BillingCurrency": billed.currency,
        "BillingPeriodEnd": month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1),
        "BillingPeriodStart": month,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": hour_start(hour + 1),
        "ChargePeriodStart": start,
        "HostProviderName": source.provider,
        "InvoiceIssuerName": source.provider,
        "PricingCategory": PRICING_CATEGORY[rates.billed.basis],
        "ProviderName": source.provider,
        "PublisherName": source.provider,
        "RegionId": region,
        "RegionName": region,
        "ServiceProviderName": source.provider,
        "x_BilledBasis": rates.billed.basis,
        "x_ContractedBasis": rates.contracted.basis,
        "x_EffectiveBasis": rates.effective.basis,
        "x_IdleShare": ratio(idle_ns, sum(cell.ns for cell in group), 9) if source.is_whole else None,
        "x_ListBasis": rates.list.basis,
        "x_PolicyVersion": source.policy_in(hour),
    }


def _cell_columns(source: FocusSource, cell: BilledCell, rates: Roles, amounts: Amounts) -> Columns:
    # A cell can have cost and no token: idle time, or a prefill that began in the hour before. Its unit is the hour.
    is_by_token = cell.tokens > 0
    meter = f"{cell.direction.title()} {'Tokens' if is_by_token else 'Hours'}"
    hours = scaled((2 * cell.ns * 10**15 + NS_PER_HOUR) // (2 * NS_PER_HOUR), 15)
    sku_id = f"{cell.sku}/{cell.model}/{meter.lower().replace(' ', '-')}"
    is_output = cell.direction == "output"
    found: Columns = {
        "BilledCost": scaled(amounts.billed, 9),
        "ChargeDescription": _description(cell.sku, cell.model, cell.cohort, meter),
        "ConsumedQuantity": Decimal(cell.tokens) if is_by_token else hours,
        "ConsumedUnit": "Tokens" if is_by_token else "Hours",
        "ContractedCost": scaled(amounts.contracted, 9),
        "ContractedUnitPrice": _unit_price(rates.contracted, amounts.contracted, cell.tokens),
        "EffectiveCost": scaled(amounts.effective, 9),
        "ListCost": scaled(amounts.list, 9),
        "ListUnitPrice": _unit_price(rates.list, amounts.list, cell.tokens),
        "PricingQuantity": scaled(cell.tokens, 6) if is_by_token else hours,
        "PricingUnit": MILLION_TOKENS if is_by_token else "Hours",
        "SkuId": sku_id,
        "SkuMeter": meter,
        "SkuPriceDetails": _price_details(source.version, cell.sku, cell.model, cell.direction),
        "SkuPriceId": f"{sku_id}/{source.basis}",
        "SubAccountId": cell.tenant,
        "SubAccountName": cell.tenant,
        "SubAccountType": None if cell.tenant is None else "Tenant",
        "Tags": None if cell.cohort is None else _tags(cell.cohort),
        "x_CarbonGrams": source.carbon(cell.uj, cell.hour * HOUR_S),
        "x_EnergyJoules": known(cell.uj, 6),
        "x_EnergySource": cell.energy_source,
        "x_MachineSeconds": scaled(cell.ns, 9),
    }
    if cell.direction != "idle":
        found |= {"x_WastedCost": known(cell.wasted_cost_nano, 9), "x_WastedJoules": known(cell.wasted_uj, 6)}
    if is_output:
        found |= {
            "x_AcceptedDraftTokens": Decimal(cell.accepted_tokens),
            "x_DraftTokens": Decimal(cell.draft_tokens),
            "x_MeanK": ratio(cell.planned_k_steps, cell.steps, 6),
            "x_RejectedDraftTokens": Decimal(cell.draft_tokens - cell.accepted_tokens),
            "x_Requests": Decimal(cell.requests),
        }
    return found


def _unit_price(rate: Rate, amount: int, tokens: int) -> Decimal | None:
    """Per million tokens what the hour's machine time came to, else the sheet's price of an hour."""
    return ratio(amount, tokens * 1000, 18) if tokens else scaled(rate.per_hour_nano, 9)


def _allocated(cell: BilledCell, tags: str | Decimal | datetime | None, share: int | None) -> Columns:
    """How a machine's hour was split (columns since 1.3). Idle time is the part that was given to nobody."""
    element = {
        "AllocatedRatio": float(scaled(share or 0, RATIO_PLACES)),
        "UsageUnit": "Seconds",
        "UsageQuantity": float(scaled(cell.ns, 9)),
    }
    return {
        "AllocatedMethodId": ALLOCATION_METHOD,
        "AllocatedMethodDetails": None if share is None else json.dumps({"Elements": [element]}),
        "AllocatedResourceId": cell.cohort,
        "AllocatedResourceName": cell.cohort,
        "AllocatedTags": tags,
    }


@lru_cache(4096)
def _description(sku: str, model: str, cohort: str | None, meter: str) -> str:
    return f"Idle time of {sku} with {model}" if cohort is None else f"{meter} of {model} on {sku} for {cohort}"


@lru_cache(4096)
def _tags(cohort: str) -> str:
    return json.dumps({"cohort": cohort}, ensure_ascii=False)


@lru_cache(4096)
def _price_details(version: str, sku: str, model: str, direction: str) -> str:
    """ModelId and TokenDirection are defined by a FOCUS after 1.4: in a 1.2 file a key of one's own starts with x_."""
    prefix = "" if version in PROVISIONAL else CUSTOM_PREFIX
    details: Mapping[str, str] = {f"{prefix}ModelId": model, "x_MachineType": sku}
    if direction != "idle":
        details = {**details, f"{prefix}TokenDirection": direction.title()}
    return json.dumps(details, ensure_ascii=False)
