"""Nano-units of a currency as text."""

from __future__ import annotations

from decimal import Decimal

from controlplane.finops.pricing import NANO


def nine(nano: int) -> str:
    """Nano-units as a decimal string with all nine decimals."""
    return f"{Decimal(nano) / NANO:.9f}"


def money(nano: int | None) -> str | None:
    """As JSON has it; None = unpriced."""
    return None if nano is None else nine(nano)


def plain(nano: int) -> str:
    """Nano-units for a person: two decimals at least, and as many as there are."""
    whole, _, decimals = nine(nano).partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
