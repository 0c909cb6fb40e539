"""`kadence experiment start|status|report|stop`: what speculation saves, measured on a running system."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.policy_cli.common import BAD, DEFAULT_URL, GOOD, WRONG_USE, AdminKey, AsJson, Url, operator, stop
from controlplane.policy_cli.http import ask
from controlplane.policy_cli.records import Config, DatabaseUrl

if TYPE_CHECKING:
    from controlplane.finops.savings_report import Report

experiment_app = typer.Typer(
    name="experiment", help="What speculation saves, with an honest interval.", no_args_is_help=True
)
ROUTE = "/admin/experiment"
FLAGS = {"unit": "--unit", "holdout": "--holdout", "window_s": "--window", "burn_in_s": "--burn-in", "pairs": "--pairs"}


class UnitName(StrEnum):
    WINDOW = "window"
    REPLICA = "replica"


class BasisName(StrEnum):
    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"
    OWNED = "owned"


@experiment_app.command("start")
def start(
    why: Annotated[str, typer.Option(help="For the record: what is to be found out.")] = "",
    unit: Annotated[UnitName | None, typer.Option(help="Compare windows of time, or replicas.")] = None,
    holdout: Annotated[str | None, typer.Option(help="Share of time without speculation: 5% or 0.05.")] = None,
    window: Annotated[str | None, typer.Option(help="Length of a window: 15m.")] = None,
    burn_in: Annotated[str | None, typer.Option(help="Not measured at a window's beginning: 5m.")] = None,
    pairs: Annotated[int | None, typer.Option(help="It ends after so many complete pairs. [60]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random order; default: drawn, and recorded.")] = None,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Start one on a running system. What is not given is taken from the policy's `experiment:` section.

    Exit code 1: refused or not reached. 2: wrong use.
    """
    asked = {
        "unit": None if unit is None else unit.value,
        "holdout": None if holdout is None else _share(holdout, as_json),
        "window_s": _seconds("--window", window, as_json),
        "burn_in_s": _seconds("--burn-in", burn_in, as_json),
        "pairs": pairs,
    }
    _check(asked, seed, as_json)
    asked["seed"] = seed
    body = {"why": why, **{name: value for name, value in asked.items() if value is not None}}
    answer = ask("PUT", url, ROUTE, admin_key, as_json, params={"by": operator()}, body=body)
    found = answer["experiment"]
    if as_json:
        typer.echo(json.dumps({"ok": True, **answer}))
        return
    days = found["pairs"] * found["pair_every_s"] / 86_400
    typer.echo(f"{found['id']}: {found['pairs']} pairs by {found['unit']}, {days:.1f} days; seed {found['seed']}")
    typer.echo("see how it stands: kadence experiment report")


@experiment_app.command("status")
def status(url: Url = DEFAULT_URL, admin_key: AdminKey = None, as_json: AsJson = False) -> None:
    """The experiment of a running system: which window it is in, how many pairs are complete."""
    answer = ask("GET", url, ROUTE, admin_key, as_json)
    found = answer["experiment"]
    if as_json:
        typer.echo(json.dumps(answer))
        return
    if found is None:
        typer.echo("no experiment; start one: kadence experiment start")
        return
    typer.echo(f"{found['id']}: {found['state']}, {found['done']} of {found['pairs']} pairs complete")
    typer.echo(f"by {found['by']}: {found['why'] or '-'}")
    if found["sentence"]:
        typer.echo(found["sentence"])
    if found["under_way"]:
        first, second = found["under_way"]
        typer.echo(
            f"pair {first['pair']} is under way ({first['arm']}, then {second['arm']}); now: {found['arm'] or '-'}"
        )


