"""`kadence bench ledger`: whether the ledger keeps up, on SQLite and PostgreSQL, and what it costs an engine."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.decode_figures import BenchmarkError, append_lines
from benchmarks.ledger.record import BACKENDS, POLICY, Backend, Recorded, record
from benchmarks.ledger.traffic import STEP_S, Fleet
from controlplane.policy import parse_policy

if TYPE_CHECKING:
    from benchmarks.ledger.step_cost import StepCost

CPUINFO = Path("/proc/cpuinfo")
EXIT_BAD, EXIT_USAGE = 1, 2

STEP_BUDGET_MS, STEP_BUDGET_PERCENT = 0.1, 1.0
LAG_S = 2.0
"""Seconds after the last report within which all is stored where the rate is held."""
GROWTH_MB = 64.0
"""Growth of memory after the start that is called unbounded: the spool of a database that falls behind is larger."""
COLUMNS = ("backend", "rows_per_s", "lost", "step_overhead_percent", "peak_rss_mb", "core_percent", "burst_rows_per_s",
           "step_ms", "rss_growth_mb", "peak_spool", "behind_s")  # fmt: skip


def ledger(
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of traffic.")] = 60,
    rate: Annotated[int, typer.Option(min=1, help="Requests that end in a second, over all workers.")] = 2000,
    backend: Annotated[
        list[str] | None, typer.Option(help="sqlite or postgresql; more than once for several. [both]")
    ] = None,
    steps: Annotated[int, typer.Option(min=100, help="Steps of an engine whose counting is timed.")] = 3000,
    burst: Annotated[int, typer.Option(min=0, help="Seconds of traffic that come at once, at the end.")] = 10,
    output: Annotated[Path | None, typer.Option(help="CSV file to append a line to for each backend.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Records traffic on one core by the real path, and counts what is stored. Needs no model and no GPU."""
    conditions = machine()
    try:
        backends = _backends(backend or BACKENDS)
        if output is not None and not output.parent.is_dir():
            raise BenchmarkError(f"--output {output}: there is no folder {output.parent}")
    except BenchmarkError as error:
        typer.echo(f"kadence: error: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from error
    cost, recorded = run(backends, rate, seconds, steps, burst)
    rows = [result_row(each, cost) for each in recorded]
    if output is not None:
        lines = [{**conditions, "rate": rate, "seconds": seconds, "database": r.database} for r in recorded]
        append_lines(output, [line | row for line, row in zip(lines, rows, strict=True)])
    if as_json:
        typer.echo(json.dumps({"machine": conditions, "rate": rate, "seconds": seconds, "rows": rows}))
    else:
        _print(conditions, rows)
    found = [line for each in recorded for line in problems(each, seconds)] + step_problems(cost)
    for line in found:
        typer.echo(f"problem: {line}", err=True)
    if found:
        raise typer.Exit(EXIT_BAD)


def run(
    backends: Sequence[Backend], rate: int, seconds: int, steps: int, burst: int
) -> tuple[StepCost, list[Recorded]]:
    """The engine thread's cost, then each backend in a process of its own, one after the other."""
    # Here, and not above: the recording processes import this module's package, and are to hold no torch.
    from benchmarks.ledger.step_cost import measure_steps
    from workers.plan_client import unplanned

    cost, reports = measure_steps(steps, unplanned(parse_policy(POLICY, source="the benchmark's policy")))
    fleet = Fleet(tuple(reports), rate, time.time_ns())
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
    recorded = []
    for backend in backends:
        typer.echo(f"{backend}: {seconds} s of {rate} requests/s from {fleet.workers} workers", err=True)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            recorded.append(pool.submit(record, backend, fleet, seconds, burst, cores[-1]).result())
    return cost, recorded


def result_row(recorded: Recorded, cost: StepCost) -> dict[str, Any]:
    """A line of the result; the step's cost does not depend on the database, so it stands in every one."""
    kept = {name: value for name, value in asdict(recorded).items() if name not in ("database", "seconds")}
    return {
        **kept,
        "rows_per_s": round(recorded.rows_per_s, 1),
        "step_overhead_percent": round(cost.percent, 4),
        "step_ms": cost.mean_ms,
        "step_p99_ms": cost.p99_ms,
        "step_max_ms": cost.max_ms,
    }


def problems(recorded: Recorded, seconds: int) -> list[str]:
    """Where recording did not do what it must."""
    found = []
    if recorded.lost:
        found.append(f"{recorded.backend}: {recorded.lost} of {recorded.requests + recorded.windows} rows are lost")
    if recorded.seconds > seconds + LAG_S:
        took = f"{recorded.seconds:.1f} s for {seconds} s of traffic"
        found.append(f"{recorded.backend}: the rate was not held, storing took {took}")
    if recorded.rss_growth_mb > GROWTH_MB:
        found.append(f"{recorded.backend}: memory grew by {recorded.rss_growth_mb} MB while it ran")
    return found


def step_problems(cost: StepCost) -> list[str]:
    """Where the engine's thread pays more than it may."""
    found = []
    if cost.mean_ms > STEP_BUDGET_MS:
        found.append(f"a step's counting takes {cost.mean_ms} ms, more than {STEP_BUDGET_MS} ms")
    if cost.percent > STEP_BUDGET_PERCENT:
        found.append(f"a step's counting is {cost.percent:.2f} % of it, more than {STEP_BUDGET_PERCENT:g} %")
    return found


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that was."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": named or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "sqlalchemy": version("sqlalchemy"),
    }


def _backends(names: Sequence[str]) -> list[Backend]:
    found: list[Backend] = [backend for backend in BACKENDS if backend in names]
    if unknown := sorted(set(names) - set(BACKENDS)):
        raise BenchmarkError(f"--backend {unknown[0]}: is none of {', '.join(BACKENDS)}")
    return found


def _print(conditions: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    title = ", ".join(f"{name} {value}" for name, value in conditions.items())
    table = Table(title=title, caption=f"a step takes {STEP_S * 1000:g} ms; core_percent: with the server's")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "backend" else "right")
    for row in rows:
        table.add_row(*("unknown" if row[name] is None else str(row[name]) for name in COLUMNS))
    console = Console()
    Console(width=None if console.is_terminal else 180).print(table)
