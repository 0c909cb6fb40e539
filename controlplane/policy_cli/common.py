"""What the policy commands share: their arguments, their exits, and how a file's problems are said."""

from __future__ import annotations

import getpass
import json
import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from controlplane.policy import Policy, PolicyError, PolicyFileError, load_policy

GOOD, BAD, WRONG_USE = 0, 1, 2

File = Annotated[Path, typer.Argument(help="The policy file (YAML).", metavar="FILE")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Url = Annotated[str, typer.Option(help="The running endpoint.")]
AdminKey = Annotated[
    str | None, typer.Option(envvar="KADENCE_ADMIN_KEY", help="Not needed on loopback where none is set.")
]
DEFAULT_URL = "http://127.0.0.1:8000"


def load(file: Path, as_json: bool) -> Policy:
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


def operator() -> str:
    """Who runs this command, for the record: a user without a name, as in many containers, by its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"uid {os.getuid()}"


def warn(file: Path, policy: Policy) -> None:
    for warning in policy.warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)


def summary(policy: Policy) -> dict[str, Any]:
    return {
        "version": policy.version,
        "revision": policy.revision,
        "cohorts": [cohort.name for cohort in policy.cohorts],
        "warnings": list(policy.warnings),
    }


def stop(message: str, as_json: bool = False, code: int = BAD) -> NoReturn:
    """End the command with one line of why."""
    typer.echo(json.dumps({"ok": False, "message": message}) if as_json else message, err=not as_json)
    raise typer.Exit(code)
