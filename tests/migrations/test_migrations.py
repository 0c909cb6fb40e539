"""Every revision goes up, down and up again with rows in place, on both databases, and ends where the models are."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError

from controlplane.store.engine import StoreError, open_database, writing
from controlplane.store.migrate import ADVISORY_LOCK, configuration, current, head, upgrade

REVISIONS = [
    script.revision for script in reversed(list(ScriptDirectory.from_config(configuration()).walk_revisions()))
]


def step(engine: sa.Engine, way: Any, revision: str) -> None:
    with writing(engine).begin() as connection:
        way(configuration(connection), revision)


def tables(engine: sa.Engine) -> sa.MetaData:
    metadata = sa.MetaData()
    metadata.reflect(engine)
    metadata.remove(metadata.tables["alembic_version"])
    return metadata


def fill(engine: sa.Engine) -> None:
    """One more row in every table, made up from the columns' types."""
    with engine.begin() as connection:
        for table in tables(engine).sorted_tables:
            number = 1 + (connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0)
            connection.execute(table.insert().values({c.name: made_up(c, number) for c in table.columns}))


def made_up(column: sa.Column[Any], number: int) -> Any:
    match column.type:
        case sa.JSON():
            return [number]
        case sa.Boolean():
            return True
        case sa.String():
            return f"{column.name} {number}"
        case _:
            return number


def counts(engine: sa.Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {
            name: connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for name, table in tables(engine).tables.items()
        }


def test_each_revision_goes_up_down_and_up_with_rows_in_place(empty_database_url: str) -> None:
    engine = open_database(empty_database_url)
    before = "base"
    for revision in REVISIONS:
        kept = counts(engine) if before != "base" else {}
        step(engine, command.upgrade, revision)
        fill(engine)
        step(engine, command.downgrade, before)
        assert {name: n for name, n in counts(engine).items() if name in kept} == {
            name: n + 1 for name, n in kept.items()
        }
        step(engine, command.upgrade, revision)
        fill(engine)
        before = revision
    assert all(counts(engine).values())
    engine.dispose()


def test_the_migrations_end_where_the_models_are(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    engine = open_database(empty_database_url)
    with engine.begin() as connection:
        command.check(configuration(connection))
    engine.dispose()


def test_the_check_sees_a_column_that_no_model_has(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    engine = open_database(empty_database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE request ADD COLUMN colour TEXT")
    with engine.begin() as connection, pytest.raises(CommandError, match="remove_column"):
        command.check(configuration(connection))
    engine.dispose()


def test_upgrading_says_where_it_arrived_and_can_be_repeated(empty_database_url: str) -> None:
    assert current(empty_database_url) is None
    assert [upgrade(empty_database_url), upgrade(empty_database_url)] == [head(), head()]
    assert current(empty_database_url) == head()


def test_upgrading_makes_the_folder_of_the_file(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path}/a/b/ledger.db")
    assert (tmp_path / "a" / "b" / "ledger.db").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot create .*/a/b"):
        upgrade(f"sqlite:///{tmp_path}/a/b/ledger.db")


def test_two_processes_that_migrate_at_once_both_succeed(empty_database_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, initializer=context.Barrier(2).wait) as pool:  # neither begins before the other is ready
        assert pool.map(upgrade, [empty_database_url] * 4, chunksize=1) == [head()] * 4
    assert current(empty_database_url) == head()


def test_an_upgrade_waits_for_one_that_is_under_way(empty_database_url: str) -> None:
    engine = open_database(empty_database_url)
    waiting = threading.Thread(target=upgrade, args=(empty_database_url,), daemon=True)
    with writing(engine).begin() as connection:  # where SQLite takes its lock
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join(30)
    assert current(empty_database_url) == head()
    engine.dispose()


def test_a_newer_database_is_refused_and_left_alone(empty_database_url: str) -> None:
    upgrade(empty_database_url)
    engine = open_database(empty_database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"revision 9999, newer than .* \(which needs \w+\): upgrade Kadence"):
        upgrade(empty_database_url)
    assert current(empty_database_url) == "9999"
    engine.dispose()


def test_a_failing_migration_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE request (id INTEGER)")  # in the way of revision 0001
    with pytest.raises(StoreError, match="table request already exists"):
        upgrade(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")] == [
            "request"
        ]
