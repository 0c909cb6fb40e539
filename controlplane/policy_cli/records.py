"""`kadence policy history` and `diff`: who put which policy in force and why, from the ledger."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.policy import Policy, parse_policy
from controlplane.policy.effective import differences
from controlplane.policy_cli.common import WRONG_USE, AsJson, load, stop

if TYPE_CHECKING:
    import sqlalchemy as sa

DatabaseUrl = Annotated[str | None, typer.Option(help="Database; default: the configured one.")]
Config = Annotated[Path | None, typer.Option(help="YAML file of settings.")]


def history(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 50,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Policies as they were put in force, newest first: when, by whom, and why."""
    from controlplane.store.policies import history_json, policy_history
    from controlplane.store.time_range import iso

    entries = policy_history(ledger(config, database_url, as_json), limit)
    if as_json:
        typer.echo(json.dumps({"history": [history_json(entry) for entry in entries]}))
        return
    if not entries:
        typer.echo("no policy was put in force yet: `kadence up` does it")
    for entry in entries:
        typer.echo(f"{iso(entry.applied_at)}  {entry.revision}  {entry.what:<11} {entry.applied_by}: {entry.why}")


def diff(
    before: Annotated[str, typer.Argument(help="A revision of the history, its beginning, or a FILE.", metavar="OLD")],
    after: Annotated[str, typer.Argument(help="Likewise.", metavar="NEW")],
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """What changes from one policy to another: cohort by cohort, then the text. Exit code 1: something does."""
    old, new = (_policy(name, config, database_url, as_json) for name in (before, after))
    changes, lines = differences(old, new), text_diff(old, new)
    if as_json:
        said = {"before": old.revision, "after": new.revision, "changes": changes, "text": "\n".join(lines)}
        typer.echo(json.dumps(said))
    else:
        for line in changes or ["no setting changes"]:
            typer.echo(line)
        for line in ["", *lines] if lines else []:
            typer.echo(line)
    raise typer.Exit(1 if changes else 0)


def text_diff(old: Policy, new: Policy) -> list[str]:
    """The lines of a unified diff of their texts; none where they are the same."""
    names = f"policy {old.revision}", f"policy {new.revision}"
    return list(difflib.unified_diff(old.text.splitlines(), new.text.splitlines(), *names, lineterm=""))


def ledger(config: Path | None, database_url: str | None, as_json: bool) -> sa.Engine:
    """The configured ledger, or the end of the command with why it cannot be read."""
    from controlplane.settings import SettingsError, load_settings
    from controlplane.store.engine import StoreError
    from controlplane.store.queries import open_ledger

    try:
        return open_ledger(load_settings(config, database_url=database_url).database_url)
    except SettingsError as error:
        stop(str(error), as_json, WRONG_USE)
    except StoreError as error:
        stop(str(error), as_json)


def _policy(name: str, config: Path | None, database_url: str | None, as_json: bool) -> Policy:
    """The policy of a file, else of a revision in the ledger."""
    if Path(name).is_file():
        return load(Path(name), as_json)
    from controlplane.store.policies import find_policies

    found = find_policies(ledger(config, database_url, as_json), name)
    if len(found) != 1:
        known = f"several policies: {', '.join(found)}" if found else "no policy of the history, and no file"
        stop(f"{name} is {known}; see: kadence policy history", as_json, WRONG_USE)
    ((revision, text),) = found.items()
    return parse_policy(text, source=f"revision {revision}")


COMMANDS: dict[str, Any] = {"history": history, "diff": diff}
