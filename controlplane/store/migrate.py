"""The database's revision: what it is, what this code needs, and the way up. Alembic, without an ini file."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from controlplane.store.engine import StoreError, one_line, open_database, sqlite_path, writing

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"

ADVISORY_LOCK = 0x6B6164656E6365
"""Key of the PostgreSQL lock that one migrating process holds ("kadence" in ASCII)."""


def configuration(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration; a command run with it works on that connection, inside its transaction."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision that this code needs."""
    revision = ScriptDirectory.from_config(configuration()).get_current_head()
    if revision is None:
        raise StoreError(f"no migrations in {MIGRATIONS}: the installation is incomplete")
    return revision


def revision_of(connection: sa.Connection) -> str | None:
    """The revision of the connected database; None when it was never migrated."""
    return MigrationContext.configure(connection).get_current_revision()


def current(url: str | URL) -> str | None:
    """The revision of that database; None when it was never migrated. A missing SQLite file is not created.

    Raises StoreError when the database cannot be reached.
    """
    path = sqlite_path(url)
    if path is not None and not path.exists():
        return None
    engine = open_database(url)
    try:
        with engine.connect() as connection:
            return revision_of(connection)
    except DBAPIError as e:
        raise StoreError(one_line(e)) from e
    finally:
        engine.dispose()


def is_known(revision: str) -> bool:
    """Whether this code has that revision: a database that has another one is newer than the code."""
    return any(script.revision == revision for script in ScriptDirectory.from_config(configuration()).walk_revisions())


def refuse_newer(revision: str | None) -> None:
    """Raises StoreError when the database's revision is unknown to this code."""
    if revision is not None and not is_known(revision):
        raise StoreError(
            f"the database is at revision {revision}, newer than this Kadence (which needs {head()}): "
            "upgrade Kadence, or point database_url to another database"
        )


def upgrade(url: str | URL) -> str:
    """Bring the database to head() and return that revision; creates a missing SQLite file and its folder.

    Processes that migrate at the same time wait for one another, the later ones find nothing to do. A failure
    leaves the database as it was. Raises StoreError for a newer database or one that cannot be reached.
    """
    path = sqlite_path(url)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise StoreError(f"database_url: cannot create {path.parent}: {e.strerror}") from e
    engine = open_database(url, busy_timeout_ms=30_000)
    try:
        with writing(engine).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
            refuse_newer(revision_of(connection))
            command.upgrade(configuration(connection), "head")
    except DBAPIError as e:
        raise StoreError(one_line(e)) from e
    finally:
        engine.dispose()
    return head()
