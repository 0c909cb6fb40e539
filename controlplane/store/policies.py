"""Reads of the policies that were put in force: when, by whom, why, and their text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from controlplane.policy import Policy, PolicyError, parse_policy
from controlplane.store.engine import writing
from controlplane.store.models import PolicyRevision, PolicyRollout
from controlplane.store.queries import policy_log
from controlplane.store.time_range import iso


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of the history. applied_at: unix seconds. what: applied, or what became of a staged rollout."""

    revision: str
    applied_at: float
    applied_by: str
    why: str
    what: str = "applied"


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """A staged rollout on record (models.PolicyRollout)."""

    revision: str
    incumbent: str
    unit: str
    share: float
    min_windows: int
    max_s: float
    stage: str
    started_at: float
    ended_at: float | None
    started_by: str
    why: str
    sentence: str
    text: str


def policy_history(engine: sa.Engine, limit: int = 50) -> list[PolicyEntry]:
    """The newest `limit` lines, newest first. A staged rollout is one when it began and one when it ended."""
    applied, staged = PolicyRevision, PolicyRollout
    in_force = sa.select(applied.revision, applied.applied_at, applied.applied_by, applied.why)
    began = sa.select(staged.revision, staged.started_at, staged.started_by, staged.why)
    ended = sa.select(staged.revision, staged.ended_at, staged.started_by, staged.sentence, staged.stage)
    queries = (
        in_force.add_columns(sa.literal("applied")).order_by(applied.applied_at.desc(), applied.id.desc()),
        began.add_columns(sa.literal("staged")).order_by(staged.started_at.desc()),
        # What was promoted was put in force: that line has its reason.
        ended.where(staged.ended_at.is_not(None), staged.stage != "promoted").order_by(staged.ended_at.desc()),
    )
    with engine.connect() as connection:
        found = [PolicyEntry(*row) for query in queries for row in connection.execute(query.limit(limit))]
    return sorted(found, key=lambda entry: entry.applied_at, reverse=True)[:limit]


def policy_in_force(engine: sa.Engine) -> Policy:
    """The last policy that was put in force on this ledger. Raises ValueError, one line, where there is none to use."""
    applied = policy_log(engine, limit=1)
    if not applied:
        raise ValueError("no policy was put in force on this ledger yet")
    try:
        return parse_policy(applied[0].text, source=f"revision {applied[0].revision}")
    except PolicyError as error:
        raise ValueError(f"the policy on record is not one of this release: {str(error).splitlines()[0]}") from None


def rollouts(engine: sa.Engine, limit: int = 50) -> list[RolloutEntry]:
    """The newest `limit` staged rollouts, newest first."""
    columns = [getattr(PolicyRollout, name) for name in RolloutEntry.__dataclass_fields__]
    query = sa.select(*columns).order_by(PolicyRollout.started_at.desc(), PolicyRollout.id.desc()).limit(limit)
    with engine.connect() as connection:
        return [RolloutEntry(**row) for row in connection.execute(query).mappings()]


def close_rollouts(engine: sa.Engine, sentence: str, now: float) -> int:
    """End those that a controller left behind when it died, as aborted; how many there were."""
    left = sa.update(PolicyRollout).where(PolicyRollout.ended_at.is_(None))
    with writing(engine).begin() as connection:
        return connection.execute(left.values(stage="aborted", sentence=sentence, ended_at=now)).rowcount


def last_of_file(engine: sa.Engine, by: str) -> str | None:
    """Revision of the policy that was last taken from the file, at a start or applied by `by`; None without one."""
    table = PolicyRevision
    from_start = sa.and_(table.applied_by == "kadence", table.why == "start")
    query = sa.select(table.revision).where(sa.or_(table.applied_by == by, from_start))
    with engine.connect() as connection:
        return connection.scalar(query.order_by(table.applied_at.desc(), table.id.desc()).limit(1))


def find_policies(engine: sa.Engine, prefix: str) -> dict[str, str]:
    """Revision -> text of the policies, in force or tried, whose revision begins with `prefix`."""
    found = {}
    with engine.connect() as connection:
        for table in (PolicyRevision, PolicyRollout):
            begins = table.revision.startswith(prefix, autoescape=True)
            for row in connection.execute(sa.select(table.revision, table.text).where(begins).distinct()):
                found[row.revision] = row.text
    return found


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
