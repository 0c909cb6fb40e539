"""A database URL opens the right thing, or says in one line why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from controlplane.store.engine import StoreError, database_url, open_database, sqlite_path
from controlplane.store.time_range import parse_duration, parse_moment


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgres_urls_mean_psycopg_3(scheme: str) -> None:
    url = database_url(f"{scheme}://u:secret@db/ledger")
    assert url.render_as_string(hide_password=False) == "postgresql+psycopg://u:secret@db/ledger"


@pytest.mark.parametrize("url", ["mysql://db/ledger", "postgresql+asyncpg://db/ledger", "ledger.db", ""])
def test_another_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StoreError, match=r"^database_url: ") as caught:
        database_url(url)
    assert "\n" not in str(caught.value)


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'kadence\[postgres\]'"):
        open_database("postgresql://db/ledger")


def test_only_a_sqlite_file_has_a_path() -> None:
    assert sqlite_path("sqlite:////a/b.db") == Path("/a/b.db")
    assert sqlite_path("sqlite://") is None
    assert sqlite_path("postgresql://db/ledger") is None


def test_sqlite_is_opened_in_wal_mode_with_foreign_keys(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/ledger.db", busy_timeout_ms=1234)
    with engine.connect() as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        ]
    engine.dispose()
    assert pragmas == ["wal", 1, 1234]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("90m", 5400), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 days", "1e3d"])
def test_another_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1h", 1_790_000_000.0),
        ("2026-09-21T14:13:20", 1_790_000_000.0),
        ("2026-09-21T16:13:20+02:00", 1_790_000_000.0),
        ("2026-09-21", 1_789_948_800.0),
    ],
)
def test_a_moment_is_a_duration_ago_or_a_time_in_utc(text: str, at: float) -> None:
    assert parse_moment(text, 1_790_003_600.0) == at


@pytest.mark.parametrize(
    "text", ["99999999999999w", "9" * 400 + "d", "0001-01-01T00:00+05:00", "9999-12-31T23:59-05:00"]
)
def test_a_moment_that_no_calendar_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not between 1970-01-01 and 9999-01-01"):
        parse_moment(text, 1_790_003_600.0)
