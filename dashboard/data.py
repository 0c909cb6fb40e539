"""Reaching the ledger for a page: one engine on the database as it is now, or one sentence on why there is none.

Pages never see a database error. A database that was replaced, moved back or unlocked is found at the next refresh.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from controlplane.store import queries
from controlplane.store.engine import Database, one_line, open_database
from dashboard import format as fmt

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 400
"""A page waits this long for a lock, then says so and tries again at its next refresh."""

Identity: TypeAlias = tuple[str, int, int]
"""URL, and device and inode of a SQLite file (0 otherwise): another file under the same name is another database."""

RETRY = "This page tries again every few seconds; `kadence doctor` checks the database."


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is nothing to show, and what to do about it, each one sentence. waiting: normal before first use."""

    sentence: str
    way_out: str
    waiting: bool = False


_lock = threading.Lock()
_engines: dict[Identity, Database] = {}
_checked: set[Identity] = set()
"""Databases found to be of this code's revision: asked again only when the file is another one or a read failed."""


def identity_of(database_url: str) -> Identity:
    parts = urlsplit(database_url)
    if not parts.scheme.startswith("sqlite"):
        return (database_url, 0, 0)
    try:
        found = os.stat(database_url.partition(":///")[2].partition("?")[0])
    except OSError:
        return (database_url, 0, 0)
    return (database_url, found.st_dev, found.st_ino)


def reach(database_url: str) -> Database | Trouble:
    """An engine on a ledger of this code's revision, or why there is none."""
    identity = identity_of(database_url)
    if identity not in _checked:
        trouble = _trouble(database_url)
        if trouble is not None:
            return trouble
        _checked.add(identity)
    with _lock:
        if identity not in _engines:
            for engine in _engines.values():  # the page looks at one database, and drops one that was replaced
                engine.dispose()
            _engines.clear()
            _engines[identity] = open_database(database_url, busy_timeout_ms=BUSY_TIMEOUT_MS)
        return _engines[identity]


def unreadable(database_url: str, error: Exception) -> Trouble:
    """What to say of a read that failed. The database is looked at anew next time; the log has the details."""
    _checked.clear()
    shown = fmt.without_password(database_url)
    log.warning("cannot read %s: %s", shown, one_line(error))
    return Trouble(f"The database {shown} cannot be read: {one_line(error)}.", RETRY)


def forget() -> None:
    """Closes every connection; the next reading starts afresh."""
    with _lock:
        _checked.clear()
        for engine in _engines.values():
            engine.dispose()
        _engines.clear()


def _trouble(database_url: str) -> Trouble | None:
    shown = fmt.without_password(database_url)
    try:
        state = queries.database_state(database_url, busy_timeout_ms=BUSY_TIMEOUT_MS)
    except Exception as error:  # the page lives on whatever the database does
        return unreadable(database_url, error)
    kind, _, detail = state.partition(": ")
    match kind:
        case "ok":
            return None
        case "empty":
            return Trouble(
                f"The database {shown} has no tables yet.",
                "Start everything with `kadence up`, or create them with `kadence db upgrade`.",
                waiting=True,
            )
        case "missing":
            return Trouble(
                f"There is no database at {shown}.",
                "Start everything with `kadence up`, or point KADENCE_DATABASE_URL at the right one.",
            )
        case "older":
            return Trouble(
                f"The database {shown} is from an older version of Kadence.",
                "Bring it up to date with `kadence db upgrade`.",
            )
        case "newer":
            return Trouble(
                f"The database {shown} is from a newer version of Kadence.",
                "Update this installation, or point KADENCE_DATABASE_URL at another database.",
            )
        case _:
            return Trouble(f"The database {shown} cannot be read: {detail or state}.", RETRY)
