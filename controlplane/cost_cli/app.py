"""The commands put together. A module here has COMMANDS (name -> function); one line below registers it."""

from __future__ import annotations

import typer

from controlplane.cost_cli import anomalies, export, reconcile, report, reprice
from controlplane.cost_cli.prices import prices_app

cost_app = typer.Typer(no_args_is_help=True, help="What serving cost, by cohort, tenant, model, hour and more.")


@cost_app.callback()
def cost() -> None:
    """What serving cost, by cohort, tenant, model, hour and more."""


for module in (report, export, reconcile, reprice, anomalies):
    for name, command in module.COMMANDS.items():
        cost_app.command(name)(command)
cost_app.add_typer(prices_app, name="prices")
