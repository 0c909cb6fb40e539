"""Machine time that costs round sums: an hour of the sku `gpu` is 36 dollars, so a busy second is one cent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controlplane.finops.pricing import PriceSheet, parse_prices
from controlplane.policy import Policy, parse_policy
from controlplane.telemetry import TenantUse, WindowId, WorkerWindow

CENT = 10_000_000
"""Nano-dollars."""


@pytest.fixture
def sheet() -> PriceSheet:
    return sheet_of()


def sheet_of(currency: str = "USD", sku: str = "gpu") -> PriceSheet:
    return parse_prices(
        f"""version: 1
prices:
  - {{sku: {sku}, basis: on_demand, currency: {currency}, per_hour: 36, source: test, as_of: 2026-01-01,
      effective_from: 2026-01-01}}
"""
    )


@pytest.fixture
def make_sheet() -> Callable[..., PriceSheet]:
    return sheet_of


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    """A policy of the cohorts code and default with these budgets, each the inside of a flow mapping."""

    def make(*budgets: str) -> Policy:
        speculation = "speculation: {tuner: goodput, ladder: [0, 2], start: 2, fallback: 0}"
        lines = [
            f"  - {{name: code, match: {{user: a}}, {speculation}}}",
            f"  - {{name: rest, match: {{}}, {speculation}}}",
        ]
        listed = ["budgets:", *(f"  - {{{each}}}" for each in budgets)] if budgets else []
        return parse_policy("\n".join(["version: 1", "cohorts:", *lines, *listed]))

    return make


@pytest.fixture
def make_busy(make_worker_window: Any, make_cohort_window: Any) -> Callable[..., WorkerWindow]:
    """A window that was busy for `cents` seconds with prompts of one cohort, by tenant in equal parts."""
    count = iter(range(10**9))

    def make(
        at: float, cents: float = 1.0, cohort: str = "code", tenants: Sequence[str | None] = (), **changes: Any
    ) -> WorkerWindow:
        shares = tuple(TenantUse(each, prefill_positions=10, input_tokens=10) for each in tenants)
        ordered = tuple(sorted(shares, key=lambda each: (each.tenant is not None, each.tenant or "")))
        positions = 10 * max(len(tenants), 1)
        used = make_cohort_window(cohort, prefill_positions=positions, tenants=ordered)
        values = {
            "device": "gpu",
            "busy_s": cents,
            "ended_at": at + cents,
            "id": WindowId("w", 1, next(count)),
            **changes,
        }
        return make_worker_window(0, (used,), started_at=at, **values)

    return make
