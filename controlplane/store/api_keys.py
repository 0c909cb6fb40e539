"""API keys in the ledger: by public id, with the digest of their secret and never the secret, and who did what to them.

A name has one key that is valid, or two while a rotation's grace lasts; revoked, it may be used again for another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.keys.ring import ApiKey, KeyLimits, KeyRing
from controlplane.store.engine import reading, writing
from controlplane.store.models import Base, RowId

ENDED_LONG_AGO_S = 86400.0
"""A key that ended before that is in no ring: an endpoint then says that it knows it not, instead of why it ended."""
KEYS_LOCK = 0x6B61646B65797300
"""Of the PostgreSQL lock that one process holds which changes keys ("kadkeys" in ASCII)."""


class ApiKeyError(ValueError):
    """A change of a key that cannot be made; one line that says why and what to do."""


class ApiKeyEntry(Base):
    """As keys.ring.ApiKey has it. digest: 64 hex digits of the SHA-256 of the key's text."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    digest: Mapped[str]
    is_admin: Mapped[bool]
    tenant: Mapped[str | None]
    cohort: Mapped[str | None]
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    max_concurrent: Mapped[int | None]
    note: Mapped[str]
    created_at: Mapped[float]
    created_by: Mapped[str]
    expires_at: Mapped[float | None]
    ends_at: Mapped[float | None]
    is_revoked: Mapped[bool]


class ApiKeyEvent(Base):
    """Who made, changed, rotated or revoked a key, when and why: what is `created`, `changed`, `rotated` or `revoked`;
    kept for good.

    key_id: the public id of the new key, for a change or a revocation of the newest one.
    """

    __tablename__ = "api_key_event"

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    at: Mapped[float]
    what: Mapped[str]
    name: Mapped[str]
    key_id: Mapped[str]
    done_by: Mapped[str]
    why: Mapped[str]


def add_key(engine: sa.Engine, key: ApiKey, why: str) -> None:
    """Put a new key on record. Raises ApiKeyError where its name has one that was not revoked."""
    with _changing(engine) as connection:
        if _of_name(connection, key.name):
            raise ApiKeyError(
                f"there is a key named {key.name!r}; kadence keys rotate {key.name} gives it a new secret, "
                f"kadence keys revoke {key.name} frees its name"
            )
        _insert(connection, key)
        _note(connection, "created", key, key.created_by, why, key.created_at)


def rotate_key(engine: sa.Engine, fresh: ApiKey, grace_s: float, why: str, expires_at: float | None = None) -> ApiKey:
    """Put `fresh` on record as the successor of the key of its name: with all that is bound to the name, and as long
    to live as its predecessor had from its own making, unless `expires_at` says otherwise. What was valid ends
    `grace_s` seconds from its making. Raises ApiKeyError where there is none that was not revoked, or of another kind.
    """
    with _changing(engine) as connection:
        old = _newest(connection, fresh.name)
        if old.is_admin != fresh.is_admin:
            raise ApiKeyError(f"the key {fresh.name!r} is an {_kind(old)} key; it cannot become an {_kind(fresh)} key")
        now = fresh.created_at
        if expires_at is None and old.expires_at is not None:
            expires_at = now + (old.expires_at - old.created_at)
        new = replace(
            old,
            id=fresh.id,
            digest=fresh.digest,
            created_at=now,
            created_by=fresh.created_by,
            expires_at=expires_at,
            ends_at=None,
        )
        table = ApiKeyEntry
        ending = sa.update(table).where(
            table.name == fresh.name,
            table.is_revoked.is_(False),
            sa.or_(table.ends_at.is_(None), table.ends_at > now + grace_s),
        )
        connection.execute(ending.values(ends_at=now + grace_s))
        _insert(connection, new)
        _note(connection, "rotated", new, new.created_by, why, now)
    return new


def change_key(
    engine: sa.Engine, name: str, changes: Mapping[str, str | int | None], by: str, why: str, now: float
) -> ApiKey:
    """Bind other values to a name (columns of ApiKeyEntry: tenant, cohort, limits, note) for all its secrets that were
    not revoked; the newest one as it is then. Raises ApiKeyError where there is none, or for what an admin key has not.
    """
    with _changing(engine) as connection:
        useless = sorted(changes.keys() - {"note"})
        if _newest(connection, name).is_admin and useless:
            raise ApiKeyError(f"{name!r} is an admin key and cannot infer: {', '.join(useless)} would say nothing")
        table = ApiKeyEntry
        of_name = sa.update(table).where(table.name == name, table.is_revoked.is_(False))
        connection.execute(of_name.values(**changes))
        newest = _newest(connection, name)
        said = ", ".join(f"{what}={value}" for what, value in sorted(changes.items()) if what != "note")
        _note(connection, "changed", newest, by, f"{said}: {why}" if said and why else said or why, now)
    return newest


