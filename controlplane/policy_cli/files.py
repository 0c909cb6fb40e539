"""`kadence policy check`, `show` and `schema`: what is wrong with a file, what it comes to, what may be in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.policy.effective import SECTIONS, policy_view, text_of
from controlplane.policy.schema import policy_schema
from controlplane.policy_cli.common import (
    DEFAULT_URL,
    WRONG_USE,
    AdminKey,
    AsJson,
    File,
    Url,
    load,
    stop,
    summary,
    warn,
)
from controlplane.policy_cli.http import ask


def check(file: File, as_json: AsJson = False) -> None:
    """Say everything that is wrong with a policy file. Exit code 0: good, 1: bad, 2: it cannot be read."""
    policy = load(file, as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, "file": str(file), "problems": [], **summary(policy)}))
        return
    warn(file, policy)
    names = ", ".join(cohort.name for cohort in policy.cohorts)
    typer.echo(f"{file}: good, revision {policy.revision}, {len(policy.cohorts)} cohorts: {names}")


def show(
    file: Annotated[Path | None, typer.Argument(help="The policy file (YAML).", metavar="[FILE]")] = None,
    cohort: Annotated[str | None, typer.Option(help="Only this cohort.")] = None,
    effective: Annotated[bool, typer.Option(help="The policy in force on a running endpoint, not a file's.")] = False,
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show every cohort with all its values, and which of them the file gives and which are defaults."""
    if (file is None) != effective:
        stop("give a FILE, or --effective for the running endpoint's policy", as_json, WRONG_USE)
    if file is None:
        view = ask("GET", url, "/admin/policy", admin_key, as_json, params={"format": "json"})
        known = [each["name"] for each in view["cohorts"]]
        view["cohorts"] = [each for each in view["cohorts"] if cohort in (None, each["name"])]
        view["budgets"] = [each for each in view.get("budgets", ()) if cohort in (None, each["cohort"])]
    else:
        policy = load(file, as_json)
        known = [each.name for each in policy.cohorts]
        view = {"file": str(file), **policy_view(policy, cohort if cohort in known else None)}
        if not as_json:
            warn(file, policy)
    if cohort is not None and cohort not in known:
        stop(f"--cohort: there is no cohort {cohort!r}; there are {', '.join(known)}", as_json, WRONG_USE)
    if as_json:
        typer.echo(json.dumps({"ok": True, **view}))
        return
    typer.echo(f"revision {view['revision']}")
    for line in in_force(view):
        typer.echo(line)
    for each in view["cohorts"]:
        typer.echo(f"\n{each['name']}")
        for line in cohort_lines(each):
            typer.echo(f"  {line}")
    for each in view["budgets"]:
        typer.echo(f"\nbudget {each['name']}")
        for line in budget_lines(each):
            typer.echo(f"  {line}")


def schema(
    output: Annotated[Path | None, typer.Option(help="Write it there instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a policy file, for editors."""
    text = json.dumps(policy_schema(), indent=2)
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        stop(f"--output {output}: cannot be written: {error.strerror}", code=WRONG_USE)


COMMANDS = {"check": check, "show": show, "schema": schema}


def in_force(view: dict[str, Any]) -> list[str]:
    """Since when a running endpoint's policy is in force, by whom, and what is wrong with the file it follows."""
    lines = [f"applied by {view['applied_by']}: {view['why']}"] if view.get("applied_by") else []
    lines += [f"file not in force: {problem}" for problem in view.get("file_problems", ())]
    if view.get("rollout"):
        lines.append(f"rollout {view['rollout']['stage']}: {view['rollout']['sentence']}")
    return lines


def cohort_lines(cohort: dict[str, Any]) -> list[str]:
    """One line a field: section, field and value, and where the value comes from. Empty fields are left out."""
    lines = []
    for section in SECTIONS:
        fields = {name: value for name, value in (cohort[section] or {}).items() if value not in (None, [], {})}
        if not fields:
            lines.append(f"{section:<12} {'every request' if section == 'match' else 'none'}")
        for i, (name, value) in enumerate(fields.items()):
            source = _source(cohort["origin"][f"{section}.{name}"])
            lines.append(f"{'' if i else section:<12} {f'{name} {text_of(value)}':<40} {source}")
    return lines


def budget_lines(budget: dict[str, Any]) -> list[str]:
    """The same of a budget of the list `budgets:`."""
    return [
        f"{name:<12} {text_of(value):<40} {_source(budget['origin'][name])}"
        for name, value in budget.items()
        if name not in ("name", "origin") and value is not None
    ]


def _source(origin: dict[str, Any]) -> str:
    return "default" if origin["line"] is None else f"line {origin['line']}"
