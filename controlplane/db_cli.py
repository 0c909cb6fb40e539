"""`kadence db upgrade|verify|prune`: the ledger's schema, its soundness and its retention."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from controlplane.settings import SettingsError, load_settings
from controlplane.store import upkeep
from controlplane.store.engine import StoreError, one_line
from controlplane.store.migrate import current
from controlplane.store.migrate import upgrade as upgrade_database
from controlplane.store.queries import database_state, open_ledger
from controlplane.store.time_range import iso, parse_duration

db_app = typer.Typer(no_args_is_help=True, help="The ledger's database: upgrade, check, prune.")

DatabaseUrl = Annotated[str | None, typer.Option(help="Database; default: the configured one.")]
Config = Annotated[Path | None, typer.Option(help="YAML file of settings.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

SHORTEST_RETENTION_S = 86400.0


@db_app.command()
def upgrade(database_url: DatabaseUrl = None, config: Config = None, as_json: AsJson = False) -> None:
    """Create the database or bring it to the revision that this Kadence needs."""
    url = _url(database_url, config)
    with _failing_in_one_line():
        before = current(url)
        after = upgrade_database(url)
    done = "is" if before == after else f"went from {before} to" if before else "was created at"
    _print({"database": _shown(url), "before": before, "after": after}, f"{_shown(url)} {done} {after}", as_json)


@db_app.command()
def verify(database_url: DatabaseUrl = None, config: Config = None, as_json: AsJson = False) -> None:
    """Revision, row counts and integrity; exit code 1 when something is wrong."""
    url = _url(database_url, config)
    state = database_state(url)
    result = upkeep.Verification({}, ())
    problems: tuple[str, ...] = ()
    try:
        engine = open_ledger(url)
        result = upkeep.verify(engine)
        problems = result.problems
    except StoreError as e:
        problems = (str(e),)
    except DBAPIError as e:
        problems = (one_line(e),)
    revision = current(url) if state in ("ok", "older", "newer") else None
    answer = {
        "ok": not problems,
        "database": _shown(url),
        "state": state,
        "revision": revision,
        "counts": result.counts,
        "problems": list(problems),
    }
    lines = [f"{_shown(url)}: {state}" + (f", revision {revision}" if revision else "")]
    lines += [f"  {table:<18}{count:>12,}" for table, count in result.counts.items()]
    lines += [f"  problem: {p}" for p in problems] or ["  sound"]
    _print(answer, "\n".join(lines), as_json)
    if problems:
        raise typer.Exit(1)


@db_app.command()
def prune(
    older_than: Annotated[
        str | None,
        typer.Option(help="What ended longer ago than this goes: 30d. Default: the setting retention_days."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow less than one day.")] = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Delete old windows and requests. Their cost stays in reports, hour by hour; decisions and plans stay."""
    try:
        settings = load_settings(config, database_url=database_url)
    except SettingsError as e:
        _stop(str(e), 2)
    if older_than is None and not settings.retention_days:
        _stop("retention_days: 0 keeps everything; name an age with --older-than, such as 30d", 2)
    try:
        age = parse_duration(f"{settings.retention_days}d" if older_than is None else older_than)
    except ValueError as e:
        _stop(f"--older-than: {e}", 2)
    if age < SHORTEST_RETENTION_S and not force:
        _stop(f"--older-than: {older_than} would leave less than one day; add --force if you mean it", 2)
    before = upkeep.retention_ends(time.time(), age / upkeep.DAY_S)
    with _failing_in_one_line():
        gone = upkeep.prune(open_ledger(settings.database_url), before)
    _print(
        {"before": iso(before), **asdict(gone)},
        f"deleted {gone.windows:,} windows and {gone.requests:,} requests that ended before {iso(before)}; "
        "the bill is as it was",
        as_json,
    )


@contextmanager
def _failing_in_one_line() -> Iterator[None]:
    try:
        yield
    except StoreError as e:
        _stop(str(e), 1)
    except DBAPIError as e:
        _stop(one_line(e), 1)


def _url(database_url: str | None, config: Path | None) -> str:
    try:
        return load_settings(config, database_url=database_url).database_url
    except SettingsError as e:
        _stop(str(e), 2)


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def _print(answer: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(answer) if as_json else text)


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
