"""Reads from the ledger what budgets had spent before the book heard of them."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.budgets.account import Past, Unread
from controlplane.finops.budget import UNKNOWN, thresholds
from controlplane.finops.periods import Period
from controlplane.store.budgets import PastReader

LAST_READ_S = 3600.0
"""After a reset the period before is read, too: a start at midnight leaves no last minute out."""


def read_pasts(reader: PastReader, unread: Iterable[Unread], now: float) -> list[Past]:
    """The past of each, and that of its last period where that may have ended while nobody was here."""
    periods = [(each, period) for each in unread for period in _periods(each, now)]
    wanted = [(each.named, period, (*thresholds(each.named), UNKNOWN)) for each, period in periods]
    pasts: list[Past] = []
    for (each, period), fields in zip(periods, reader.read(wanted), strict=True):
        past = Past(**fields)
        if period == each.period:
            pasts.append(past)
        elif past.is_on_record:  # a budget that is new has no last period
            pasts[-1] = pasts[-1]._replace(last=past)
    return pasts


def _periods(unread: Unread, now: float) -> list[Period]:
    return [unread.period, unread.last] if now < unread.period.start + LAST_READ_S else [unread.period]
