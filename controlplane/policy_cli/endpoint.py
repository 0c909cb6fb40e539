"""`kadence policy apply`: put a policy in force on a running endpoint."""

from __future__ import annotations

import getpass
import json
from typing import Annotated

import typer

from controlplane.policy_cli.common import DEFAULT_URL, AdminKey, AsJson, File, Url, load, summary, warn
from controlplane.policy_cli.http import ask


def apply(
    file: File,
    why: Annotated[str, typer.Option(help="For the journal: why the policy changes.")] = "",
    url: Url = DEFAULT_URL,
    admin_key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Put a policy file in force on a running endpoint, without a restart. Exit code 1: refused or not reached."""
    policy = load(file, as_json)
    params = {"by": getpass.getuser(), "why": why}
    ask("PUT", url, "/admin/policy", admin_key, as_json, params=params, content=policy.text.encode())
    if as_json:
        typer.echo(json.dumps({"ok": True, "file": str(file), **summary(policy)}))
        return
    warn(file, policy)
    typer.echo(f"{file}: in force at {url}, revision {policy.revision}")


COMMANDS = {"apply": apply}
