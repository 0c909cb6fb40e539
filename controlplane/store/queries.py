"""All reads of the ledger but the cost report (cost.py), as typed rows. Times in unix seconds, UTC.

A row belongs to a range when it began in it (a request: when it finished in it): start inclusive, end exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError

from controlplane.store.cost import cost_cells, cost_report, cost_reports
from controlplane.store.cost_models import MachineHour
from controlplane.store.cost_pieces import HOUR_S
from controlplane.store.cost_rows import CostCell, CostReport, CostRow
from controlplane.store.engine import BUSY_TIMEOUT_MS, StoreError, one_line, open_database, sqlite_path
from controlplane.store.migrate import head, is_known, revision_of
from controlplane.store.models import DecisionEntry, PlanEntry, PolicyRevision, Request, Window, WindowCohort
from controlplane.store.time_range import TimeRange

__all__ = [
    "CohortPoint",
    "CostCell",
    "CostReport",
    "CostRow",
    "DecisionRow",
    "PlanRow",
    "PolicyRow",
    "TimeRange",
    "cohort_series",
    "cost_cells",
    "cost_report",
    "cost_reports",
    "database_state",
    "decision_log",
    "last_plan_epoch",
    "last_plan_version",
    "latest_plan",
    "open_ledger",
    "policy_log",
    "time_bounds",
    "window_bucket",
]


@dataclass(frozen=True, slots=True)
class CohortPoint:
    """One cohort in one time bucket that began at `at`.

    seconds: wall time from first_at, the start of its first window in the bucket, to last_at, the end of its last
    (so that the time in which any of several cohorts was active can be told); tokens_per_s =
    emitted_tokens / seconds, of all workers together. acceptance_length = 1 + accepted / spec step (None without one).
    spec_steps, plain_steps: None where hours of before revision 0009 do not tell them apart (store.rollup_series).
    mean_k: draft tokens per step, plain steps included; planned_k: what the plan asked for, likewise (None without a
    step): the proposer may have had less to say than the plan allowed.
    """

    at: float
    cohort: str
    emitted_tokens: int
    spec_steps: int | None
    plain_steps: int | None
    accepted_tokens: int
    draft_tokens: int
    seconds: float
    tokens_per_s: float
    acceptance_length: float | None
    mean_k: float | None
    planned_k: float | None
    first_at: float = 0.0
    last_at: float = 0.0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    at: float
    cohort: str
    load_bucket: int
    old_k: int
    new_k: int
    reason: str
    sentence: str
    samples: int
    accept_at: tuple[float, ...]
    plan_version: int
    policy_revision: str


@dataclass(frozen=True, slots=True)
class PlanRow:
    """k: cohort -> K by load bucket; expires_at: of the latest renewal that was journalled."""

    version: int
    epoch: int
    issued_at: float
    expires_at: float
    k: Mapping[str, tuple[int, ...]]
    fallback: Mapping[str, int]
    policy_revision: str
    kill_switch: str


@dataclass(frozen=True, slots=True)
class PolicyRow:
    revision: str
    applied_at: float
    applied_by: str
    why: str
    text: str


def cohort_series(engine: sa.Engine, range: TimeRange, bucket_s: float) -> list[CohortPoint]:
    """Every cohort's activity in buckets of `bucket_s` seconds (multiples of it since the epoch), by time and name.

    A bucket without work for a cohort has no point. Raises ValueError when bucket_s is not over 0.
    """
    bucket = window_bucket(engine, bucket_s)
    summed = ("emitted_tokens", "spec_steps", "plain_steps", "accepted_tokens", "draft_tokens", "planned_k_steps")
    query = (
        sa.select(
            bucket.label("bucket"),
            WindowCohort.cohort,
            sa.func.min(Window.started_at).label("begin"),
            sa.func.max(Window.ended_at).label("finish"),
            *(sa.func.sum(getattr(WindowCohort, name)).label(name) for name in summed),
        )
        .join_from(Window, WindowCohort)
        .where(Window.started_at >= range.start, Window.started_at < range.end)
        .group_by(sa.literal_column("bucket"), WindowCohort.cohort)
        .order_by(sa.literal_column("bucket"), WindowCohort.cohort)
    )
    with engine.connect() as connection:
        return [_cohort_point(row, bucket_s, summed) for row in connection.execute(query).mappings()]


def window_bucket(engine: sa.Engine, bucket_s: float) -> sa.ColumnElement[Any]:
    """The number of the bucket in which a window began. Raises ValueError when bucket_s is not over 0."""
    if bucket_s <= 0:
        raise ValueError(f"bucket_s must be over 0, not {bucket_s}")
    quotient = Window.started_at / bucket_s
    # SQLite may lack floor() and its cast cuts off; PostgreSQL's cast rounds.
    return sa.func.floor(quotient) if engine.dialect.name == "postgresql" else sa.cast(quotient, sa.Integer)


def _cohort_point(row: sa.RowMapping, bucket_s: float, summed: tuple[str, ...]) -> CohortPoint:
    total = {name: int(row[name]) for name in summed}
    seconds = row["finish"] - row["begin"]
    steps = total["spec_steps"] + total["plain_steps"]
    return CohortPoint(
        at=int(row["bucket"]) * bucket_s,
        cohort=row["cohort"],
        emitted_tokens=total["emitted_tokens"],
        spec_steps=total["spec_steps"],
        plain_steps=total["plain_steps"],
        accepted_tokens=total["accepted_tokens"],
        draft_tokens=total["draft_tokens"],
        seconds=seconds,
        tokens_per_s=total["emitted_tokens"] / seconds if seconds > 0 else 0.0,
        acceptance_length=1 + total["accepted_tokens"] / total["spec_steps"] if total["spec_steps"] else None,
        mean_k=total["draft_tokens"] / steps if steps else None,
        planned_k=total["planned_k_steps"] / steps if steps else None,
        first_at=row["begin"],
        last_at=row["finish"],
    )


def decision_log(
    engine: sa.Engine,
    range: TimeRange,
    cohort: str | None = None,
    limit: int = 200,
    *,
    changes_only: bool = False,
    reasons: Sequence[str] = (),
    text: str = "",
) -> list[DecisionRow]:
    """The newest `limit` decisions of the range, newest first; changes_only leaves out those that kept K.

    reasons: only those with one of them; text: only those whose sentence has it in it, whatever the case.
    """
    query = (
        sa.select(*(getattr(DecisionEntry, name) for name in DecisionRow.__dataclass_fields__))
        .where(DecisionEntry.at >= range.start, DecisionEntry.at < range.end)
        .order_by(DecisionEntry.at.desc(), DecisionEntry.id.desc())
        .limit(limit)
    )
    if cohort is not None:
        query = query.where(DecisionEntry.cohort == cohort)
    if changes_only:
        query = query.where(DecisionEntry.old_k != DecisionEntry.new_k)
    if reasons:
        query = query.where(DecisionEntry.reason.in_(reasons))
    if text:
        query = query.where(DecisionEntry.sentence.icontains(text, autoescape=True))
    with engine.connect() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    return [DecisionRow(**{**row, "accept_at": tuple(row["accept_at"])}) for row in rows]


def latest_plan(engine: sa.Engine) -> PlanRow | None:
    """The plan of the highest version; None before the first."""
    query = sa.select(PlanEntry.__table__).order_by(PlanEntry.version.desc(), PlanEntry.epoch.desc()).limit(1)
    with engine.connect() as connection:
        row = connection.execute(query).mappings().first()
    if row is None:
        return None
    return PlanRow(**{**row, "k": {cohort: tuple(by_load) for cohort, by_load in row["k"].items()}})


def last_plan_version(engine: sa.Engine) -> int:
    """Highest plan version on record, 0 without one: the next controller goes on from here."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.max(PlanEntry.version))) or 0


