"""Reads of the policies that were put in force: when, by whom, why, and their text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from controlplane.store.models import PolicyRevision
from controlplane.store.time_range import iso


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of the history. applied_at: unix seconds. what: applied, or what became of a staged rollout."""

    revision: str
    applied_at: float
    applied_by: str
    why: str
    what: str = "applied"


def policy_history(engine: sa.Engine, limit: int = 50) -> list[PolicyEntry]:
    """The newest `limit` lines, newest first."""
    table = PolicyRevision
    query = (
        sa.select(table.revision, table.applied_at, table.applied_by, table.why)
        .order_by(table.applied_at.desc(), table.id.desc())
        .limit(limit)
    )
    with engine.connect() as connection:
        return [PolicyEntry(**row) for row in connection.execute(query).mappings()]


def last_of_file(engine: sa.Engine, by: str) -> str | None:
    """Revision of the policy that was last taken from the file, at a start or applied by `by`; None without one."""
    table = PolicyRevision
    from_start = sa.and_(table.applied_by == "kadence", table.why == "start")
    query = sa.select(table.revision).where(sa.or_(table.applied_by == by, from_start))
    with engine.connect() as connection:
        return connection.scalar(query.order_by(table.applied_at.desc(), table.id.desc()).limit(1))


def find_policies(engine: sa.Engine, prefix: str) -> dict[str, str]:
    """Revision -> text of the policies whose revision begins with `prefix`."""
    table = PolicyRevision
    query = sa.select(table.revision, table.text).where(table.revision.startswith(prefix, autoescape=True)).distinct()
    with engine.connect() as connection:
        return {row.revision: row.text for row in connection.execute(query)}


def history_json(entry: PolicyEntry) -> dict[str, Any]:
    """A line as JSON has it; the time as an RFC 3339 text, too."""
    return {
        "revision": entry.revision,
        "applied_at": entry.applied_at,
        "at": iso(entry.applied_at),
        "applied_by": entry.applied_by,
        "why": entry.why,
        "what": entry.what,
    }
