"""Commands that are imported only when they are called, so that `kadence --help` need not load torch or SQLAlchemy."""

from __future__ import annotations

import importlib
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

LAZY_COMMANDS: dict[str, tuple[str, str]] = {
    "load": ("workers.load.command:load_app", "Send real traffic to a running endpoint and measure it."),
    "model": ("workers.models.command:model_app", "Fetch and list models."),
    "policy": ("controlplane.cli:policy_app", "Check, apply and show the operator's policy."),
    "cost": ("controlplane.cli:cost_app", "What serving cost, by cohort, model, tenant or hour."),
    "db": ("controlplane.cli:db_app", "Upgrade and check the database."),
}
"""Name -> (module:attribute of a Typer app, the line that `--help` shows)."""


class LazyGroup(TyperGroup):
    """A group whose LAZY_COMMANDS are stand-ins until one is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, line) in LAZY_COMMANDS.items():
            self.commands.setdefault(name, TyperCommand(name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in LAZY_COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """The real command behind a LAZY_COMMANDS name."""
    target, line = LAZY_COMMANDS[name]
    module, _, attribute = target.partition(":")
    app: typer.Typer = getattr(importlib.import_module(module), attribute)
    if len(app.registered_commands) == 1 and not app.registered_groups and not app.registered_callback:
        command = typer.main.get_command(app)
        command.name, command.help = name, command.help or line
        return command
    # Mounted, so that the options of shell completion stay at the top.
    outer = typer.Typer(add_completion=False)
    outer.add_typer(app, name=name, help=line)
    return typer.main.get_group(outer).commands[name]
