"""What `kadence policy plan` says, as a value: worked out once, for the command and for the dashboard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controlplane.comparison import Interval
from controlplane.finops.budget import BudgetState, status
from controlplane.finops.periods import period_at
from controlplane.finops.spending import spent
from controlplane.policy import Policy
from controlplane.policy.effective import differences
from controlplane.policy_forecast import CohortForecast, forecast, moves, spent_over, targets, warnings
from controlplane.policy_plan import walk
from controlplane.store.budgets import used_in
from controlplane.store.cost import cost_report
from controlplane.store.recorded import RecordedTick, count_ticks, epochs, request_groups, ticks
from controlplane.store.time_range import TimeRange

if TYPE_CHECKING:
    import sqlalchemy as sa

    from controlplane.finops.pricing import PriceSheet

Watched = Callable[[Iterator[RecordedTick], int], Iterable[RecordedTick]]
"""The ticks of one controller and how many there are -> the same ticks, with their progress shown or not."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What one policy would change against another, from the traffic of a range. warnings: what speaks against it.

    changes: of settings, one line each. ticks: recorded ones that were walked. total: of tokens per second over all
    cohorts, as a share with its 95 % interval; None where nothing could be expected.
    """

    range: TimeRange
    before: Policy
    after: Policy
    changes: list[str]
    cohorts: list[CohortForecast]
    total: Interval | None
    ticks: int
    currency: str | None
    basis: str
    warnings: list[str]

    def as_json(self) -> dict[str, Any]:
        """As `kadence policy plan --json` prints it."""
        total = self.total
        return {
            "range": {"start": self.range.start, "end": self.range.end},
            "before": self.before.revision,
            "after": self.after.revision,
            "changes": self.changes,
            "cohorts": [cohort.as_json() for cohort in self.cohorts],
            "tokens_per_s_change_percent": None if total is None else 100 * total.mid,
            "interval": None if total is None else {"low": 100 * total.low, "high": 100 * total.high},
            "ticks": self.ticks,
            "currency": self.currency,
            "basis": self.basis,
            "warnings": self.warnings,
        }

    def lines(self) -> Iterator[str]:
        """For a person: a sign, the cohort, what of it changes, and what that is expected to bring."""
        return _lines(self)


def planned(
    engine: sa.Engine,
    range: TimeRange,
    new: Policy,
    old: Policy,
    sheet: PriceSheet,
    watched: Watched = lambda ticks, _: ticks,
) -> Planned:
    """What `new` would change against `old`, from the traffic of the range. Changes nothing."""
    costs = cost_report(engine, range, "cohort", sheet)
    moved = moves(old, new, request_groups(engine, range))
    recorded = {row.key for row in costs.rows} | {cohort.name for cohort in old.cohorts}
    goes_to = targets(moved, recorded, new)
    outcome = walk(_controllers(engine, range, watched), new, goes_to)
    return Planned(
        range=range,
        before=old,
        after=new,
        changes=differences(old, new),
        cohorts=forecast(outcome, moved, goes_to, costs.rows),
        total=outcome.total.change,
        ticks=outcome.ticks,
        currency=costs.currency,
        basis=costs.basis,
        warnings=[*new.warnings, *warnings(new, outcome, moved), *_budgets(engine, new, sheet), *costs.unpriced],
    )


def _controllers(engine: sa.Engine, range: TimeRange, watched: Watched) -> Iterator[Iterable[RecordedTick]]:
    """The ticks of the range, one controller after the other."""
    for epoch, first, last in epochs(engine, range):
        own = TimeRange(max(first, range.start), min(range.end, math.nextafter(last, math.inf)))
        yield watched(ticks(engine, epoch, own), count_ticks(engine, epoch, own))


def _budgets(engine: sa.Engine, new: Policy, sheet: PriceSheet) -> Iterator[str]:
    now = time.time()
    for named in new.all_budgets:
        period = period_at(named.budget, now)
        use = used_in(engine, named, period)
        line = spent_over(status(named, BudgetState(period, use), spent(use, sheet), now))
        if line is not None:
            yield line


def _lines(said: Planned) -> Iterator[str]:
    old, new, changes, total = said.before, said.after, said.changes, said.total
    yield f"policy {old.revision} -> {new.revision}, on {said.ticks} recorded ticks"
    before = {cohort.name for cohort in old.cohorts}
    after = {cohort.name for cohort in new.cohorts}
    for cohort in said.cohorts:
        own = [line.partition(": ")[2] for line in changes if line.startswith(f"{cohort.name}: ")]
        sign = "+" if cohort.name not in before else "~" if own or cohort.moved_in else " "
        yield ""
        yield f"{sign} {cohort.name}: {cohort.requests:,} requests{_moved(cohort)}"
        yield from (f"    {line}" for line in own if line != "cohort added")
        if cohort.k_before:
            yield f"    K before       {_ks(cohort.k_before)}"
            yield f"    K after        {_ks(cohort.k_after)}"
        if cohort.change is not None:
            yield f"    tokens/s       {_percent(cohort.change)}"
        if cohort.tpot_p95_before_s is not None:
            yield f"    TPOT p95       {_from_to(1000 * cohort.tpot_p95_before_s, _ms(cohort.tpot_p95_s), 'ms')}"
        if cohort.cost_before is not None:
            yield f"    per 1M tokens  {_from_to(float(cohort.cost_before), cohort.cost, said.currency or '')}"
        if cohort.joules_before is not None:
            yield f"    per 1M tokens  {_from_to(cohort.joules_before, cohort.joules, 'J')}"
    for name in sorted(before - after):
        yield ""
        yield f"- {name}"
    yield ""
    for line in changes:
        if line.startswith(("order of cohorts", "experiment", "budget ")):
            yield line
    if not changes:
        yield "no setting changes"
    yield f"all cohorts: tokens/s {_percent(total)}" if total is not None else "all cohorts: nothing could be expected"


def _moved(cohort: CohortForecast) -> str:
    return "".join(f", {count:,} of them recorded in {name}" for name, count in cohort.moved_in.items())


def _ks(shares: dict[int, float]) -> str:
    return "  ".join(f"{k}: {share:.0%}" for k, share in shares.items())


def _percent(change: Interval) -> str:
    return f"{change.mid:+.1%} ({change.low:+.1%} to {change.high:+.1%})"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _from_to(before: float, after: Interval | float | None, unit: str) -> str:
    if after is None:
        return f"{_digits(before)} {unit}"
    if isinstance(after, float):
        return f"{_digits(before)} -> {_digits(after)} {unit}"
    return f"{_digits(before)} -> {_digits(after.mid)} ({_digits(after.low)} to {_digits(after.high)}) {unit}"


def _digits(value: float) -> str:
    """Four digits or all before the point: 12.93, 26,774."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
