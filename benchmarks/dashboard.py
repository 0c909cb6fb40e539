"""How fast the dashboard is on a year of rollups of 200 cohorts, and what memory it takes while it refreshes.

    python -m benchmarks.dashboard --repeats 5 --refreshes 500 --save

Builds a ledger in a scratch folder (dashboard_ledger), starts the real dashboard on it and asks it with headless
Chromium. Milliseconds, for each page and range:
first_contentful_paint: as the browser tells it (W3C Paint Timing), when there is anything on the screen at all;
first_paint: from the address until the page's figures are on it (its cards, or the table, command or sentence of a page
without), in a new tab of a browser that was there before; whole_page: until every chart and table is drawn too and
nothing is being computed;
filter_change, filter_change_whole: the same from the click on another range, to this range from another one and so on
in pairs; its cpu is of the dashboard's process alone, which other work on the machine does not lengthen. Memory:
resident MiB of the dashboard's process after the pages were seen once, and ten times while its fragments refresh.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.dashboard_ledger import BenchLedger, build
from benchmarks.decode_figures import append_lines
from benchmarks.ledger_report import cpu_name
from controlplane.settings import load_settings
from dashboard.launch import dashboard_command, run_dashboard
from dashboard.navigation import PAGES
from dashboard.screenshot import DRAWN, chromium

RESULTS = Path(__file__).with_name("dashboard.csv")
RANGES = ("1h", "30d", "1y")
AWAY = {"1h": "15m", "30d": "7d", "1y": "30d"}
"""From which other range a change to this one is measured."""

FIRST_PAINT_MS, FILTER_CHANGE_MS = 1500.0, 700.0
TABS, REFRESH_S, READINGS = 4, 2, 10
"""Of the measurement of memory: as many tabs, as often, as one process can serve and still be idle in between."""

KEPT_S = 420
"""A kept ledger must still have windows in the shortest range until the last page was seen."""

COLUMNS = (
    "page", "range", "first_contentful_paint_ms", "first_paint_ms", "first_paint_max_ms", "whole_page_ms",
    "filter_change_ms", "filter_change_max_ms", "filter_change_whole_ms", "filter_change_cpu_ms", "load_average",
    "refreshes", "max_mib", "mib",
)  # fmt: skip

IDLE = "[data-test-script-state=notRunning]"
DRAWN_MS = 60_000
WATCH = """(() => {
    const look = () => {
        const of = kind => [...document.querySelectorAll(`[data-testid=${kind}]`)]
            .filter(each => !each.closest('.st-key-rest, .st-key-rest-soon'));
        const kinds = ['stMetric', 'stDataFrame', 'stCode', 'stText'];
        const figures = kinds.map(of).find(found => found.length) || [];
        const there = document.querySelector('.st-key-shown-SPAN') && figures.length
            && figures.every(each => each.textContent && !each.closest('[data-stale=true]'));
        there ? setTimeout(() => window.figuresAt = performance.now()) : requestAnimationFrame(look);
    };
    window.figuresAt = null;
    requestAnimationFrame(look);
    return performance.now();
})()"""
"""Notes when the frame was painted that has the range's figures: the cards above the charts and tables, or the table,
command or sentence of a page that has no cards. Asked from outside, a browser that is busy with charts would be late.
"""


@contextmanager
def running(ledger: BenchLedger, home: Path, port: int, refresh_s: float) -> Iterator[tuple[str, int]]:
    """A dashboard on that ledger: its address and its process."""
    settings = load_settings(
        home=home,
        database_url=ledger.url,
        prices=ledger.prices,
        dashboard_port=port,
        dashboard_refresh_s=refresh_s,
    )
    process = run_dashboard(settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = dashboard_command(settings).url
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.communicate(timeout=20)


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def cpu_ms(pid: int) -> float:
    """CPU time that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def shown(page: Any, span: str) -> None:
    """Waits until the page is that of the range: it is stamped with it, all is drawn, nothing is computed."""
    page.wait_for_selector(f"{IDLE} .st-key-shown-{span}", timeout=DRAWN_MS, state="attached")
    page.wait_for_function(DRAWN, timeout=DRAWN_MS)


class Paints(NamedTuple):
    """Milliseconds from the address: to anything, to the figures, to the whole page."""

    anything: float
    figures: float
    whole: float


def first_paint(browser: Any, url: str, name: str, span: str) -> Paints:
    page = browser.contexts[0].new_page()
    page.add_init_script(WATCH.replace("SPAN", span))
    begin = time.perf_counter()
    page.goto(f"{url}/{'' if name == PAGES[0].name else name}?range={span}")
    shown(page, span)
    whole = (time.perf_counter() - begin) * 1000
    figures = page.wait_for_function("window.figuresAt", timeout=DRAWN_MS).json_value()
    anything = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.close()
    return Paints(anything, figures, whole)


class Change(NamedTuple):
    """Milliseconds from the click: to the figures, to the whole page; and of the dashboard's CPU time."""

    figures: float
    whole: float
    cpu: float


