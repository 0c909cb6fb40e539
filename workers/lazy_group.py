"""Commands that are imported only when they are called, so that `kadence --help` need not load torch or SQLAlchemy."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

LAZY_COMMANDS: dict[str, tuple[str, str]] = {
    "load": ("workers.load.command:load_app", "Send real traffic to a running endpoint and measure it."),
    "model": ("workers.models.command:model_app", "Fetch and list models."),
    "train": ("workers.training.command:train_app", "Train drafters for a model on its own answers."),
    "policy": ("controlplane.cli:policy_app", "Check, apply and show the operator's policy."),
    "keys": ("controlplane.cli:keys_app", "Make, rotate and revoke API keys."),
    "alerts": ("controlplane.cli:alerts_app", "List and clear alerts of a running system."),
    "budget": ("controlplane.cli:budget_app", "Where budgets stand, and what is expected of them."),
    "cost": ("controlplane.cli:cost_app", "What serving cost, by cohort, model, tenant or hour."),
    "experiment": ("controlplane.cli:experiment_app", "What speculation saves, with an honest interval."),
    "db": ("controlplane.cli:db_app", "Upgrade and check the database."),
    "bench": ("benchmarks.command:bench_app", "Measure parts of Kadence, each against what one would use instead."),
}
"""Name -> (module:attribute of a Typer app or of one command's function, the line that `--help` shows)."""


class LazyGroup(TyperGroup):
    """A group whose lazy commands are stand-ins until one is called."""

    lazy_commands: ClassVar[Mapping[str, tuple[str, str]]] = LAZY_COMMANDS

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, line) in self.lazy_commands.items():
            self.commands.setdefault(name, TyperCommand(name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.lazy_commands:
            self.commands[args[0]] = load_command(args[0], self.lazy_commands)
        return super().resolve_command(ctx, args)


def load_command(name: str, commands: Mapping[str, tuple[str, str]] = LAZY_COMMANDS) -> Any:
    """The real command behind a name of LAZY_COMMANDS, or of another group's."""
    target, line = commands[name]
    module, _, attribute = target.partition(":")
    app = getattr(importlib.import_module(module), attribute)
    if not isinstance(app, typer.Typer):
        function, app = app, typer.Typer(add_completion=False)
        app.command(name)(function)
    if len(app.registered_commands) == 1 and not app.registered_groups and not app.registered_callback:
        command = typer.main.get_command(app)
        command.name, command.help = name, command.help or line
        return command
    # Mounted, so that the options of shell completion stay at the top.
    outer = typer.Typer(add_completion=False)
    outer.add_typer(app, name=name, help=line)
    return typer.main.get_group(outer).commands[name]
