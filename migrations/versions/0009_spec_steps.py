"""The bill's hours, days and months tell steps with a draft from steps without.

Known of the hours of which every window is kept, by cohort as the windows counted them, over its tenants as new windows
are (by the steps of those that drafted); and where nothing was drafted at all. Of other hours it is not known: null,
also in their day and month. The moment at which the newest window ended is found by an index from now on.

Revision: 0009.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

UNITS = ("hour", "day", "month")
KEY = ("sku", "model", "cohort", "tenant", "direction", "energy_source")
EPOCH = date(1970, 1, 1)


def upgrade() -> None:
    connection = op.get_bind()
    for unit in UNITS:  # added in place: the tables are large
        op.add_column(f"cost_{unit}", sa.Column("spec_steps", sa.BigInteger(), nullable=True))
        connection.execute(sa.text(f"UPDATE cost_{unit} SET spec_steps = 0 WHERE draft_tokens = 0"))
    op.create_index(op.f("ix_window_ended_at"), "window", ["ended_at"])
    for hour in _whole_hours(connection):
        _tell_hour(connection, hour)
    _tell_days(connection)
    _tell_months(connection)


def downgrade() -> None:
    op.drop_index(op.f("ix_window_ended_at"), "window")
    for unit in UNITS:
        op.drop_column(f"cost_{unit}", "spec_steps")


def _whole_hours(connection: sa.Connection) -> list[int]:
    """Hours of which every window that the bill has counted is kept."""
    kept = 'SELECT hour, COUNT(*) AS windows FROM "window" GROUP BY hour'
    counted = "SELECT hour, SUM(windows) AS windows FROM machine_hour GROUP BY hour"
    both = sa.text(f"SELECT k.hour FROM ({kept}) k JOIN ({counted}) c ON c.hour = k.hour WHERE k.windows = c.windows")
    return sorted(int(hour) for (hour,) in connection.execute(both))


def _tell_hour(connection: sa.Connection, hour: int) -> None:
    """Each cohort's steps with a draft, from its windows, over its rows of the hour."""
    windows = sa.text(
        "SELECT w.device, w.model, c.cohort, w.energy_source, SUM(c.spec_steps) FROM window_cohort c"
        ' JOIN "window" w USING (worker, epoch, sequence) WHERE w.started_at >= :begin AND w.started_at < :end'
        " GROUP BY w.device, w.model, c.cohort, w.energy_source"
    )
    span = {"begin": hour * 3600.0, "end": (hour + 1) * 3600.0}
    counted = {tuple(key): int(steps) for *key, steps in connection.execute(windows, span)}
    found = sa.text(
        f"SELECT {', '.join(KEY)}, steps, draft_tokens FROM cost_hour WHERE hour = :hour AND direction = 'output'"
        f" AND draft_tokens > 0 ORDER BY {', '.join(KEY)}"
    )
    rows: dict[tuple[str, ...], list[Any]] = {}
    for row in connection.execute(found, {"hour": hour}):
        rows.setdefault((row.sku, row.model, row.cohort, row.energy_source), []).append(row)
    told = []
    for key, parts in rows.items():
        if key in counted:
            steps = _split(counted[key], [int(part.steps) for part in parts])
            told += [
                {"hour": hour, "told": n, **{name: getattr(part, name) for name in KEY}}
                for part, n in zip(parts, steps, strict=True)
            ]
    if told:
        where = " AND ".join(f"{name} = :{name}" for name in ("hour", *KEY))
        connection.execute(sa.text(f"UPDATE cost_hour SET spec_steps = :told WHERE {where}"), told)


def _tell_days(connection: sa.Connection) -> None:
    """Days with an hour that is known: the sum of their hours, null where one of these is not known."""
    keys = ", ".join(f"h.{name}" for name in KEY)
    same = " AND ".join(f"t.{name} = cost_day.{name}" for name in ("day", *KEY))
    connection.execute(
        sa.text(
            f"UPDATE cost_day SET spec_steps = t.told FROM (SELECT h.hour / 24 AS day, {keys}, {_told('h')} AS told"
            " FROM cost_hour h WHERE h.hour / 24 IN"
            " (SELECT DISTINCT hour / 24 FROM cost_hour WHERE spec_steps IS NOT NULL AND draft_tokens > 0)"
            f" GROUP BY h.hour / 24, {keys}) AS t WHERE {same}"
        )
    )


def _tell_months(connection: sa.Connection) -> None:
    """Months with a day that is known, likewise from their days."""
    known = sa.text("SELECT DISTINCT day FROM cost_day WHERE spec_steps IS NOT NULL AND draft_tokens > 0")
    days = [EPOCH + timedelta(days=int(day)) for (day,) in connection.execute(known)]
    keys = ", ".join(f"d.{name}" for name in KEY)
    same = " AND ".join(f"t.{name} = cost_month.{name}" for name in KEY)
    statement = sa.text(
        f"UPDATE cost_month SET spec_steps = t.told FROM (SELECT {keys}, {_told('d')} AS told FROM cost_day d"
        f" WHERE d.day >= :begin AND d.day < :end GROUP BY {keys}) AS t WHERE cost_month.month = :month AND {same}"
    )
    for month in sorted({(day.year - EPOCH.year) * 12 + day.month - 1 for day in days}):
        begin, end = ((date(EPOCH.year + n // 12, n % 12 + 1, 1) - EPOCH).days for n in (month, month + 1))
        connection.execute(statement, {"month": month, "begin": begin, "end": end})


def _told(table: str) -> str:
    return f"CASE WHEN COUNT(*) = COUNT({table}.spec_steps) THEN SUM({table}.spec_steps) END"


def _split(total: int, weights: Sequence[int]) -> list[int]:
    """Parts in proportion by largest remainder, ties to the first; even parts where all weights are zero."""
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * len(weights), len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts
