"""What a page shows: one consistent reading of the ledger, or one sentence on why there is none and the way out.

Pages never see a database error. Everything comes from controlplane.store.queries, the functions behind
`kadence cost report`, so a figure here and a figure there are the same figure.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from controlplane.alerts import Alert
from controlplane.finops.pricing import PriceError, PriceSheet, load_prices
from controlplane.store import queries
from controlplane.store.alerts import alert_log
from controlplane.store.engine import one_line, open_database
from controlplane.store.price_book import stored_prices
from controlplane.store.queries import CohortPoint, CostReport, DecisionRow, PlanRow, TimeRange
from dashboard import format as fmt
from dashboard.charts import bucket_seconds

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 400
"""A page waits this long for a lock, then says so and tries again at its next refresh."""

DECISION_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Source:
    """Where the figures come from: a database URL, and a price sheet file that need not exist."""

    database_url: str
    prices: Path


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is nothing to show, and what to do about it, each one sentence. waiting: normal before first use."""

    sentence: str
    way_out: str
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading. at: unix seconds of it. bounds: of all there is. decisions: the newest, holds included; changes: the
    newest that changed K. notes: what a reader must know beside the figures, one line each. alerts: the active ones,
    newest first.
    """

    at: float
    range: TimeRange
    bounds: TimeRange
    report: CostReport
    series: Sequence[CohortPoint]
    bucket_s: float
    decisions: Sequence[DecisionRow]
    changes: Sequence[DecisionRow]
    plan: PlanRow | None
    notes: tuple[str, ...] = ()
    alerts: Sequence[Alert] = ()


def read(source: Source, span_s: float | None, now: float) -> Snapshot | Trouble:
    """The last `span_s` seconds before `now` (None = everything there is), or why they cannot be read."""
    shown = fmt.without_password(source.database_url)
    try:
        return _check(source.database_url, shown) or _snapshot(source, span_s, now)
    except Exception as error:  # the page lives on whatever the database does; the log has the details
        _checked.clear()
        log.warning("cannot read %s: %s", shown, one_line(error))
        return Trouble(f"The database {shown} cannot be read: {one_line(error)}.", _RETRY)


_RETRY = "This page tries again every few seconds; `kadence doctor` checks the database."
_LOAD = "Send some: `kadence load` plays a mix of cohorts against the running endpoint."


_checked: set[tuple[str, tuple[int, int]]] = set()
"""Databases found to be of this code's revision: asked again only when the file is another one or a read failed."""


def _check(database_url: str, shown: str) -> Trouble | None:
    key = (database_url, _identity(database_url))
    if key in _checked:
        return None
    trouble = _trouble(queries.database_state(database_url, busy_timeout_ms=BUSY_TIMEOUT_MS), shown)
    if trouble is None:
        _checked.add(key)
    return trouble


def _trouble(state: str, shown: str) -> Trouble | None:
    kind, _, detail = state.partition(": ")
    if kind == "ok":
        return None
    if kind == "empty":
        return Trouble(
            f"The database {shown} has no tables yet.",
            "Start everything with `kadence up`, or create them with `kadence db upgrade`.",
            waiting=True,
        )
    if kind == "missing":
        return Trouble(
            f"There is no database at {shown}.",
            "Start everything with `kadence up`, or point KADENCE_DATABASE_URL at the right one.",
        )
    if kind == "older":
        return Trouble(
            f"The database {shown} is from an older version of Kadence.",
            "Bring it up to date with `kadence db upgrade`.",
        )
    if kind == "newer":
        return Trouble(
            f"The database {shown} is from a newer version of Kadence.",
            "Update this installation, or point KADENCE_DATABASE_URL at another database.",
        )
    return Trouble(f"The database {shown} cannot be read: {detail or state}.", _RETRY)


def _snapshot(source: Source, span_s: float | None, now: float) -> Snapshot | Trouble:
    engine = _engine(source.database_url)
    bounds = queries.time_bounds(engine)
    if bounds is None:
        return Trouble("No traffic yet.", _LOAD, waiting=True)
    span = TimeRange(bounds.start, max(bounds.end, now)) if span_s is None else TimeRange(now - span_s, now)
    sheet, notes = _sheet(source.prices, engine)
    report = queries.cost_report(engine, span, "cohort", sheet)
    bucket_s = bucket_seconds(span.end - span.start)
    return Snapshot(
        at=now,
        range=span,
        bounds=bounds,
        report=report,
        series=queries.cohort_series(engine, span, bucket_s),
        bucket_s=bucket_s,
        decisions=queries.decision_log(engine, span, limit=DECISION_LIMIT),
        changes=queries.decision_log(engine, span, limit=DECISION_LIMIT, changes_only=True),
        plan=queries.latest_plan(engine),
        alerts=alert_log(engine, "active"),
        notes=(*(notes or (f"Unpriced: {line}." for line in report.unpriced)), *report.warnings),
    )


def _sheet(path: Path, engine: Any) -> tuple[PriceSheet, tuple[str, ...]]:
    """As `kadence cost report` does: the configured file if it is there, else the price book in the database."""
    try:
        return (load_prices(path) if path.exists() else stored_prices(engine)), ()
    except PriceError as error:
        return PriceSheet(), (f"Costs are unpriced: {error.problems[0]}.",)


def _identity(database_url: str) -> tuple[int, int]:
    """Device and inode of a SQLite file: a file that was replaced needs a new connection."""
    parts = urlsplit(database_url)
    if not parts.scheme.startswith("sqlite"):
        return (0, 0)
    try:
        found = os.stat(database_url.partition(":///")[2])
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


_engines: dict[tuple[str, tuple[int, int]], Any] = {}


def _engine(database_url: str) -> Any:
    """One engine at a time: the page looks at one database, and drops the last one when its file was replaced."""
    key = (database_url, _identity(database_url))
    if key not in _engines:
        forget()
        _engines[key] = open_database(database_url, busy_timeout_ms=BUSY_TIMEOUT_MS)
    return _engines[key]


def forget() -> None:
    """Closes every connection; the next reading starts afresh."""
    _checked.clear()
    for engine in _engines.values():
        engine.dispose()
    _engines.clear()