def filter_change(page: Any, span: str, pid: int) -> Change:
    page.get_by_text(AWAY[span], exact=True).click()
    shown(page, AWAY[span])
    spent, begin = cpu_ms(pid), time.perf_counter()
    watched = page.evaluate(WATCH.replace("SPAN", span))
    page.get_by_text(span, exact=True).click()
    shown(page, span)
    whole = (time.perf_counter() - begin) * 1000
    figures = page.wait_for_function("window.figuresAt", timeout=DRAWN_MS).json_value()
    return Change(figures - watched, whole, cpu_ms(pid) - spent)


def measure_speed(browser: Any, url: str, pid: int, repeats: int, names: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    for entry in (each for each in PAGES if each.name in names):
        for span in RANGES:
            first_paint(browser, url, entry.name, span)  # the browser's own cache, and the modules of the page
            paints = [first_paint(browser, url, entry.name, span) for _ in range(repeats)]
            page = context.new_page()
            page.goto(f"{url}/{'' if entry is PAGES[0] else entry.name}?range={span}")
            shown(page, span)
            changes = [filter_change(page, span, pid) for _ in range(repeats)]
            page.close()
            found.append(
                {
                    "page": entry.name,
                    "range": span,
                    "first_contentful_paint_ms": round(median(each.anything for each in paints)),
                    "first_paint_ms": round(median(each.figures for each in paints)),
                    "first_paint_max_ms": round(max(each.figures for each in paints)),
                    "whole_page_ms": round(median(each.whole for each in paints)),
                    "filter_change_ms": round(median(each.figures for each in changes)),
                    "filter_change_max_ms": round(max(each.figures for each in changes)),
                    "filter_change_whole_ms": round(median(each.whole for each in changes)),
                    "filter_change_cpu_ms": round(median(each.cpu for each in changes)),
                    "load_average": round(os.getloadavg()[0], 1),
                }
            )
            typer.echo(found[-1])
    context.close()
    return found


def measure_memory(browser: Any, url: str, pid: int, refreshes: int, refresh_s: float) -> dict[str, Any]:
    """Some tabs are left open while their fragment refreshes; each adds its share."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tabs = []
    for i in range(TABS):
        page = context.new_page()
        entry = PAGES[i % len(PAGES)]
        page.goto(f"{url}/{'' if entry is PAGES[0] else entry.name}?range=1y")
        shown(page, "1y")
        tabs.append(page)
    time.sleep(10 * refresh_s)
    readings = [rss_mib(pid)]
    for _ in range(READINGS):
        time.sleep(refreshes / TABS / READINGS * refresh_s)
        readings.append(rss_mib(pid))
    context.close()
    return {"refreshes": refreshes, "max_mib": max(readings), "mib": " ".join(f"{each:.0f}" for each in readings)}


def line(rows: int, found: dict[str, Any]) -> dict[str, Any]:
    """A line of dashboard.csv; what was not measured is empty."""
    stamp = {
        "date": datetime.now(UTC).date().isoformat(), "cpu": cpu_name(), "cores": os.cpu_count(),
        "streamlit": version("streamlit"), "sqlalchemy": version("sqlalchemy"), "cost_hour_rows": rows,
    }  # fmt: skip
    return {**stamp, **dict.fromkeys(COLUMNS, ""), **found}


def main(
    repeats: Annotated[int, typer.Option(min=0, help="0 leaves speed out.")] = 5,
    refreshes: Annotated[int, typer.Option(min=0, help="0 leaves memory out.")] = 500,
    days: Annotated[int, typer.Option(min=40)] = 365,
    cohorts: Annotated[int, typer.Option(min=16)] = 200,
    port: Annotated[int, typer.Option()] = 8599,
    pages: Annotated[list[str] | None, typer.Option("--page", help="Only these.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the ledger here, and take one made in the last seven minutes.")
    ] = None,
    save: Annotated[bool, typer.Option(help="Append to dashboard.csv.")] = False,
) -> None:
    """Measure; exit code 1 when a median is over its target."""
    with tempfile.TemporaryDirectory(prefix="kadence-bench-", ignore_cleanup_errors=True) as scratch:
        home = folder or Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        kept = home / "kadence.db"
        if kept.exists() and time.time() - (home / "prices.yaml").stat().st_mtime < KEPT_S:
            ledger = BenchLedger(f"sqlite:///{home / 'kadence.db'}", home / "prices.yaml", 0, 0)
        else:
            for old in home.glob("kadence.db*"):
                old.unlink()
            ledger = build(home, days=days, cohorts=cohorts, every=2, now=time.time())
        typer.echo(f"{ledger} in {time.perf_counter() - begin:.0f} s", err=True)
        speed: list[dict[str, Any]] = []
        with chromium() as browser:
            if repeats:
                with running(ledger, home, port, 3600) as (url, pid):
                    speed = measure_speed(browser, url, pid, repeats, pages or [each.name for each in PAGES])
                if save:
                    append_lines(RESULTS, [line(ledger.rows, each) for each in speed])
            if refreshes:
                with running(ledger, home, port, REFRESH_S) as (url, pid):
                    memory = measure_memory(browser, url, pid, refreshes, REFRESH_S)
                typer.echo(memory)
                if save:
                    append_lines(RESULTS, [line(ledger.rows, {"page": "all", "range": "1y", **memory})])
    slow = [
        each for each in speed if each["first_paint_ms"] > FIRST_PAINT_MS or each["filter_change_ms"] > FILTER_CHANGE_MS
    ]
    if slow:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
