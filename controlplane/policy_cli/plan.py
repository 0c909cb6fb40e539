"""`kadence policy plan`: what a policy would change, from the recorded traffic, before anyone applies it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.policy import Policy, PolicyError, parse_policy
from controlplane.policy.effective import differences
from controlplane.policy_cli.common import WRONG_USE, AsJson, File, load, stop
from controlplane.policy_cli.journal import Since, Until, moments, shown
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

if TYPE_CHECKING:
    import sqlalchemy as sa

    from controlplane.comparison import Interval
    from controlplane.finops.pricing import PriceSheet
    from controlplane.policy_forecast import CohortForecast
    from controlplane.store.recorded import RecordedTick
    from controlplane.store.time_range import TimeRange


def plan(
    file: File,
    since: Since = "24h",
    until: Until = None,
    against: Annotated[
        Path | None, typer.Option(help="The policy to compare with; default: the last one that was put in force.")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="Price sheet; default: the configured one, else the one in the database.")
    ] = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What a policy would change, from recorded traffic: cohorts, K, speed, latency, money, energy. Changes nothing."""
    from controlplane.policy_forecast import forecast, moves, targets, warnings
    from controlplane.policy_plan import walk
    from controlplane.store.cost import cost_report
    from controlplane.store.recorded import request_groups

    new = load(file, as_json)
    engine, range = ledger(config, database_url, as_json), moments(since, until, as_json)
    old = load(against, as_json) if against else _in_force(engine, as_json)
    sheet = _prices(prices, config, engine, as_json)
    costs = cost_report(engine, range, "cohort", sheet)
    moved = moves(old, new, request_groups(engine, range))
    recorded = {row.key for row in costs.rows} | {cohort.name for cohort in old.cohorts}
    goes_to = targets(moved, recorded, new)
    outcome = walk(_controllers(engine, range), new, goes_to)
    cohorts = forecast(outcome, moved, goes_to, costs.rows)
    said = [*new.warnings, *warnings(new, outcome, moved), *_budgets(engine, new, sheet), *costs.unpriced]
    changes = differences(old, new)
    if as_json:
        total = outcome.total.change
        typer.echo(
            json.dumps(
                {
                    "range": {"start": range.start, "end": range.end},
                    "before": old.revision,
                    "after": new.revision,
                    "changes": changes,
                    "cohorts": [cohort.as_json() for cohort in cohorts],
                    "tokens_per_s_change_percent": None if total is None else 100 * total.mid,
                    "interval": None if total is None else {"low": 100 * total.low, "high": 100 * total.high},
                    "ticks": outcome.ticks,
                    "currency": costs.currency,
                    "basis": costs.basis,
                    "warnings": said,
                }
            )
        )
        return
    for line in _lines(old, new, changes, cohorts, outcome.total.change, outcome.ticks, costs.currency):
        typer.echo(line)
    for warning in said:
        typer.echo(f"warning: {warning}", err=True)


COMMANDS = {"plan": plan}


def _in_force(engine: sa.Engine, as_json: bool) -> Policy:
    from controlplane.store.queries import policy_log

    applied = policy_log(engine, limit=1)
    if not applied:
        stop("no policy was put in force on this ledger yet: name the one to compare with by --against", as_json)
    try:
        return parse_policy(applied[0].text, source=f"revision {applied[0].revision}")
    except PolicyError as error:
        stop(f"the policy on record is not one of this release: {str(error).splitlines()[0]}; use --against", as_json)


def _prices(named: Path | None, config: Path | None, engine: sa.Engine, as_json: bool) -> PriceSheet:
    """The file that was named, else the configured file if it is there, else the database's price book."""
    from controlplane.finops.pricing import PriceError, load_prices
    from controlplane.settings import load_settings
    from controlplane.store.price_book import stored_prices

    path = named or load_settings(config).prices
    try:
        return load_prices(path) if named or path.exists() else stored_prices(engine)
    except PriceError as error:
        stop(str(error), as_json, WRONG_USE if named else 1)


def _controllers(engine: sa.Engine, range: TimeRange) -> Iterator[Iterator[RecordedTick]]:
    """The ticks of the range, one controller after the other."""
    from controlplane.store.recorded import count_ticks, epochs, ticks
    from controlplane.store.time_range import TimeRange

    for epoch, first, last in epochs(engine, range):
        own = TimeRange(max(first, range.start), min(range.end, math.nextafter(last, math.inf)))
        yield shown(ticks(engine, epoch, own), "planning", count_ticks(engine, epoch, own))


def _budgets(engine: sa.Engine, new: Policy, sheet: PriceSheet) -> Iterator[str]:
    from controlplane.finops.budget import BudgetState, status
    from controlplane.finops.periods import period_at
    from controlplane.finops.spending import spent
    from controlplane.policy_forecast import spent_over
    from controlplane.store.budgets import used_in

    now = time.time()
    for named in new.all_budgets:
        period = period_at(named.budget, now)
        use = used_in(engine, named, period)
        line = spent_over(status(named, BudgetState(period, use), spent(use, sheet), now))
        if line is not None:
            yield line


def _lines(
    old: Policy,
    new: Policy,
    changes: list[str],
    cohorts: list[CohortForecast],
    total: Interval | None,
    ticks: int,
    currency: str | None,
) -> Iterator[str]:
    """The plan for a person: a sign, the cohort, what of it changes, and what that is expected to bring."""
    yield f"policy {old.revision} -> {new.revision}, on {ticks} recorded ticks"
    before = {cohort.name for cohort in old.cohorts}
    after = {cohort.name for cohort in new.cohorts}
    for cohort in cohorts:
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
            yield f"    per 1M tokens  {_from_to(float(cohort.cost_before), cohort.cost, currency or '')}"
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
