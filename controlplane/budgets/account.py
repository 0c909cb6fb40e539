"""What the book keeps of one budget, and what the ledger tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.finops.budget import BudgetState, BudgetStatus
from controlplane.finops.forecast import HORIZON_HOURS, HOUR_S, Forecast
from controlplane.finops.periods import Period, period_at
from controlplane.finops.pricing import PriceSheet
from controlplane.finops.spending import Cell, Spent, spent
from controlplane.policy.model import NamedBudget


class Past(NamedTuple):
    """What the ledger knows of a budget: machine time (ns) by cell, in the period and in the week before it.

    since: unix seconds of the first use on record of anybody, None without one. fired: subjects of alerts that stand;
    told: of all that were ever told. is_on_record: whether the budget was looked at in that period. last: of the period
    before, where it has only just ended.
    """

    in_period: Mapping[Cell, int]
    before: Mapping[Cell, int]
    since: float | None
    fired: frozenset[str]
    told: frozenset[str] = frozenset()
    is_on_record: bool = False
    last: Past | None = None


@dataclass(slots=True)
class Account:
    """One budget, of which the book has heard at opened_at.

    money: of the state's period; before: machine time of the week before it, and past: its money. last: the period
    before, for late windows, with its money in last_money. said: the last status, which still holds while said_of are
    the values it was made of.
    """

    named: NamedBudget
    state: BudgetState
    opened_at: float
    money: Spent = field(default_factory=Spent)
    is_restored: bool = False
    since: float | None = None
    before: dict[Cell, int] = field(default_factory=dict)
    past: Spent = field(default_factory=Spent)
    last: BudgetState | None = None
    last_money: Spent = field(default_factory=Spent)
    is_last_read: bool = False
    ahead: Forecast | None = None
    ahead_at: float = float("-inf")
    said: BudgetStatus | None = None
    said_of: tuple[object, ...] = ()

    def price(self, sheet: PriceSheet) -> None:
        """All of it, under another sheet."""
        self.money, self.past = spent(self.state.ns, sheet), spent(self.before, sheet)
        self.last_money = Spent() if self.last is None else spent(self.last.ns, sheet)
        self.ahead_at = float("-inf")

    def by_hour(self, now: float) -> dict[int, int]:
        """Nano-dollars by hour of what a forecast looks at. The hour in which the period began is in both sums."""
        past, present, last = self.past.exact, self.money.exact, int(now // HOUR_S)
        return Spent({h: past.get(h, 0) + present.get(h, 0) for h in range(last - HORIZON_HOURS, last + 1)}).by_hour


class Unread(NamedTuple):
    """A budget whose past is not known, with what ticks had counted when that was said; account: for the book."""

    named: NamedBudget
    state: BudgetState
    account: object

    @property
    def period(self) -> Period:
        return self.state.period

    @property
    def last(self) -> Period:
        """The period before."""
        return period_at(self.named.budget, self.period.start - 1)


def added(use: Mapping[Cell, int], more: Mapping[Cell, int]) -> dict[Cell, int]:
    """Machine time of both."""
    return {**use, **{cell: use.get(cell, 0) + ns for cell, ns in more.items()}}
