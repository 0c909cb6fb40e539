"""What `kadence cost export` does: rows of the bill into a file, batch by batch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import sqlalchemy as sa
from rich.console import Console
from rich.progress import Progress

from controlplane.cost_cli.export_files import CsvFile, JsonFile, ParquetFile, RowFile, replacing
from controlplane.finops.export_cells import (
    CELL_FIELDS,
    HOUR_S,
    BilledCell,
    Carbon,
    Field,
    Row,
    UnpricedUses,
    cell_row,
    known,
    machine_hours,
    scaled,
)
from controlplane.finops.focus import FocusSource, focus_rows
from controlplane.finops.focus_check import problems
from controlplane.finops.focus_columns import PROVISIONAL
from controlplane.finops.focus_fields import fields as focus_fields
from controlplane.finops.pricing import PriceError, Prices
from controlplane.store.cost import cost_cells, cost_report
from controlplane.store.queries import TimeRange, open_ledger
from controlplane.store.time_range import iso

ROWS_AT_ONCE = 4000
"""What is checked and written together."""

PROBLEMS_SHOWN = 20


class Format(StrEnum):
    """What the file is."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"
    FOCUS = "focus"


@dataclass(frozen=True)
class Asked:
    """What to export, and by which prices. by: a dimension of the cost report; None: cell by cell."""

    engine: sa.Engine
    range: TimeRange
    prices: Prices
    basis: str
    where: dict[str, list[str]]
    by: str | None
    carbon: Carbon


@dataclass
class Written:
    """What became of it. nano: sum of the costs that were written, None where a row of a dimension has none.

    unpriced_lines: of an export by a dimension.
    """

    rows: int = 0
    nano: int | None = 0
    unpriced: UnpricedUses = field(default_factory=UnpricedUses)
    unpriced_lines: tuple[str, ...] = ()
    warnings: dict[str, None] = field(default_factory=dict)


@contextmanager
def ledger(url: str) -> Iterator[sa.Engine]:
    """The database for the time of a command. Raises StoreError."""
    engine = open_ledger(url)
    try:
        yield engine
    finally:
        engine.dispose()


def write(asked: Asked, format: Format, source: FocusSource, target: Path | None) -> Written:
    """The file (None: standard output), whole or not at all.

    Raises OSError, StoreError, and PriceError where a FOCUS file would not conform.
    """
    fields = CELL_FIELDS if asked.by is None else by_fields(asked.by)
    if format is Format.FOCUS:
        fields = focus_fields(source.version)
    written = Written()
    about = {"range": f"{iso(asked.range.start)}/{iso(asked.range.end)}", "basis": asked.basis}
    if format is Format.FOCUS:
        provisional = " (provisional)" if source.version in PROVISIONAL else ""
        about["focus_version"] = source.version + provisional
    head = {
        "range": {"start": iso(asked.range.start), "end": iso(asked.range.end)},
        "currency": asked.prices.currency,
        "basis": asked.basis,
    }
    with ExitStack() as stack:
        file: RowFile
        path = None if target is None else stack.enter_context(replacing(target))
        is_parquet = format is Format.PARQUET or (format is Format.FOCUS and target is not None and _is_parquet(target))
        if is_parquet and path is not None:
            file = ParquetFile(path, fields, about)
        else:
            stream = stdout() if path is None else stack.enter_context(path.open("w", encoding="utf-8", newline=""))
            if format is Format.JSON:
                file = JsonFile(stream, fields, head)
            else:
                # FOCUS keeps names as they are; the plain file is the one that people open in a spreadsheet.
                file = CsvFile(stream, fields, is_guarded=format is Format.CSV)
        rows = _cell_rows(asked, format, source, written) if asked.by is None else _by_rows(asked, written)
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            if format is Format.FOCUS:
                _check(batch, fields, source.version)
            file.write(batch)
            written.rows += len(batch)
        file.close()
    return written