def revoke_key(engine: sa.Engine, name: str, by: str, why: str, now: float) -> ApiKey:
    """End every secret of that name at once. Raises ApiKeyError where there is none that was not revoked."""
    with _changing(engine) as connection:
        newest = _newest(connection, name)
        table = ApiKeyEntry
        of_name = sa.update(table).where(table.name == name, table.is_revoked.is_(False))
        has_ended = sa.and_(table.ends_at.is_not(None), table.ends_at <= now)
        ends_at = sa.case((has_ended, table.ends_at), else_=now)
        connection.execute(of_name.values(is_revoked=True, ends_at=ends_at))
        _note(connection, "revoked", newest, by, why, now)
    return replace(newest, is_revoked=True, ends_at=now)


def all_keys(engine: sa.Engine, name: str | None = None) -> list[ApiKey]:
    """Every secret on record, of one name or of all, also those that ended: by name, the newest first."""
    table = ApiKeyEntry
    query = sa.select(table.__table__).order_by(table.name, table.created_at.desc(), table.id)
    if name is not None:
        query = query.where(table.name == name)
    with engine.connect() as connection:
        return [_key(row) for row in connection.execute(query)]


def key_events(engine: sa.Engine, name: str | None = None, limit: int = 200) -> list[ApiKeyEvent]:
    """Who did what to keys, newest first."""
    query = sa.select(ApiKeyEvent.__table__).order_by(ApiKeyEvent.id.desc()).limit(limit)
    if name is not None:
        query = query.where(ApiKeyEvent.name == name)
    with engine.connect() as connection:
        return [ApiKeyEvent(**row._mapping) for row in connection.execute(query)]


def last_event(engine: sa.Engine) -> int:
    """The number of the newest change of any key; 0 before the first. Costs a look at the end of an index."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.max(ApiKeyEvent.id))) or 0


def read_ring(engine: sa.Engine, now: float) -> KeyRing:
    """The keys that an endpoint should know at `now` (unix seconds)."""
    table = ApiKeyEntry
    recent = sa.or_(table.ends_at.is_(None), table.ends_at > now - ENDED_LONG_AGO_S)
    with reading(engine).connect() as connection:
        query = sa.select(table.__table__).where(recent).order_by(table.name, table.created_at.desc(), table.id)
        keys = tuple(_key(row) for row in connection.execute(query))
        kinds = set(connection.scalars(sa.select(table.is_admin).distinct()))
    # repr leaves the digests out; the ids stand for them.
    text = repr([[key, sorted(kinds)] for key in keys])
    revision = hashlib.sha256(text.encode()).hexdigest()[:12]
    return KeyRing(keys, has_inference=False in kinds, has_admin=True in kinds, revision=revision)


@contextmanager
def _changing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction of which only one at a time changes keys, so that a name is given once."""
    with writing(engine).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(KEYS_LOCK)))
        yield connection


def _newest(connection: sa.Connection, name: str) -> ApiKey:
    found = _of_name(connection, name)
    if not found:
        raise ApiKeyError(f"there is no key named {name!r}; see: kadence keys list")
    return found[0]


def _of_name(connection: sa.Connection, name: str) -> list[ApiKey]:
    """Of the key of that name that was not revoked, the newest secret first."""
    table = ApiKeyEntry
    query = sa.select(table.__table__).where(table.name == name, table.is_revoked.is_(False))
    return [_key(row) for row in connection.execute(query.order_by(table.created_at.desc(), table.id))]


def _insert(connection: sa.Connection, key: ApiKey) -> None:
    row = asdict(key)
    row |= {**row.pop("limits"), "digest": key.digest.hex()}
    connection.execute(sa.insert(ApiKeyEntry), [row])


def _note(connection: sa.Connection, what: str, key: ApiKey, by: str, why: str, at: float) -> None:
    row = {"at": at, "what": what, "name": key.name, "key_id": key.id, "done_by": by, "why": why}
    connection.execute(sa.insert(ApiKeyEvent), [row])


def _key(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    columns = dict(row._mapping)
    limits = KeyLimits(*(columns.pop(each) for each in ("requests_per_minute", "tokens_per_minute", "max_concurrent")))
    return ApiKey(limits=limits, digest=bytes.fromhex(columns.pop("digest")), **columns)


def _kind(key: ApiKey) -> str:
    return "admin" if key.is_admin else "inference"