def last_plan_epoch(engine: sa.Engine) -> int:
    """The latest start of a controller that issued a plan, unix nanoseconds; 0 without one."""
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.max(PlanEntry.epoch))) or 0


def policy_log(engine: sa.Engine, limit: int = 50) -> list[PolicyRow]:
    """Policies as they were applied, newest first."""
    columns = [getattr(PolicyRevision, name) for name in PolicyRow.__dataclass_fields__]
    query = sa.select(*columns).order_by(PolicyRevision.applied_at.desc(), PolicyRevision.id.desc()).limit(limit)
    with engine.connect() as connection:
        return [PolicyRow(**row) for row in connection.execute(query).mappings()]


def time_bounds(engine: sa.Engine) -> TimeRange | None:
    """From the first window's start to the moment after the last window or request ended; None without a window.

    Where windows were pruned, from the start of the first hour that they left in the bill.
    """
    with engine.connect() as connection:
        start, end = connection.execute(sa.select(sa.func.min(Window.started_at), sa.func.max(Window.ended_at))).one()
        hours = sa.select(sa.func.min(MachineHour.hour), sa.func.max(MachineHour.hour))
        first_hour, last_hour = connection.execute(hours).one()
        finished = connection.scalar(sa.select(sa.func.max(Request.finished_at)))
    if first_hour is None:
        return None
    if start is None or start >= (first_hour + 1) * HOUR_S:
        start = first_hour * HOUR_S
    ends = [at for at in (end, finished) if at is not None]
    return TimeRange(start, max([*ends, *(() if ends else ((last_hour + 1) * HOUR_S,))]) + 1e-3)


def database_state(url: str | URL, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> str:
    """In a word: "ok", "missing" (no such file), "empty" (never migrated), "older" or "newer" than this code, or
    "unreachable: <why>". Creates nothing.
    """
    try:
        path = sqlite_path(url)
        if path is not None and not path.exists():
            return "missing"
        engine = open_database(url, busy_timeout_ms=busy_timeout_ms)
        try:
            with engine.connect() as connection:
                revision = revision_of(connection)
        finally:
            engine.dispose()
    except DBAPIError as e:
        return f"unreachable: {one_line(e)}"
    except StoreError as e:
        return f"unreachable: {e}"
    if revision is None:
        return "empty"
    if not is_known(revision):
        return "newer"
    return "ok" if revision == head() else "older"


STATE_ADVICE = {
    "missing": "there is no database at {url}: run `kadence db upgrade`, or name another with --database-url",
    "empty": "the database at {url} has no ledger yet: run `kadence db upgrade`",
    "older": "the database at {url} is at an older revision than this Kadence needs: run `kadence db upgrade`",
    "newer": "the database at {url} is at a newer revision than this Kadence knows: upgrade Kadence",
}


def open_ledger(url: str | URL) -> sa.Engine:
    """An engine on a ledger that this code can read. Raises StoreError, one line with the way out, otherwise."""
    state = database_state(url)
    if state == "ok":
        return open_database(url)
    shown = make_url(url).render_as_string(hide_password=True) if state in STATE_ADVICE else ""
    raise StoreError(STATE_ADVICE[state].format(url=shown) if shown else f"the database is {state}")
