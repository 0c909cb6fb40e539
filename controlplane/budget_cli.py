"""`kadence budget status`, where budgets of a running system stand, and `history`, where those of past periods did."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any

import typer

from controlplane.policy_cli.common import DEFAULT_URL, WRONG_USE, AdminKey, AsJson, Url, stop
from controlplane.policy_cli.http import ask
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

budget_app = typer.Typer(name="budget", help="Where budgets stand.", no_args_is_help=True)


@budget_app.command("status")
def status(
    name: Annotated[str | None, typer.Argument(help="Only this budget.", metavar="[NAME]")] = None,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """What each budget has spent, what is expected at its reset, and when that is. Exit code 1: one is exceeded."""
    answer = ask("GET", url, "/admin/budgets", admin_key, as_json)
    known = [each["name"] for each in answer["budgets"]]
    if name is not None and name not in known:
        there = f"there are {', '.join(known)}" if known else "the policy in force has none"
        stop(f"there is no budget {name!r}; {there}", as_json, WRONG_USE)
    shown = [each for each in answer["budgets"] if name in (None, each["name"])]
    if as_json:
        typer.echo(json.dumps({"ok": not any(each["state"] == "exceeded" for each in shown), "budgets": shown}))
    else:
        for each in shown:
            for line in budget_lines(each):
                typer.echo(line)
        if not shown:
            typer.echo("the policy in force has no budget")
    if any(each["state"] == "exceeded" for each in shown):
        raise typer.Exit(1)


@budget_app.command("history")
def history(
    name: Annotated[str | None, typer.Argument(help="Only this budget.", metavar="[NAME]")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many periods.")] = 50,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What budgets had spent in each period when they were last looked at, newest first, from the ledger."""
    from controlplane.finops.spending import dollars, money
    from controlplane.store.budgets import budget_history

    entries = budget_history(ledger(config, database_url, as_json), name, limit)
    if as_json:
        periods = [
            {
                "name": each.name,
                "period": each.period,
                "started_at": each.period_start,
                "ended_at": each.period_end,
                "limit": money(each.limit_nano),
                "spent": None if each.standing == "unknown" else money(each.spent_nano),
                "spent_at_least": money(each.spent_nano),
                "state": each.standing,
                "why": each.unknown_why or None,
                "alerted": each.fired,
            }
            for each in entries
        ]
        typer.echo(json.dumps({"periods": periods}))
        return
    for each in entries:
        least = "at least " if each.standing == "unknown" else ""
        spent = f"{least}{dollars(each.spent_nano)} of {dollars(each.limit_nano)} USD"
        typer.echo(f"{each.period:<10}  {each.name}  {each.standing}: {spent}")
    if not entries:
        typer.echo("no budget is on record" if name is None else f"no period of a budget {name!r} is on record")


def budget_lines(budget: dict[str, Any]) -> list[str]:
    """A budget for a person: where it stands, what was spent of it, what is expected."""
    whose = [f"{what} {budget[what]}" for what in ("tenant", "cohort") if budget[what] is not None]
    lines = [f"{budget['name']}  {budget['state']}  ({', '.join(whose)}, {budget['period']})"]
    spent = f"at least {_dollars(budget['spent_at_least'])}" if budget["spent"] is None else _dollars(budget["spent"])
    told = ", ".join(f"{100 * share:g} %" for share in sorted({*budget["soft"], 1.0}))
    lines.append(f"    spent     {spent} of {_dollars(budget['limit'])} {budget['currency']}; alerts at {told}")
    if budget["why"]:
        lines.append(f"    unknown   {budget['why']}: not enforced")
    if Decimal(budget["reserved"]):
        lines.append(f"    reserved  {_dollars(budget['reserved'])} for requests under way")
    ahead = budget["forecast"]
    if ahead is not None:
        between = "" if ahead["low"] is None else f" ({_dollars(ahead['low'])} to {_dollars(ahead['high'])})"
        lines.append(f"    expected  {_dollars(ahead['at_reset'])}{between} at the reset, {_exceeds(budget, ahead)}")
    lines.append(f"    resets    {budget['resets_at_local']}; when it is exceeded: {budget['on_exceeded']}")
    if budget["rejections"]:
        lines.append(f"    refused   {budget['rejections']} requests since the controller started")
    return lines


def _exceeds(budget: dict[str, Any], ahead: dict[str, Any]) -> str:
    if budget["state"] == "exceeded":
        return "exceeded already"
    if ahead["exceeds_at"] is None:
        return "which is within the budget" if Decimal(ahead["at_reset"]) <= Decimal(budget["limit"]) else "over it"
    from controlplane.store.time_range import iso

    return f"exceeded on {iso(ahead['exceeds_at'])} at this rate"


def _dollars(amount: str) -> str:
    """Cents; four digits of what is less than a dollar."""
    from controlplane.finops.pricing import NANO
    from controlplane.finops.spending import dollars

    return dollars(int(Decimal(amount) * NANO))
