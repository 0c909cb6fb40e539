"""`kadence keys create|list|show|rotate|revoke`: API keys, in the ledger; a running endpoint learns them within 2 s."""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.keys_cli.shown import key_json, key_line
from controlplane.policy_cli.common import WRONG_USE, AsJson, stop
from controlplane.policy_cli.records import Config, DatabaseUrl, ledger

if TYPE_CHECKING:
    import sqlalchemy as sa

    from controlplane.keys.ring import ApiKey

keys_app = typer.Typer(name="keys", help="Make, rotate and revoke API keys.", no_args_is_help=True)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST = 10**12
"""Of any limit: a client never reaches it, and no column overflows."""

Name = Annotated[str, typer.Argument(help="Letters, digits and . _ - (up to 64); the policy's match.api_key has it.")]
Why = Annotated[str, typer.Option(help="For the record.")]


@keys_app.command("create")
def create(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="For /admin/* and /metrics, never for inference.")] = False,
    tenant: Annotated[str | None, typer.Option(help="Whose bill and budget; default: the name.")] = None,
    cohort: Annotated[str | None, typer.Option(help="Where its requests go, whatever they say.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, max=MOST)] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Of prompts and of answers together.")
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, max=MOST, help="Requests at once.")] = None,
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
    for option, given in (("--tenant", tenant), ("--cohort", cohort)):
        if given is not None and (not given.strip() or not given.isprintable() or len(given) > 200):
            stop(f"{option}: must be 1 to 200 printable characters", as_json, WRONG_USE)
    lasts = _seconds("--expires", expires, as_json)
    secret, key = _fresh(name, admin)
    key = replace(
        key,
        tenant=None if admin else tenant or name,
        cohort=cohort,
        limits=limits,
        note=note,
        expires_at=None if lasts is None else key.created_at + lasts,
    )
    engine = _open(config, database_url, as_json)
    _change(lambda: add_key(engine, key, why), as_json)
    _tell(key, secret, as_json, _cohort_warning(engine, key))


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

    grace_s, lasts = _seconds("--grace", grace, as_json) or 0.0, _seconds("--expires", expires, as_json)
    engine = ledger(config, database_url, as_json)
    is_admin = any(key.is_admin for key in all_keys(engine, name) if not key.is_revoked)
    secret, fresh = _fresh(name, is_admin)
    until = None if lasts is None else fresh.created_at + lasts
    key = _change(lambda: rotate_key(engine, fresh, grace_s, why, until), as_json)
    _tell(key, secret, as_json, _cohort_warning(engine, key))


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

    engine = ledger(config, database_url, as_json)
    key = _change(lambda: revoke_key(engine, name, getpass.getuser(), why, time.time()), as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **key_json(key, time.time())}))
    else:
        typer.echo(f"{name}: revoked; endpoints refuse it within 2 seconds")


def _fresh(name: str, is_admin: bool) -> tuple[str, ApiKey]:
    """A secret, and the key of that name that it opens, bound to nothing yet."""
    from controlplane.keys.ring import ApiKey
    from controlplane.keys.secret import RANDOM_BYTES, make

    new = make(os.urandom(RANDOM_BYTES), is_admin=is_admin)
    by = getpass.getuser()
    return new.text, ApiKey(new.id, name, new.digest, is_admin, created_at=time.time(), created_by=by)


def _open(config: Any, database_url: str | None, as_json: bool) -> sa.Engine:
    """The ledger, made where there is none yet: the first key may come before the first start."""
    from controlplane.settings import SettingsError, load_settings
    from controlplane.store.engine import StoreError
    from controlplane.store.migrate import upgrade
    from controlplane.store.queries import database_state

    try:
        url = load_settings(config, database_url=database_url).database_url
        if database_state(url) in ("missing", "empty"):
            upgrade(url)
    except SettingsError as error:
        stop(str(error), as_json, WRONG_USE)
    except StoreError as error:
        stop(str(error), as_json)
    return ledger(config, database_url, as_json)


def _change(make: Any, as_json: bool) -> Any:
    from sqlalchemy.exc import DBAPIError

    from controlplane.store.api_keys import ApiKeyError
    from controlplane.store.engine import one_line

    try:
        return make()
    except ApiKeyError as error:
        stop(str(error), as_json)
    except DBAPIError as error:
        stop(one_line(error), as_json)


def _seconds(option: str, text: str | None, as_json: bool) -> float | None:
    from controlplane.store.time_range import parse_duration

    if text is None:
        return None
    try:
        seconds = parse_duration(text)
        if seconds > 100 * 365 * 86400:
            raise ValueError(f"{text!r} is more than 100 years")
        if option == "--expires" and seconds == 0:
            raise ValueError("a key that is never valid opens nothing")
    except ValueError as error:
        stop(f"{option}: {error}", as_json, WRONG_USE)
    return seconds


def _cohort_warning(engine: sa.Engine, key: ApiKey) -> str | None:
    """Where the policy that was last in force has no such cohort; None also where none was in force yet."""
    from controlplane.policy import PolicyError, parse_policy
    from controlplane.store.queries import policy_log

    applied = policy_log(engine, limit=1)
    if key.cohort is None or not applied:
        return None
    try:
        names = [cohort.name for cohort in parse_policy(applied[0].text).cohorts]
    except PolicyError:
        return None
    if key.cohort in names:
        return None
    return (
        f"the policy has no cohort {key.cohort!r} (it has {', '.join(names)}); until it has, the policy's match decides"
    )


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
