"""`kadence policy apply` and `rollout`: put a policy in force on a running endpoint, or on a part of it first."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from controlplane.policy_cli.common import (
    BAD,
    DEFAULT_URL,
    GOOD,
    WRONG_USE,
    AdminKey,
    AsJson,
    File,
    Url,
    load,
    operator,
    stop,
    summary,
    warn,
)
from controlplane.policy_cli.http import ask

POLL_S = 2.0


class UnitName(StrEnum):
    REPLICAS = "replicas"
    COHORTS = "cohorts"


def apply(
    file: File,
    why: Annotated[str, typer.Option(help="For the journal: why the policy changes.")] = "",
    stage: Annotated[str | None, typer.Option(help="Try it on a part first: 10% or 0.1.")] = None,
    unit: Annotated[UnitName, typer.Option(help="With --stage: a part of what.")] = UnitName.REPLICAS,
    min_windows: Annotated[int, typer.Option(help="With --stage: seconds of both parts before a verdict.")] = 60,
    max_s: Annotated[float, typer.Option("--max-s", help="With --stage: rolled back after so many seconds.")] = 1800,
    wait: Annotated[bool, typer.Option("--wait", help="With --stage: until it is promoted (0) or not (1).")] = False,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Put a policy file in force on a running endpoint, without a restart. Exit code 1: refused or not reached."""
    policy = load(file, as_json)
    if wait and stage is None:
        stop("--wait: there is nothing to wait for without --stage", as_json, WRONG_USE)
    params: dict[str, Any] = {"by": operator(), "why": why}
    if stage is not None:
        params |= {"stage": share(stage, as_json), "unit": unit.value, "min_windows": min_windows, "max_s": max_s}
    ask("PUT", url, "/admin/policy", admin_key, as_json, params=params, content=policy.text.encode())
    if not as_json:
        warn(file, policy)
        where = "in force at" if stage is None else f"tried on {stage} of the {unit.value} at"
        typer.echo(f"{file}: {where} {url}, revision {policy.revision}")
    said = {"ok": True, "file": str(file), **summary(policy), "staged": stage is not None}
    if wait:
        ended = _until_over(url, admin_key, as_json, policy.revision)
        said |= {"ok": ended["stage"] == "promoted", "rollout": ended}
    if as_json:
        typer.echo(json.dumps(said))
    raise typer.Exit(GOOD if said["ok"] else BAD)


def rollout(
    abort: Annotated[bool, typer.Option("--abort", help="End it: all back to the policy in force.")] = False,
    why: Annotated[str, typer.Option(help="With --abort, for the journal.")] = "",
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """The policy that is being tried on a part of a running endpoint, or the last one that was; and end it."""
    if abort:
        params = {"by": operator(), "why": why}
        ask("DELETE", url, "/admin/policy/rollout", admin_key, as_json, params=params)
    found = ask("GET", url, "/admin/policy/rollout", admin_key, as_json)["rollout"]
    if as_json:
        typer.echo(json.dumps({"ok": True, "rollout": found}))
        return
    if found is None:
        typer.echo("no policy is being tried on a part, and none was since the controller started")
        return
    typer.echo(f"{found['revision']} on {found['share']:.0%} of the {found['unit']}: {', '.join(found['members'])}")
    typer.echo(f"by {found['by']}: {found['why']}")
    typer.echo(f"{found['stage']}: {found['sentence']}")


COMMANDS = {"apply": apply, "rollout": rollout}


def share(text: str, as_json: bool) -> float:
    """A share written as 10% or 0.1; ends the command where it is neither."""
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        stop(f"--stage: {text!r} is not a share between 0 and 1; write 10% or 0.1", as_json, WRONG_USE)
    return value


def _until_over(url: str, admin_key: str | None, as_json: bool, revision: str) -> dict[str, Any]:
    """Say each new sentence on stderr until the rollout of that revision is over; what it came to."""
    said = ""
    while True:
        found: dict[str, Any] | None = ask("GET", url, "/admin/policy/rollout", admin_key, as_json)["rollout"]
        if found is None or found["revision"] != revision:
            stop("the rollout is gone: the controller was restarted, or another policy was applied", as_json)
        if found["sentence"] != said:
            said = found["sentence"]
            typer.echo(said, err=True)
        if found["stage"] != "staged":
            return found
        time.sleep(POLL_S)
