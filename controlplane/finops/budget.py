"""Budgets: what is spent of one, what that comes to, and what follows. Values and pure rules.

What counts is machine time attributed to the budget's cohort or tenant (attribution.window_use), each hour at its
price, whoever the request's client was and however it ended. Time without a price is unknown: never 0, never a
guess, and never a reason to refuse anybody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from controlplane.alerts import BUDGET, Alert
from controlplane.finops.forecast import Forecast
from controlplane.finops.periods import Period, period_at
from controlplane.finops.pricing import NANO
from controlplane.finops.spending import CURRENCY, Cell, Spent, dollars, money
from controlplane.policy.model import BudgetAction, NamedBudget

HARD = 1.0
"""The threshold of the whole budget; soft ones are shares below it, or at it."""
UNKNOWN = 0.0
"""Stands among the thresholds for: it was told that the budget cannot be computed."""

Standing = Literal["ok", "soft", "exceeded", "unknown"]
Verdict = Literal["allow", "warn", "reject", "dial"]


@dataclass(frozen=True, slots=True)
class BudgetState:
    """One budget in one period: machine time (ns) by cell, and the thresholds that were alerted to in it."""

    period: Period
    ns: Mapping[Cell, int] = field(default_factory=dict)
    fired: frozenset[float] = frozenset()

    def with_use(self, use: Mapping[Cell, int]) -> BudgetState:
        """With more machine time."""
        return replace(self, ns={**self.ns, **{cell: self.ns.get(cell, 0) + ns for cell, ns in use.items()}})


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """All that is to be said of a budget at `at` (unix seconds). Money in nano-dollars.

    standing: exceeded is certain also where some use has no price, for the rest alone is over the limit; unknown is
    everything else that has no price. spent_nano: of what has a price. reserved_nano: that requests under way
    may come to use (only where the budget refuses). why: what is unknown. fired: thresholds alerted to in this period.
    rejections: requests refused since the controller started.
    """

    name: str
    cohort: str | None
    tenant: str | None
    on_exceeded: BudgetAction
    period: Period
    limit_nano: int
    spent_nano: int
    standing: Standing
    soft: tuple[float, ...]
    fired: tuple[float, ...]
    at: float
    why: str = ""
    forecast: Forecast | None = None
    reserved_nano: int = 0
    rejections: int = 0

    @property
    def verdict(self) -> Verdict:
        """What the budget asks for now."""
        if self.standing == "exceeded":
            return _ON_EXCEEDED[self.on_exceeded]
        return "warn" if self.standing == "soft" else "allow"

    def as_json(self) -> dict[str, object]:
        """As the admin API and `kadence budget status --json` show it: money as decimal strings, unknown as null."""
        ahead, is_known = self.forecast, self.standing != "unknown"
        return {
            "name": self.name,
            "cohort": self.cohort,
            "tenant": self.tenant,
            "state": self.standing,
            "verdict": self.verdict,
            "why": self.why or None,
            "currency": CURRENCY,
            "limit": money(self.limit_nano),
            "spent": money(self.spent_nano) if is_known else None,
            "spent_at_least": money(self.spent_nano),
            "reserved": money(self.reserved_nano),
            "left": money(max(self.limit_nano - self.spent_nano, 0)) if is_known else None,
            "soft": list(self.soft),
            "alerted": [share for share in self.fired if share != UNKNOWN],
            "on_exceeded": self.on_exceeded,
            "period": self.period.label,
            "timezone": self.period.timezone,
            "started_at": self.period.start,
            "resets_at": self.period.end,
            "resets_at_local": self.period.resets_at,
            "forecast": None
            if ahead is None
            else {
                "at_reset": money(ahead.at_reset_nano),
                "low": None if ahead.low_nano is None else money(ahead.low_nano),
                "high": None if ahead.high_nano is None else money(ahead.high_nano),
                "per_hour": money(ahead.per_hour_nano),
                "exceeds_at": ahead.exceeds_at,
            },
            "rejections": self.rejections,
            "at": self.at,
        }


_ON_EXCEEDED: Mapping[BudgetAction, Verdict] = {"warn": "warn", "reject": "reject", "dial": "dial"}


def limit_nano(named: NamedBudget) -> int:
    """The budget in nano-dollars."""
    return _amounts(named)[HARD]


@lru_cache(maxsize=4096)
def _amounts(named: NamedBudget) -> Mapping[float, int]:
    """Nano-dollars at which each threshold is reached, rising. Kept, for every tick asks for every budget."""
    limit = int(named.budget.usd * NANO)
    shares = sorted({*named.budget.soft, HARD})
    return {share: math.ceil(limit * Decimal(str(share))) for share in shares}


def standing(named: NamedBudget, money_spent: Spent) -> Standing:
    """Where the budget stands."""
    if money_spent.nano >= limit_nano(named):
        return "exceeded"
    if money_spent.why:
        return "unknown"
    return "soft" if reached(named, money_spent.nano) else "ok"


def thresholds(named: NamedBudget) -> tuple[float, ...]:
    """The soft shares, rising, and the whole budget."""
    return tuple(_amounts(named))


def reached(named: NamedBudget, nano: int) -> frozenset[float]:
    """The thresholds that so much spending reaches."""
    return frozenset(share for share, amount in _amounts(named).items() if nano >= amount)


def status(
    named: NamedBudget, state: BudgetState, money_spent: Spent, now: float, ahead: Forecast | None = None
) -> BudgetStatus:
    """What is to be said of the budget now. money_spent: of the state's period."""
    stands = standing(named, money_spent)
    return BudgetStatus(
        named.name,
        named.cohort,
        named.tenant,
        named.budget.on_exceeded,
        state.period,
        limit_nano(named),
        money_spent.nano,
        stands,
        named.budget.soft,
        tuple(sorted(state.fired)),
        now,
        money_spent.why,
        None if stands == "unknown" else ahead,
    )


