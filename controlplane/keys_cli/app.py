"""`kadence keys`: API keys, in the ledger; a running endpoint learns of a change within 2 seconds."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.keys_cli.change import change
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
    open_or_make,
    seconds,
)
from controlplane.keys_cli.shown import key_json, key_line
from controlplane.policy_cli.common import WRONG_USE, AsJson, operator, stop
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

if TYPE_CHECKING:
    from controlplane.keys.ring import ApiKey

keys_app = typer.Typer(name="keys", help="Make, rotate and revoke API keys.", no_args_is_help=True)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@keys_app.command("create")
def create(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="For /admin/* and /metrics, never for inference.")] = False,
    tenant: Annotated[str | None, typer.Option(help="Whose bill and budget; default: the name.")] = None,
    cohort: Annotated[str | None, typer.Option(help="Where its requests go, whatever they say.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, max=MOST)] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, max=MOST, help=OF_BOTH)] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, max=MOST, help=AT_ONCE)] = None,
    expires: Annotated[str | None, typer.Option(help="How long it is valid: 12h, 90d. [for ever]")] = None,
    note: Annotated[str, typer.Option(help="For people: whose it is, what for.")] = "",
    why: Why = "",
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print its secret, this once: nobody can read it again."""
    from dataclasses import replace

    from controlplane.keys.ring import KeyLimits
    from controlplane.keys.secret import is_meant_as_key
    from controlplane.store.api_keys import add_key

    if not NAME.fullmatch(name):
        stop(f"NAME: {name[:80]!r} is not up to 64 letters, digits and . _ -", as_json, WRONG_USE)
    if is_meant_as_key(name):
        stop("NAME: a name must not begin as a key's text does, kd- or kda-", as_json, WRONG_USE)
    limits = KeyLimits(requests_per_minute, tokens_per_minute, max_concurrent)
    bound = {"--tenant": tenant, "--cohort": cohort, "a limit": None if limits == KeyLimits() else limits}
    wrong = next((what for what, value in bound.items() if admin and value is not None), None)
    if wrong is not None:
        stop(f"--admin: an admin key cannot infer, so {wrong} says nothing; leave it out", as_json, WRONG_USE)
    check_words({"--tenant": tenant, "--cohort": cohort}, as_json)
    check_notes({"--note": note, "--why": why}, as_json)
    lasts = seconds("--expires", expires, as_json)
    secret, key = _fresh(name, admin)
    key = replace(
        key,
        tenant=None if admin else tenant or name,
        cohort=cohort,
        limits=limits,
        note=note,
        expires_at=None if lasts is None else key.created_at + lasts,
    )
    engine = open_or_make(config, database_url, as_json)
    attempt(lambda: add_key(engine, key, why), as_json)
    _tell(key, secret, as_json, cohort_warning(engine, key))


@keys_app.command("list")
def list_keys(
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Keys by name: what they open, their limits, how long they are valid. Never their secrets."""
    from controlplane.store.api_keys import all_keys

    now = time.time()
    keys = [key for key in all_keys(ledger(config, database_url, as_json)) if everything or not key.rejection(now)]
    if as_json:
        typer.echo(json.dumps({"keys": [key_json(key, now) for key in keys]}))
        return
    for key in keys:
        typer.echo(key_line(key, now))
    if not keys:
        typer.echo("no keys; make one: kadence keys create NAME")


@keys_app.command("show")
def show(name: Name, database_url: DatabaseUrl = None, config: Config = None, as_json: AsJson = False) -> None:
    """One key: every secret that it had, and who made, rotated or revoked them, when and why."""
    from controlplane.store.api_keys import all_keys, key_events
    from controlplane.store.time_range import iso

    now, engine = time.time(), ledger(config, database_url, as_json)
    keys, events = all_keys(engine, name), key_events(engine, name)
    if not keys:
        stop(f"there is no key named {name!r}; see: kadence keys list --all", as_json, WRONG_USE)
    if as_json:
        told = [
            {"at": each.at, "what": each.what, "id": each.key_id, "by": each.done_by, "why": each.why}
            for each in events
        ]
        typer.echo(json.dumps({"name": name, "keys": [key_json(key, now) for key in keys], "events": told}))
        return
    for key in keys:
        typer.echo(key_line(key, now))
        if key.note:
            typer.echo(f"    {key.note}")
    for each in events:
        typer.echo(f"{iso(each.at)}  {each.what:<8} {each.key_id}  {each.done_by}: {each.why or '(no reason given)'}")


keys_app.command("change")(change)


@keys_app.command("rotate")
def rotate(
    name: Name,
    grace: Annotated[str, typer.Option(help="How long the old secret stays valid beside the new one.")] = "1h",
    expires: Annotated[str | None, typer.Option(help="How long the new one is valid. [as long as the old one]")] = None,
    why: Why = "",
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret and print it; what is bound to the name stays."""
    from controlplane.store.api_keys import all_keys, rotate_key

    check_notes({"--why": why}, as_json)
    grace_s, lasts = seconds("--grace", grace, as_json) or 0.0, seconds("--expires", expires, as_json)
    engine = ledger(config, database_url, as_json)
    is_admin = any(key.is_admin for key in all_keys(engine, name) if not key.is_revoked)
    secret, fresh = _fresh(name, is_admin)
    until = None if lasts is None else fresh.created_at + lasts
    key = attempt(lambda: rotate_key(engine, fresh, grace_s, why, until), as_json)
    _tell(key, secret, as_json, cohort_warning(engine, key))


@keys_app.command("revoke")
def revoke(
    name: Name,
    why: Why = "",
    database_url: DatabaseUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """End a key, with every secret of it; endpoints refuse it within 2 seconds."""
    from controlplane.store.api_keys import revoke_key

    check_notes({"--why": why}, as_json)
    engine = ledger(config, database_url, as_json)
    key = attempt(lambda: revoke_key(engine, name, operator(), why, time.time()), as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **key_json(key, time.time())}))
    else:
        typer.echo(f"{name}: revoked; endpoints refuse it within 2 seconds")


def _fresh(name: str, is_admin: bool) -> tuple[str, ApiKey]:
    """A secret, and the key of that name that it opens, bound to nothing yet."""
    from controlplane.keys.ring import ApiKey
    from controlplane.keys.secret import RANDOM_BYTES, make

    new = make(os.urandom(RANDOM_BYTES), is_admin=is_admin)
    by = operator()
    return new.text, ApiKey(new.id, name, new.digest, is_admin, created_at=time.time(), created_by=by)


def _tell(key: ApiKey, secret: str, as_json: bool, warning: str | None) -> None:
    if as_json:
        said = {"secret": secret, **key_json(key, time.time())}
        typer.echo(json.dumps(said | ({} if warning is None else {"warning": warning})))
        return
    typer.echo(key_line(key, time.time()), err=True)
    if warning is not None:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo("this is its secret; it is shown once:", err=True)
    typer.echo(secret)
