"""A sheet written down again, so that it can be kept and read back equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from controlplane.finops.pricing.price import Price

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def prices_text(prices: Sequence[Price], stale_after_days: int) -> str:
    """YAML that parse_prices reads back as the same sheet."""
    sheet = {
        "version": 1,
        "stale_after_days": stale_after_days,
        "prices": [_entry(price) for price in prices],
    }
    text: str = yaml.dump(sheet, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=120)
    return text


def _entry(price: Price) -> dict[str, Any]:
    entry: dict[str, Any] = {"sku": price.sku, "basis": price.basis, "currency": price.currency}
    if price.owned is None:
        entry["per_hour"] = f"{price.per_hour:f}"
    else:
        entry |= {f.name: f"{getattr(price.owned, f.name):f}" for f in fields(price.owned)}
    if price.list_per_hour is not None:
        entry["list_per_hour"] = f"{price.list_per_hour:f}"
    if price.region:
        entry["region"] = price.region
    entry |= {"source": price.source, "as_of": price.as_of.isoformat(), "effective_from": _moment(price.effective_from)}
    if price.effective_to is not None:
        entry["effective_to"] = _moment(price.effective_to)
    return entry


def _moment(when: float) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=when)).isoformat(timespec="minutes")