def subject(name: str, share: float, period: Period) -> str:
    """Of the alert that this threshold of the budget was reached in this period; there is only one such alert."""
    what = "unknown" if share == UNKNOWN else f"{100 * share:g}%"
    return f"{name}/{what}/{period.label}"


def rearmed(named: NamedBudget, state: BudgetState, money_spent: Spent) -> BudgetState:
    """With those thresholds to be told of again that are no longer reached, because the budget was raised, and what is
    no longer unknown, because a price was added.
    """
    kept = state.fired & (reached(named, money_spent.nano) | ({UNKNOWN} if money_spent.why else set()))
    return state if kept == state.fired else replace(state, fired=kept)


def fire(named: NamedBudget, state: BudgetState, said: BudgetStatus) -> tuple[BudgetState, list[Alert]]:
    """Alerts for the thresholds that were reached and not told of yet: each once in a period, none is left out.

    One step may cross several: each has its alert, so that whoever waits for 80 % gets it though 100 % came with it.
    That a budget cannot be computed is told of once in a period, too.
    """
    new = sorted(reached(named, said.spent_nano) - state.fired)
    if said.standing == "unknown" and UNKNOWN not in state.fired:
        new.append(UNKNOWN)
    alerts = [alert_of(named, share, said) for share in new]
    return (replace(state, fired=state.fired | set(new)) if new else state), alerts


def alert_of(named: NamedBudget, share: float, said: BudgetStatus) -> Alert:
    """The alert that this threshold is reached, or (UNKNOWN) that the budget cannot be computed."""
    if share == UNKNOWN:
        detail = f"budget {named.name} ({whose(named)}) cannot be computed, and is not enforced: {said.why}"
        return Alert(BUDGET, subject(named.name, UNKNOWN, said.period), "warning", said.at, said.at, 1, detail)
    is_hard = share >= HARD
    used = f"{dollars(said.spent_nano)} of {dollars(said.limit_nano)} {CURRENCY}"
    detail = f"budget {named.name} ({whose(named)}): {used} spent in {said.period.label}, {100 * share:g} % reached"
    if is_hard:
        detail += f"; {_CONSEQUENCE[named.budget.on_exceeded]} until the reset at {said.period.resets_at}"
    elif said.forecast is not None:
        detail += f"; {dollars(said.forecast.at_reset_nano)} are expected at the reset at {said.period.resets_at}"
    severity: Literal["warning", "critical"] = "critical" if is_hard else "warning"
    return Alert(BUDGET, subject(named.name, share, said.period), severity, said.at, said.at, 1, detail)


_CONSEQUENCE: Mapping[BudgetAction, str] = {
    "warn": "nothing else happens",
    "reject": "its requests are refused",
    "dial": "its cohort pursues cost",
}


def whose(named: NamedBudget) -> str:
    """Whose money it is, for a sentence."""
    parts = [f"tenant {named.tenant}"] if named.tenant is not None else []
    return " in ".join([*parts, *([f"cohort {named.cohort}"] if named.cohort is not None else [])])


def dialled(statuses: Sequence[BudgetStatus]) -> tuple[str, ...]:
    """The cohorts that pursue cost now, because of a budget that is exceeded; sorted."""
    return tuple(sorted({s.cohort for s in statuses if s.verdict == "dial" and s.cohort is not None}))


def refusal(said: BudgetStatus, *, reserved_by: int = 0) -> str:
    """What a refused client is told: which budget, what is spent, when it resets."""
    whom = " in ".join(
        part for part in (said.tenant and f"key {said.tenant}", said.cohort and f"cohort {said.cohort}") if part
    )
    text = (
        f"The budget {said.name!r} ({whom}) is exhausted: {dollars(said.spent_nano)} of {dollars(said.limit_nano)} "
        f"{CURRENCY} are spent in {said.period.label}"
    )
    if said.spent_nano < said.limit_nano:
        others = "1 request" if reserved_by == 1 else f"{reserved_by} requests"
        text += f", and {others} under way or just ended may use the rest"
    return f"{text}; it resets at {said.period.resets_at}."


def fresh(named: NamedBudget, when: float) -> BudgetState:
    """Nothing spent yet, in the period that `when` is in."""
    return BudgetState(period_at(named.budget, when))
