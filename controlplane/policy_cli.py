"""`kadence policy check`, `show` and `apply`: what is wrong with a policy file, what it says, and put it in force."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from controlplane.policy import CohortPolicy, Policy, PolicyError, PolicyFileError, load_policy

GOOD, BAD, WRONG_USE = 0, 1, 2

policy_app = typer.Typer(name="policy", help="Check, show and apply policy files.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The policy file (YAML).", metavar="FILE")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@policy_app.command()
def check(file: File, as_json: AsJson = False) -> None:
    """Say everything that is wrong with a policy file. Exit code 0: good, 1: bad, 2: it cannot be read."""
    policy = _load(file, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "file": str(file), "problems": [], **_summary(policy)}))
        return
    _warn(file, policy)
    names = ", ".join(cohort.name for cohort in policy.cohorts)
    typer.echo(f"{file}: good, revision {policy.revision}, {len(policy.cohorts)} cohorts: {names}")


@policy_app.command()
def show(file: File, as_json: AsJson = False) -> None:
    """Show what a policy file comes to, cohort by cohort, with all defaults filled in."""
    policy = _load(file, as_json)
    if as_json:
        shown = {**_summary(policy), "cohorts": [_cohort(cohort) for cohort in policy.cohorts]}
        typer.echo(json.dumps({"ok": True, "file": str(file), **shown}))
        return
    _warn(file, policy)
    typer.echo(f"revision {policy.revision}")
    for cohort in policy.cohorts:
        typer.echo(f"\n{cohort.name}")
        for section, fields in _cohort(cohort).items():
            if isinstance(fields, dict):
                said = ", ".join(
                    f"{name} {_text(value)}" for name, value in fields.items() if value not in (None, [], {})
                )
                typer.echo(f"  {section:<12} {said or ('every request' if section == 'match' else 'none')}")


@policy_app.command()
def apply(
    file: File,
    why: Annotated[str, typer.Option(help="For the journal: why the policy changes.")] = "",
    url: Annotated[str, typer.Option(help="The running endpoint.")] = "http://127.0.0.1:8000",
    admin_key: Annotated[
        str | None, typer.Option(envvar="KADENCE_ADMIN_KEY", help="Not needed on loopback where none is set.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put a policy file in force on a running endpoint, without a restart. Exit code 1: refused or not reached."""
    policy = _load(file, as_json)
    headers = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
    try:
        answer = httpx.put(
            f"{url.rstrip('/')}/admin/policy",
            params={"by": getpass.getuser(), "why": why},
            content=policy.text.encode(),
            headers=headers,
            timeout=15,
        )
        refusal = None if answer.is_success else _refusal(answer)
    except httpx.HTTPError as error:
        refusal = f"{url} cannot be reached ({error}); is `kadence up` running there?"
    if refusal is not None:
        typer.echo(json.dumps({"ok": False, "message": refusal}) if as_json else refusal, err=not as_json)
        raise typer.Exit(BAD)
    _warn(file, policy)
    if as_json:
        typer.echo(json.dumps({"ok": True, "file": str(file), **_summary(policy)}))
    else:
        typer.echo(f"{file}: in force at {url}, revision {policy.revision}")


def _refusal(answer: httpx.Response) -> str:
    """What the endpoint said, in one line."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answered {answer.status_code}"


def _load(file: Path, as_json: bool) -> Policy:
    """The policy, or the end of the command with what is wrong on stderr (as JSON: on stdout)."""
    try:
        return load_policy(file)
    except PolicyError as error:
        if as_json:
            problems = [{"line": p.line, "field": p.field, "message": p.message} for p in error.problems]
            typer.echo(json.dumps({"ok": False, "file": str(file), "problems": problems, "warnings": []}))
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(WRONG_USE if isinstance(error, PolicyFileError) else BAD) from None


def _warn(file: Path, policy: Policy) -> None:
    for warning in policy.warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)


def _summary(policy: Policy) -> dict[str, Any]:
    return {
        "version": policy.version,
        "revision": policy.revision,
        "cohorts": [cohort.name for cohort in policy.cohorts],
        "warnings": list(policy.warnings),
    }


def _cohort(cohort: CohortPolicy) -> dict[str, Any]:
    """Everything in force for a cohort; seconds and shares, money as a decimal string."""
    match, speculation, guard, budget = cohort.match, cohort.speculation, cohort.guard, cohort.budget
    return {
        "name": cohort.name,
        "match": {
            "api_key": list(match.api_key),
            "route": list(match.route),
            "model": list(match.model),
            "headers": {name: list(allowed) for name, allowed in match.headers.items()},
            "user": list(match.user),
            "metadata": {name: list(allowed) for name, allowed in match.metadata.items()},
            "service_tier": list(match.service_tier),
        },
        "speculation": {
            "tuner": speculation.tuner,
            "acceptance_floor": speculation.acceptance_floor if speculation.tuner == "threshold" else None,
            "ladder": list(speculation.ladder),
            "start": speculation.start,
            "fallback": speculation.fallback,
            "objective": speculation.objective,
        },
        "guard": {
            "tolerance": guard.tolerance,
            "hold_s": guard.hold_s,
            "min_samples": guard.min_samples,
            "probe_every_s": guard.probe_every_s,
        },
        "slo": {"tpot_p95_s": cohort.slo.tpot_p95_s, "ttft_p95_s": cohort.slo.ttft_p95_s},
        "budget": None
        if budget is None
        else {
            "usd": str(budget.usd),
            "period": budget.period,
            "soft": budget.soft,
            "on_exceeded": budget.on_exceeded,
        },
    }


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(str(each) for each in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
