"""`kadence alerts list|clear`: what a running system wants an operator to look at."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from controlplane.policy_cli.common import DEFAULT_URL, AdminKey, AsJson, Url, operator
from controlplane.policy_cli.http import ask

alerts_app = typer.Typer(name="alerts", help="List and clear alerts of a running system.", no_args_is_help=True)


class State(StrEnum):
    """Which alerts to list."""

    ACTIVE = "active"
    CLEARED = "cleared"
    ALL = "all"


@alerts_app.command("list")
def list_alerts(
    state: Annotated[State, typer.Option(help="Which ones.")] = State.ACTIVE,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Alerts, newest first: what, how often, since when."""
    answer = ask("GET", url, "/admin/alerts", admin_key, as_json, params={"state": state.value})
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for alert in answer["alerts"]:
        typer.echo(_line(alert))
    if not answer["alerts"]:
        typer.echo("no alerts" if state is State.ALL else f"no {state.value} alerts")


@alerts_app.command("clear")
def clear(
    name: Annotated[str, typer.Argument(help="As `kadence alerts list` shows it, such as canary:ngram@1.")],
    why: Annotated[str, typer.Option(help="For the record: what was found and done.")],
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Clear one alert. A drafter that the canary stopped drafts again, and is checked again."""
    order = {"clear": name, "reason": why}
    alert = ask("PUT", url, "/admin/alerts", admin_key, as_json, params={"by": operator()}, body=order)
    typer.echo(json.dumps({"ok": True, **alert}) if as_json else f"{name}: cleared after {alert['count']} sightings")


def _line(alert: dict[str, Any]) -> str:
    from controlplane.store.time_range import iso

    seen = f"{alert['count']} times from {iso(alert['first_seen'])} to {iso(alert['last_seen'])}"
    cleared = f"; cleared by {alert['cleared_by']}: {alert['why']}" if alert["state"] == "cleared" else ""
    return f"{alert['name']}  {alert['severity']}, {seen}{cleared}\n    {alert['detail']}"
