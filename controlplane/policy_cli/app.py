"""The commands put together. What needs a database is imported when it is run: checking a file waits for YAML alone."""

from __future__ import annotations

import typer

from controlplane.policy_cli import endpoint, files, journal, plan, records

policy_app = typer.Typer(name="policy", help="Check, plan, apply and show the operator's policy.", no_args_is_help=True)
for module in (files, endpoint, records, journal, plan):
    for name, command in module.COMMANDS.items():
        policy_app.command(name)(command)
