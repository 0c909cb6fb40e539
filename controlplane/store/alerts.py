"""Alerts and canary checks in the ledger: rows on their way in, and reads. Times in unix seconds, UTC."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from controlplane.alerts import Alert, AlertState, CanaryCheck
from controlplane.store.models import AlertEntry, CanaryResult
from controlplane.store.time_range import TimeRange

ALERT_FIELDS = tuple(f.name for f in fields(Alert))
CHECK_FIELDS = tuple(f.name for f in fields(CanaryCheck))


@dataclass(frozen=True, slots=True)
class CanarySummary:
    """Checks of one cohort by one drafter. positions, near_ties, mismatches: tokens; requests: those checked.

    wrong: requests with a mismatch. worst_gap: logits, of all differences that have one. seconds: spent on it.
    """

    cohort: str
    drafter: str
    requests: int
    wrong: int
    positions: int
    near_ties: int
    mismatches: int
    worst_gap: float | None
    seconds: float


def check_row(check: CanaryCheck) -> dict[str, Any]:
    return {**{name: getattr(check, name) for name in CHECK_FIELDS}, "verdict": check.verdict}


def alert_row(alert: Alert) -> dict[str, Any]:
    row = {name: getattr(alert, name) for name in ALERT_FIELDS}
    # What a person wrote, without NUL: PostgreSQL stores none.
    return {**row, **{name: row[name].replace("\0", "") for name in ("detail", "cleared_by", "why")}}


def alert_log(engine: sa.Engine, state: AlertState | None = None, limit: int = 200) -> list[Alert]:
    """The newest `limit` alerts, newest first: those in `state`, or all."""
    query = (
        sa.select(*(getattr(AlertEntry, name) for name in ALERT_FIELDS))
        .order_by(AlertEntry.last_seen.desc(), AlertEntry.id.desc())
        .limit(limit)
    )
    if state is not None:
        query = query.where(AlertEntry.state == state)
    with engine.connect() as connection:
        return [Alert(**row) for row in connection.execute(query).mappings()]


def canary_summary(engine: sa.Engine, range: TimeRange) -> list[CanarySummary]:
    """What the canary found in the range, by cohort and drafter."""
    wrong = sa.case((CanaryResult.mismatches > 0, 1), else_=0)
    sums = (CanaryResult.positions, CanaryResult.near_ties, CanaryResult.mismatches)
    query = (
        sa.select(
            CanaryResult.cohort,
            CanaryResult.drafter,
            sa.func.count().label("requests"),
            sa.func.sum(wrong).label("wrong"),
            *(sa.func.sum(column).label(column.key) for column in sums),
            sa.func.max(CanaryResult.worst_gap).label("worst_gap"),
            sa.func.sum(CanaryResult.seconds).label("seconds"),
        )
        .where(CanaryResult.at >= range.start, CanaryResult.at < range.end)
        .group_by(CanaryResult.cohort, CanaryResult.drafter)
        .order_by(CanaryResult.cohort, CanaryResult.drafter)
    )
    whole = ("requests", "wrong", "positions", "near_ties", "mismatches")
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    return [CanarySummary(**{**row, **{name: int(row[name]) for name in whole}}) for row in rows]
