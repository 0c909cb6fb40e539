"""`kadence policy check` and `kadence policy show`: what is wrong with a policy file, and what it comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.policy import CohortPolicy, Policy, PolicyError, PolicyFileError, load_policy

GOOD, BAD, WRONG_USE = 0, 1, 2

policy_app = typer.Typer(name="policy", help="Check and show policy files.", no_args_is_help=True)

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
