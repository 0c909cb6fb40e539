"""`kadence keys change`: what is bound to a key, with its secret as it is."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from controlplane.keys_cli.common import (
    AT_ONCE,
    MOST,
    OF_BOTH,
    Name,
    Why,
    attempt,
    check_notes,
    check_words,
    cohort_warning,
)
from controlplane.keys_cli.shown import key_json, key_line
from controlplane.policy_cli.common import WRONG_USE, AsJson, operator, stop
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

NO_LIMIT = "0: no limit."


def change(
    name: Name,
    tenant: Annotated[str | None, typer.Option(help="Whose bill and budget.")] = None,
    cohort: Annotated[str | None, typer.Option(help="Where its requests go, whatever they say.")] = None,
    unbound: Annotated[bool, typer.Option("--unbound", help="The policy decides on the cohort again.")] = False,
    requests_per_minute: Annotated[int | None, typer.Option(min=0, max=MOST, help=NO_LIMIT)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, max=MOST, help=f"{OF_BOTH} {NO_LIMIT}")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=0, max=MOST, help=f"{AT_ONCE} {NO_LIMIT}")] = None,
    note: Annotated[str | None, typer.Option(help="For people: whose it is, what for.")] = None,
    why: Why = "",
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Give a key other limits, another cohort, tenant or note; what is not named stays, its secret too."""
    from controlplane.store.api_keys import change_key

    if unbound and cohort is not None:
        stop("--unbound: --cohort says otherwise; leave one of them out", as_json, WRONG_USE)
    check_words({"--tenant": tenant, "--cohort": cohort}, as_json)
    check_notes({"--note": note, "--why": why}, as_json)
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "max_concurrent": max_concurrent,
    }
    changes: dict[str, Any] = {what: limit or None for what, limit in limits.items() if limit is not None}
    words = {"tenant": tenant, "cohort": cohort, "note": note}
    changes |= {what: text for what, text in words.items() if text is not None}
    if unbound:
        changes["cohort"] = None
    if not changes:
        stop("nothing to change was named; see: kadence keys change --help", as_json, WRONG_USE)
    engine = ledger(config, database_url, as_json)
    key = attempt(lambda: change_key(engine, name, changes, operator(), why, time.time()), as_json)
    warning = cohort_warning(engine, key)
    if as_json:
        said = {"ok": True, **key_json(key, time.time())}
        typer.echo(json.dumps(said | ({} if warning is None else {"warning": warning})))
        return
    typer.echo(key_line(key, time.time()))
    if warning is not None:
        typer.echo(f"warning: {warning}", err=True)
