"""The control plane's commands, each a Typer app that is imported when it is asked for.

`policy_app` needs YAML alone, `cost_app` and `db_app` the database: whoever checks a policy does not wait for
SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def __getattr__(name: str) -> typer.Typer:
    if name == "policy_app":
        from controlplane.policy_cli import policy_app

        return policy_app
    if name == "alerts_app":
        from controlplane.alerts_cli import alerts_app

        return alerts_app
    if name == "budget_app":
        from controlplane.budget_cli import budget_app

        return budget_app
    if name == "cost_app":
        from controlplane.cost_cli import cost_app

        return cost_app
    if name == "experiment_app":
        from controlplane.experiment_cli import experiment_app

        return experiment_app
    if name == "keys_app":
        from controlplane.keys_cli import keys_app

        return keys_app
    if name == "db_app":
        from controlplane.db_cli import db_app

        return db_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