def stdout() -> TextIO:
    """Standard output, written to as a file would be: UTF-8, whatever the terminal's encoding."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")
    return sys.stdout


def _is_parquet(target: Path) -> bool:
    return target.suffix.lower() in (".parquet", ".pq")


def _cell_rows(asked: Asked, format: Format, source: FocusSource, written: Written) -> Iterator[Row]:
    cells: Iterable[BilledCell] = cost_cells(asked.engine, asked.range, asked.prices, asked.basis, where=asked.where)
    first = int(asked.range.start // HOUR_S)
    with _progress(int(asked.range.end // HOUR_S) - first) as reached:
        for group in machine_hours(cells):
            reached(group[0].hour - first)
            at = float(group[0].hour * HOUR_S)
            price = asked.prices.price_at(group[0].sku, asked.basis, at)
            if price is None:
                written.unpriced.add(group)
            elif (stale := asked.prices.why_stale(price, asked.range.end)) is not None:
                written.warnings[stale] = None
            written.nano = (written.nano or 0) + sum(cell.cost_nano or 0 for cell in group)
            if format is not Format.FOCUS:
                currency = None if price is None else price.currency
                yield from (cell_row(cell, currency, asked.basis, asked.carbon) for cell in group)
            elif price is not None:
                yield from focus_rows(source, group)


def by_fields(by: str) -> tuple[Field, ...]:
    """Columns of an export by that dimension. part: row, idle, or rest (what a filter left out); all are the bill."""
    counts = ("requests", "input_tokens", "emitted_tokens", "draft_tokens", "accepted_tokens")
    return (
        Field("part", "text"),
        Field(by, "text"),
        Field("machine_s", "decimal", 9),
        Field("cost", "decimal", 9),
        Field("wasted_cost", "decimal", 9),
        Field("cost_per_million_tokens", "decimal", 6),
        Field("cost_per_million_input_tokens", "decimal", 6),
        Field("currency", "text"),
        Field("basis", "text"),
        Field("energy_j", "decimal", 6),
        Field("wasted_j", "decimal", 6),
        Field("energy_source", "text"),
        *(Field(name, "integer") for name in counts),
    )


def _by_rows(asked: Asked, written: Written) -> Iterator[Row]:
    report = cost_report(asked.engine, asked.range, asked.by or "", asked.prices, asked.basis, where=asked.where)
    written.unpriced_lines = report.unpriced
    written.nano = report.total.cost_nano
    written.warnings |= dict.fromkeys(report.warnings)
    rest = [] if report.rest is None else [("rest", report.rest)]
    for part, row in [*(("row", row) for row in report.rows), *rest, ("idle", report.idle)]:
        machine_ns = round(report.idle_s * 1e9) if part == "idle" else row.machine_ns
        yield (
            part,
            row.key if part == "row" else None,
            scaled(machine_ns, 9),
            known(row.cost_nano, 9),
            known(row.wasted_cost_nano, 9),
            row.cost_per_million_tokens,
            row.cost_per_million_input_tokens,
            report.currency,
            report.basis,
            known(row.energy_uj, 6),
            known(row.wasted_uj, 6),
            row.energy_source,
            *(Decimal(n) for n in (row.requests, row.input_tokens, row.emitted_tokens)),
            *(Decimal(n) for n in (row.draft_tokens, row.accepted_tokens)),
        )


@contextmanager
def _progress(hours: int) -> Iterator[Any]:
    """A bar on a terminal: call what it gives with the hours that are behind."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("hours", total=hours)
        yield lambda done: bar.update(task, completed=done)


def _check(batch: Sequence[Row], fields: Sequence[Field], version: str) -> None:
    """Raises PriceError: a file that does not conform is not written."""
    columns = dict(zip((field.name for field in fields), zip(*batch, strict=True), strict=True))
    if found := problems(columns, version):
        raise PriceError([f"this would not be FOCUS {version}: {line}" for line in found[:PROBLEMS_SHOWN]])
