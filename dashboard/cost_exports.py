"""The files of `kadence cost export`, made by its own functions when their button is pressed, and not before."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from controlplane.cost_cli.export import ACCOUNT, PROVIDER, carbon_by_hour, focus_source, whole_hours
from controlplane.cost_cli.export_run import Asked, Format, write
from controlplane.cost_cli.priced_as import PricedAs, prices_as
from controlplane.finops.pricing import PriceSheet
from controlplane.settings import Settings
from controlplane.store.queries import TimeRange
from controlplane.store.time_range import iso

CELLS_MOST = 400_000
"""Cells of the bill that a browser is given; a longer file is for the command, which holds one hour at a time."""
CELLS_OF_AN_HOUR = 8
"""Of one cohort: both directions, a few tenants and models. Only to tell whether a range is too long."""
MIME = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}


@dataclass(frozen=True, slots=True)
class Terms:
    """How to export. by: a dimension of the cost report, None = cell by cell. basis: None = the sheet's default."""

    by: str | None = None
    basis: str | None = None
    priced_as: str = PricedAs.CURRENT.value
    focus_version: str = "1.2"
    provider: str = PROVIDER
    account: str = ACCOUNT


@dataclass(frozen=True, slots=True)
class File:
    """One of the buttons. suffix: of the file's name, which says what is in it."""

    label: str
    format: Format
    suffix: str

    @property
    def mime(self) -> str:
        return MIME[self.suffix]


FILES = (
    File("CSV", Format.CSV, "csv"),
    File("Parquet", Format.PARQUET, "parquet"),
    File("FOCUS", Format.FOCUS, "csv"),
    File("FOCUS, Parquet", Format.FOCUS, "parquet"),
)


def hours_of(asked: TimeRange) -> TimeRange | None:
    """The whole hours of the range, which are what is exported; None where it has none."""
    try:
        return whole_hours(asked, "range")
    except ValueError:
        return None


def is_too_long(asked: TimeRange, cohorts: int) -> bool:
    """Whether a file of every cell would be too large for a browser, by a rough count."""
    return (asked.end - asked.start) / 3600 * max(cohorts, 1) * CELLS_OF_AN_HOUR > CELLS_MOST


def file_name(file: File, asked: TimeRange, terms: Terms) -> str:
    """`kadence-focus-1.2-20261129T1500Z-20261130T1500Z.csv`: what is in it, and from when to when."""
    kind = {Format.FOCUS: f"focus-{terms.focus_version}"}.get(file.format, f"by-{terms.by}" if terms.by else "cells")
    start, end = (iso(at).replace("-", "").replace(":", "")[:13] + "Z" for at in (asked.start, asked.end))
    return f"kadence-{kind}-{start}-{end}.{file.suffix}"


def content(
    engine: Any, asked: TimeRange, sheet: PriceSheet, where: dict[str, list[str]], settings: Settings, file: File,
    terms: Terms,
) -> bytes:  # fmt: skip
    """The file, byte by byte that of the command. asked: whole hours. Raises what the command stops with: PriceError,
    StoreError, ValueError.
    """
    prices = prices_as(PricedAs(terms.priced_as), engine, asked, sheet)
    by = None if file.format is Format.FOCUS else terms.by
    export = Asked(engine, asked, prices, terms.basis or sheet.default_basis, where, by, carbon_by_hour(settings))
    source = focus_source(export, terms.focus_version, terms.provider, terms.account)
    with TemporaryDirectory(prefix="kadence-export-") as folder:
        target = Path(folder) / f"export.{file.suffix}"
        write(export, file.format, source, target)
        return target.read_bytes()


def command(file: File, asked: TimeRange, where: dict[str, list[str]], terms: Terms, name: str) -> str:
    """What makes the same file in a terminal. Has names from outside in it: st.code, never Markdown."""
    parts = ["-o", name, "--format", file.format.value, "--since", iso(asked.start), "--until", iso(asked.end)]
    parts += [part for by, values in where.items() for value in values for part in ("--where", f"{by}={value}")]
    if file.format is Format.FOCUS:
        parts += ["--focus-version", terms.focus_version]
        parts += ["--provider", terms.provider] if terms.provider != PROVIDER else []
        parts += ["--billing-account", terms.account] if terms.account != ACCOUNT else []
    elif terms.by:
        parts += ["--by", terms.by]
    parts += ["--basis", terms.basis] if terms.basis else []
    parts += ["--as", terms.priced_as] if terms.priced_as != PricedAs.CURRENT.value else []
    return f"kadence cost export {shlex.join(parts)}"
