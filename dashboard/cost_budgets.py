"""Budgets as the controller would say they stand, from the ledger alone: they are shown while it is down, too.

It is the controller's own BudgetBook (controlplane.budgets), given what the ledger knows and no window. What only a
running controller knows, such as requests under way, is not in it: `kadence budget status` has that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from controlplane.budgets.book import FORECASTS_LEAST, BudgetBook
from controlplane.budgets.past import read_pasts
from controlplane.finops.attribution import rounded_cost
from controlplane.finops.budget import BudgetStatus
from controlplane.finops.pricing import PriceSheet
from controlplane.finops.spending import spent
from controlplane.policy import Policy
from controlplane.store.budgets import PastReader
from controlplane.store.time_range import iso
from dashboard import format as fmt

HOUR_S = 3600
RANK = {"exceeded": 0, "unknown": 1, "soft": 2, "ok": 3}
"""The most urgent standing first."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """One budget in its present period. so_far: pairs of unix seconds and the nano-dollars spent by then."""

    status: BudgetStatus
    so_far: tuple[tuple[float, int], ...]

    @property
    def is_in_danger(self) -> bool:
        """Exceeded, or expected to be before its reset."""
        ahead = self.status.forecast
        return self.status.standing == "exceeded" or (ahead is not None and ahead.exceeds_at is not None)


def outlooks(engine: Any, policy: Policy, sheet: PriceSheet, now: float) -> tuple[Outlook, ...]:
    """Every budget of the policy at `now` (unix seconds), the most urgent first, then by name."""
    if not policy.all_budgets:
        return ()
    book = BudgetBook()
    book.follow(policy, now)
    unread = book.unread()
    pasts = read_pasts(PastReader(engine), unread, now)
    for each, past in zip(unread, pasts, strict=True):
        book.restore(each, past, now)
    entry = book.tick(policy, sheet, now)
    for _ in range(len(unread) // FORECASTS_LEAST):  # a tick forecasts a part of many budgets
        entry = book.tick(policy, sheet, now)
    by_name = {status.name: status for status in entry.statuses}
    found = [
        Outlook(by_name[each.named.name], _so_far(past.in_period, sheet, each.period.start, now))
        for each, past in zip(unread, pasts, strict=True)
    ]
    return tuple(sorted(found, key=lambda o: (RANK[o.status.standing], not o.is_in_danger, o.status.name)))


def _so_far(in_period: Any, sheet: PriceSheet, start: float, now: float) -> tuple[tuple[float, int], ...]:
    """The running sum, exact and rounded once: flat but for the hours that cost something."""
    points, total = [(start, 0)], 0
    for hour, nano in sorted(spent(in_period, sheet).exact.items()):
        began, ended = hour * float(HOUR_S), min((hour + 1) * float(HOUR_S), now)
        if began > points[-1][0]:
            points.append((began, rounded_cost(total)))
        total += nano
        points.append((ended, rounded_cost(total)))
    return tuple(points)


def standing_text(status: BudgetStatus) -> str:
    """Where it stands, in a few words."""
    used = f"{'at least ' if status.standing == 'unknown' else ''}{fmt.cost(status.spent_nano, 'USD')}"
    word = {"ok": "ok", "soft": "soft threshold passed", "exceeded": "exceeded", "unknown": "cannot be computed"}
    return f"{word[status.standing]}: {used} of {fmt.cost(status.limit_nano, 'USD')} in {status.period.label}"


def ahead_text(status: BudgetStatus) -> str:
    """What is expected at the reset, with its interval."""
    ahead = status.forecast
    if ahead is None:
        return "no forecast: " + (status.why or "less than ten minutes of spending are known")
    between = ""
    if ahead.low_nano is not None and ahead.high_nano is not None:
        between = f" ({fmt.cost(ahead.low_nano, 'USD')} to {fmt.cost(ahead.high_nano, 'USD')})"
    text = f"{fmt.cost(ahead.at_reset_nano, 'USD')}{between} expected at the reset, {status.period.resets_at}"
    return text if ahead.exceeds_at is None else f"{text}; exceeded on {iso(ahead.exceeds_at)} at this rate"


BUDGET_COLUMNS = ("Budget", "Of", "Standing", "Spent", "Limit", "Used", "Expected at reset", "95 % interval", "Resets")


def budget_frame(found: tuple[Outlook, ...]) -> pd.DataFrame:
    """A line a budget, in the order given; money as text, unknown in words."""
    return pd.DataFrame([_line(each.status) for each in found], columns=list(BUDGET_COLUMNS))


def _line(status: BudgetStatus) -> tuple[str, ...]:
    ahead = status.forecast
    is_known = status.standing != "unknown"
    whose = [f"{what} {name}" for what, name in (("tenant", status.tenant), ("cohort", status.cohort)) if name]
    interval = "not known yet"
    if ahead is not None and ahead.low_nano is not None and ahead.high_nano is not None:
        interval = f"{fmt.cost(ahead.low_nano, 'USD')} to {fmt.cost(ahead.high_nano, 'USD')}"
    return (
        status.name,
        ", ".join(whose),
        status.standing,
        f"{'' if is_known else 'at least '}{fmt.cost(status.spent_nano, 'USD')}",
        fmt.cost(status.limit_nano, "USD"),
        fmt.share(status.spent_nano, status.limit_nano) if is_known else "not known",
        "not known yet" if ahead is None else fmt.cost(ahead.at_reset_nano, "USD"),
        interval,
        status.period.resets_at,
    )
