"""`kadence load`: drive the client, show how it goes, print what came of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from workers.load.client import Bounds, OnEvent, Run, send_load, served_model
from workers.load.cost import RunCost, cost_between, read_bill
from workers.load.events import RequestEvent
from workers.load.mix import Mix, MixError, load_mix, parse_duration, planned_requests
from workers.load.summary import CohortSummary, Summary, summarise

DEFAULT_DURATION_S = 60.0
WINDOW_S = 1.5
"""After the run, until its last tokens are in the endpoint's counters: workers close a window every second."""
LONGEST_S = 3600.0
"""Bound in time of a run that was only bounded by `--requests`."""

load_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@load_app.command()
def load(
    mix: Annotated[str, typer.Argument(help="A mix file, or the name of a shipped mix.")] = "default",
    url: Annotated[str, typer.Option(help="The endpoint.")] = "http://127.0.0.1:8000",
    duration: Annotated[str | None, typer.Option(help="Such as 60s or 2m. [60s, or none with --requests]")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, max=4096, help="Requests in flight. [the mix's]")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="End after this many requests.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Instead of the mix's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same requests, same order, seeded sampling.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write every request as a line of JSON here.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Bearer key.", envvar="KADENCE_API_KEY")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Send real traffic to a running endpoint and measure it. Ctrl-C prints the summary so far."""
    plan = load_mix(mix)
    default_s = DEFAULT_DURATION_S if requests is None else LONGEST_S
    bounds = Bounds(default_s if duration is None else parse_duration(duration), requests)
    if out is not None and not out.parent.is_dir():
        raise MixError(f"--out {out}: folder {out.parent} does not exist")
    in_flight = concurrency or plan.concurrency
    with _progress(bounds) as on_event:
        model, run, costs = asyncio.run(_drive(url, plan, in_flight, bounds, seed, temperature, api_key, on_event))
    summary = summarise(run.events, (cohort.name for cohort in plan.cohorts))
    if out is not None:
        out.write_text("".join(json.dumps(event.as_dict()) + "\n" for event in run.events), encoding="utf-8")
    if as_json:
        head = {"url": url, "mix": mix, "model": model, "concurrency": in_flight, "stopped_by": run.gone}
        typer.echo(json.dumps(head | summary.as_dict() | {"cost": [asdict(cost) for cost in costs]}))
    else:
        print_summary(summary)
        for cost in costs:
            typer.echo(_cost_line(cost))
    for line in _complaints(run):
        print(f"kadence: {line}", file=sys.stderr)
    raise typer.Exit(1 if summary.total.errors else 0)


async def _drive(
    url: str,
    mix: Mix,
    concurrency: int,
    bounds: Bounds,
    seed: int | None,
    temperature: float | None,
    api_key: str | None,
    on_event: OnEvent,
) -> tuple[str, Run, tuple[RunCost, ...]]:
    model, run = await served_model(url, api_key), Run()
    before = await read_bill(url, api_key)
    with suppress(NotImplementedError, RuntimeError):  # no signals on this platform, or not in the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, run.stop.set)
    planned = planned_requests(mix, seed, temperature)
    await send_load(url, model, planned, concurrency, bounds, run, api_key=api_key, on_event=on_event)
    if before is None or run.gone is not None:
        return model, run, ()
    await asyncio.sleep(WINDOW_S)
    return model, run, cost_between(before, await read_bill(url, api_key))


def _cost_line(cost: RunCost) -> str:
    without, loaded = cost.usd_per_million_tokens, cost.loaded_usd_per_million_tokens
    return (
        f"{cost.basis}: {without:.4g} USD per million tokens, {loaded:.4g} with idle "
        f"({cost.tokens} tokens of everybody who used the endpoint meanwhile)"
    )


def print_summary(summary: Summary) -> None:
    """A table on stdout, a row a cohort and one for all."""
    table = Table(title=f"{summary.seconds:.1f} s")
    table.add_column("cohort")
    columns = ("requests", "errors", "429s", "tokens", "tokens/s", "TTFT p50", "p95", "TPOT p50", "p95")
    for name in (*columns, "acceptance length", "mean K", "repeated 8-grams"):
        table.add_column(name, justify="right")
    for row in summary.cohorts:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row(*_cells(summary.total))
    console = Console()
    # Into a file or a pipe there is no width to fit: keep every column whole.
    Console(width=None if console.is_terminal else 160).print(table)


def _cells(row: CohortSummary) -> tuple[str, ...]:
    return (
        row.cohort,
        str(row.requests),
        str(row.errors),
        str(row.throttled),
        str(row.tokens),
        f"{row.tokens_per_s:.1f}",
        *(_ms(seconds) for seconds in (row.ttft_s.p50, row.ttft_s.p95, row.tpot_s.p50, row.tpot_s.p95)),
        "-" if row.acceptance_length is None else f"{row.acceptance_length:.2f}",
        "-" if row.mean_k is None else f"{row.mean_k:.2f}",
        "-" if row.repeated_8grams is None else f"{row.repeated_8grams:.1%}",
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"


def _complaints(run: Run) -> Iterator[str]:
    """What went wrong, the same message once, with how often."""
    counts: dict[tuple[str, str], int] = {}
    for event in run.events:
        if event.status == "error":
            key = (event.cohort, event.error or "unknown")
            counts[key] = counts.get(key, 0) + 1
    for (cohort, error), count in counts.items():
        yield f"{cohort}: {count} x {error}"
    if run.gone:
        yield f"stopped early, nothing but errors came: {run.gone}"


@contextmanager
def _progress(bounds: Bounds) -> Iterator[OnEvent]:
    """A bar on stderr over time, or over requests where they are the bound; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda event: None
        return
    columns = (TextColumn("load"), BarColumn(), TextColumn("{task.fields[line]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        total: float = bounds.duration_s if bounds.requests is None else bounds.requests
        task = bars.add_task("load", total=total, line="")
        counts: dict[str, Any] = {"requests": 0, "tokens": 0, "errors": 0}

        def on_event(event: RequestEvent) -> None:
            counts["requests"] += 1
            counts["tokens"] += event.completion_tokens
            counts["errors"] += event.status == "error"
            done = bars.tasks[0].elapsed or 0.0 if bounds.requests is None else counts["requests"]
            line = "  ".join(f"{count} {name}" for name, count in counts.items())
            bars.update(task, completed=min(done, total), line=line)

        yield on_event
