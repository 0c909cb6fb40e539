"""Opening the ledger's database: SQLite by default, PostgreSQL when the URL says so."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

BUSY_TIMEOUT_MS = 5_000
"""How long a SQLite statement waits for another connection's lock before it fails."""


Database: TypeAlias = sa.Engine
"""What reads and writes of the store are asked of, for callers that know no SQL."""

DatabaseError: TypeAlias = SQLAlchemyError
"""What a read or a write raises when the database fails it; `one_line` makes a sentence of it."""


class StoreError(RuntimeError):
    """The database cannot be used; the message is one line that names the way out."""


def database_url(url: str | URL) -> URL:
    """The URL with its driver: `postgresql://` and `postgres://` mean psycopg 3. Raises StoreError on any other."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as e:
        raise StoreError("database_url: not a database URL; write sqlite:///kadence.db or postgresql://…") from e
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        return parsed
    raise StoreError(f"database_url: {parsed.drivername} is not supported; use sqlite:/// or postgresql://")


def sqlite_path(url: str | URL) -> Path | None:
    """The file behind a SQLite URL; None for an in-memory database and for PostgreSQL."""
    parsed = database_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database == ":memory:":
        return None
    return Path(parsed.database)


def open_database(url: str | URL, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> sa.Engine:
    """An engine on the ledger. Nothing is connected or created yet.

    SQLite: WAL (readers never wait for the writer), foreign keys enforced, transactions begun explicitly, so that
    changes of the schema are inside them too; `?timeout=SECONDS` in the URL goes before busy_timeout_ms. Raises
    StoreError for a URL that cannot be used or a missing driver.
    """
    parsed = database_url(url)
    if parsed.get_backend_name() == "sqlite":
        wait = {} if "timeout" in parsed.query else {"timeout": busy_timeout_ms / 1000}
        engine = sa.create_engine(parsed, connect_args={**wait, "check_same_thread": False})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        return sa.create_engine(parsed, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    except ModuleNotFoundError as e:
        raise StoreError("database_url: PostgreSQL needs psycopg: pip install 'kadence[postgres]'") from e


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own BEGIN comes too late for DDL and for a lock taken at once: we say it ourselves.
    connection.isolation_level = None
    wait_ms = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
            connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError:
        pass  # locked or read-only: the mode stays what it is, and the next connection tries again
    connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get("begin_immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def writing(engine: sa.Engine) -> sa.Engine:
    """The same database for transactions that write: SQLite takes the write lock at BEGIN.

    A deferred transaction that reads first and writes later fails at once, without waiting, when another one wrote in
    between; this one waits for its turn.
    """
    return engine.execution_options(begin_immediate=True)


def reading(engine: sa.Engine) -> sa.Engine:
    """The same database for several reads that must agree: all see the moment of the first (SQLite does so anyway)."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="REPEATABLE READ")
    return engine


def one_line(error: Exception) -> str:
    """A database error for a person: its first line, with what to do where that is known."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = (str(original).strip() or type(original).__name__).splitlines()[0]
    if "database is locked" in text:
        return "the database is locked by another process; try again, or stop the program that holds it"
    if "no such table" in text or "UndefinedTable" in type(original).__name__:
        return "the database has no ledger yet: run `kadence db upgrade`"
    return text