@experiment_app.command("stop")
def stop_it(
    why: Annotated[str, typer.Option(help="For the record.")],
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """End it; everybody is served as usual at once, and the pair under way is given up."""
    params = {"by": operator(), "why": why}
    answer = ask("DELETE", url, ROUTE, admin_key, as_json, params=params)
    done, name = answer["experiment"]["done"], answer["experiment"]["id"]
    typer.echo(json.dumps({"ok": True, **answer}) if as_json else f"{name}: stopped after {done} complete pairs")


@experiment_app.command("report")
def report(
    name: Annotated[str | None, typer.Argument(help="The beginning of its name; default: the newest.")] = None,
    basis: Annotated[
        BasisName | None, typer.Option(help="Which prices; default: the first that the sheet has.")
    ] = None,
    prices: Annotated[
        str | None, typer.Option(help="Price sheet; default: the configured one, else the one in the database.")
    ] = None,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """The saving, its interval, what it rests on, and what it does not say. Reads the database and nothing else.

    Exit code 1: no such experiment, or a guardrail is broken.
    """
    from controlplane.store.experiment_report import experiment_report
    from controlplane.store.experiments import experiments, find_experiment

    engine, sheet = _ledger_and_prices(prices, database_url, config, as_json)
    run = find_experiment(engine, name)
    if run is None:
        known = ", ".join(each.id for each in experiments(engine))
        missing = "no experiment is on record" if name is None else f"{name} is no experiment, or several"
        stop(f"{missing}; known: {known or 'none'}; start one: kadence experiment start", as_json)
    found = experiment_report(engine, run, sheet, time.time(), None if basis is None else basis.value)
    if as_json:
        typer.echo(json.dumps({"ok": not found.broken, **found.as_json()}))
    else:
        for line in report_lines(found):
            typer.echo(line)
    raise typer.Exit(BAD if found.broken else GOOD)


def report_lines(found: Report) -> list[str]:
    """The report as text."""
    from controlplane.store.time_range import iso

    run = found.run
    lines = [
        f"{run.id} by {run.spec.unit}, {run.state}, since {iso(run.started_at)}, by {run.by}: {run.why or '-'}",
        "",
        found.headline,
    ]
    if not found.savings["capacity"].is_clear:
        lines.append("(grey: its interval includes 0; nothing is claimed)")
    lines += ["", "savings (with speculation against without; intervals hold at every look)"]
    for measure, saved in found.savings.items():
        if saved.share is None:
            lines.append(f"  {measure:<9} unknown: it was not measured in any pair")
            continue
        interval = "no interval yet" if saved.low is None else f"{saved.low:+.1%} to {saved.high:+.1%}"
        lines.append(f"  {measure:<9} {saved.share:+.1%}   {interval}   {_count(saved.pairs)}, p {saved.p:.3g}")
    capacity = found.savings["capacity"]
    if capacity.removed:
        lines.append(f"  offered load explained {capacity.removed:.0%} of the variance between pairs")
    if capacity.left_out:
        lines.append(f"  not adjusted for {' and '.join(capacity.left_out)}: the arms differ in it by more than chance")
    lines.append(f"  {_still_needed(found)}")
    lines += ["", "guardrails", *(f"  {rail.sentence}" for rail in found.guardrails)]
    if found.length_distance is not None:
        lines.append(f"  mix of output lengths: {found.length_distance:.1%} of the outputs are in another bucket")
    lines += ["", "checks", *(f"  {check.sentence}" for check in found.checks)]
    lines += ["", *_month(found)]
    if found.refused:
        lines += ["", f"not counted: {_count(len(found.refused))}"]
        lines += [f"  pair {each.pair}: {each.reason}" for each in found.refused]
    return [*lines, "", "what this does not say", *(f"  - {line}" for line in found.not_said)]


def _still_needed(found: Report) -> str:
    capacity = found.savings["capacity"]
    if capacity.is_clear:
        return "no more pairs are needed to tell it from 0"
    if capacity.spread is None:
        return "how many more pairs it takes is said from the third on"
    if capacity.pairs_needed is None or capacity.seconds_needed is None:
        return "no number of pairs within reach tells it from 0 as it stands"
    days = capacity.seconds_needed / 86_400
    return f"about {capacity.pairs_needed} more pairs, {days:.1f} days, until 0 is left out, if it goes on like this"


def _count(pairs: int) -> str:
    return "1 pair" if pairs == 1 else f"{pairs} pairs"


def _month(found: Report) -> list[str]:
    month = found.projection
    if month.share is None or month.low is None or month.high is None:
        return ["the last 30 days: not projected", f"  {month.refused}"]
    money = ""
    if month.nano is not None and month.nano_low is not None and month.nano_high is not None:
        saved, low, high = (nano / 10**9 for nano in (month.nano, month.nano_low, month.nano_high))
        money = f", {saved:.2f} {found.currency} of machine time ({low:.2f} to {high:.2f})"
    return [f"the last 30 days: {month.share:+.1%} ({month.low:+.1%} to {month.high:+.1%}){money}", f"  {month.label}"]


def _ledger_and_prices(prices: str | None, database_url: str | None, config: Any, as_json: bool) -> tuple[Any, Any]:
    from pathlib import Path

    from controlplane.finops.pricing import PriceError, load_prices
    from controlplane.policy_cli.records import ledger
    from controlplane.settings import load_settings
    from controlplane.store.price_book import stored_prices

    engine = ledger(config, database_url, as_json)
    configured = load_settings(config, database_url=database_url).prices
    try:
        if prices is not None:
            return engine, load_prices(Path(prices))
        return engine, load_prices(configured) if configured.exists() else stored_prices(engine)
    except PriceError as error:
        stop(str(error), as_json)


def _share(text: str, as_json: bool) -> float:
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        stop(f"--holdout: {text!r} is not a share; write 5% or 0.05", as_json, WRONG_USE)


def _check(asked: dict[str, Any], seed: int | None, as_json: bool) -> None:
    """What no system would take is wrong use, whether one is reached or not."""
    from controlplane.experiment import MOST_SEED, setting_problem

    problem = setting_problem(asked)
    if problem is not None:
        stop(f"{FLAGS[problem[0]]}: {problem[1]}", as_json, WRONG_USE)
    if seed is not None and not 0 <= seed <= MOST_SEED:
        stop(f"--seed: {seed} is not a whole number from 0 to {MOST_SEED}", as_json, WRONG_USE)


def _seconds(flag: str, text: str | None, as_json: bool) -> float | None:
    from controlplane.store.time_range import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        stop(f"{flag}: {error}", as_json, WRONG_USE)
