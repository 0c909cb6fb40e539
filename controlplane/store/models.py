"""The ledger's tables. Integers where sums must be exact, floats only where a time or a gauge was measured.

Units, for every column here and in every migration:
- `*_at`: unix seconds, UTC, double precision: what the windows carry, so that a stored window reads back equal.
- `*_ns`: integer nanoseconds of one worker's machine time. `*_uj`: integer microjoules; null = not measured, never 0.
- `*_nano`: integer nano-units (1e-9) of a currency. `hour`: hours since the unix epoch, UTC.

A window's machine time and energy are split over its cohorts when it is written (finops/attribution.py), prices are
applied when a report is read: history can be priced again under another sheet without touching a row.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Double, ForeignKeyConstraint, Index, Integer, MetaData, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

RowId = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only for a primary key of type INTEGER."""


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own attribute
        int: BigInteger,
        float: Double,
        str: Text,
        dict[str, Any]: JSON,
        list[Any]: JSON,
    }


class Window(Base):
    """One worker's interval; the key is telemetry.WindowId, so that storing it twice changes nothing.

    seconds_ns = sum of the cohorts' attributed_ns + idle_ns, and energy_uj = sum of their attributed_uj + idle_uj,
    exactly. idle_energy_uj: what the device would have drawn with nothing running, as reported. latency: list of
    [sequences, positions, steps, seconds, context, draft_seconds]. profile: list of [sequences, k, context, seconds,
    draft_seconds]. tick_at: the tick that took the window in (Tick.at). A row of before revision 0002 has none of
    these, and the first four of latency. busy_s: as reported, to replay it exactly.
    """

    __tablename__ = "window"
    __table_args__ = (Index(None, "started_at"), Index(None, "ended_at"))

    worker: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    model: Mapped[str]
    drafter: Mapped[str]
    device: Mapped[str]
    hour: Mapped[int]
    started_at: Mapped[float]
    ended_at: Mapped[float]
    seconds_ns: Mapped[int]
    busy_ns: Mapped[int]
    idle_ns: Mapped[int]
    energy_uj: Mapped[int | None]
    idle_uj: Mapped[int | None]
    idle_energy_uj: Mapped[int | None]
    energy_source: Mapped[str]
    plan_version: Mapped[int]
    plan_expired: Mapped[bool]
    plan_age_s: Mapped[float]
    running: Mapped[int]
    waiting: Mapped[int]
    kv_used: Mapped[int]
    kv_total: Mapped[int]
    latency: Mapped[list[Any]]
    profile: Mapped[list[Any] | None]
    tick_at: Mapped[float | None]
    busy_s: Mapped[float | None]


class WindowCohort(Base):
    """What a window saw of one cohort, and the machine time and energy that were attributed to it.

    wasted_*: the part of attributed_* spent on draft tokens that were not kept; input_*: the part that prefill took,
    and its prompt tokens. planned_k_steps: sum over steps of the plan's K, so that planned_k_steps / (spec_steps +
    plain_steps) is the mean planned K. cells: list of [load_bucket, k, [[drafted, accepted, ended, steps], ...],
    step_seconds, [overlap, ...], [overlap_steps, ...]]; the last two are missing in a row of before revision 0002. A
    cell of token trees has two more: [parent, ...] and [[depth, rank, tried, kept], ...].
    shadow: likewise. ttft, tpot: {"counts", "sum_s"}. tenants: list of telemetry.TenantUse. uses: list of [tenant,
    direction, *amounts], what the window added to the rollups (rollup.Amounts). Both null before revision 0004.
    """

    __tablename__ = "window_cohort"
    __table_args__ = (
        ForeignKeyConstraint(
            ["worker", "epoch", "sequence"], ["window.worker", "window.epoch", "window.sequence"], ondelete="CASCADE"
        ),
    )

    worker: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    cohort: Mapped[str] = mapped_column(primary_key=True)
    attributed_ns: Mapped[int]
    wasted_ns: Mapped[int]
    attributed_uj: Mapped[int | None]
    wasted_uj: Mapped[int | None]
    input_ns: Mapped[int]
    input_uj: Mapped[int | None]
    input_tokens: Mapped[int]
    prefill_positions: Mapped[int]
    verify_positions: Mapped[int]
    draft_positions: Mapped[int]
    first_tokens: Mapped[int]
    emitted_tokens: Mapped[int]
    spec_steps: Mapped[int]
    plain_steps: Mapped[int]
    draft_tokens: Mapped[int]
    accepted_tokens: Mapped[int]
    planned_k_steps: Mapped[int]
    step_seconds: Mapped[float]
    requests_started: Mapped[int]
    requests_finished: Mapped[int]
    requests_failed: Mapped[int]
    cells: Mapped[list[Any]]
    ttft: Mapped[dict[str, Any]]
    tpot: Mapped[dict[str, Any]]
    shadow: Mapped[list[Any] | None]
    tenants: Mapped[list[Any] | None]
    uses: Mapped[list[Any] | None]


class Request(Base):
    """One finished, failed or cancelled request (telemetry.RequestRecord)."""

    __tablename__ = "request"
    __table_args__ = (Index(None, "finished_at"),)

    request_id: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[str]
    model: Mapped[str]
    drafter: Mapped[str]
    cohort: Mapped[str]
    tenant: Mapped[str | None]
    route: Mapped[str]
    stream: Mapped[bool]
    hour: Mapped[int]
    started_at: Mapped[float]
    finished_at: Mapped[float]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    spec_steps: Mapped[int]
    plain_steps: Mapped[int]
    draft_tokens: Mapped[int]
    accepted_tokens: Mapped[int]
    prefill_positions: Mapped[int]
    verify_positions: Mapped[int]
    draft_positions: Mapped[int]
    max_k: Mapped[int]
    ttft_s: Mapped[float | None]
    tpot_s: Mapped[float | None]
    finish_reason: Mapped[str]
    plan_version: Mapped[int]


class DecisionEntry(Base):
    """One decision of one tick for one cohort and load bucket; a hold is a decision too.

    While a policy is tried on some replicas there are two: one of each policy_revision.
    """

    __tablename__ = "decision"
    __table_args__ = (UniqueConstraint("at", "cohort", "load_bucket", "plan_version", "policy_revision"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    at: Mapped[float]
    cohort: Mapped[str]
    load_bucket: Mapped[int]
    old_k: Mapped[int]
    new_k: Mapped[int]
    reason: Mapped[str]
    sentence: Mapped[str]
    samples: Mapped[int]
    accept_at: Mapped[list[Any]]
    plan_version: Mapped[int]
    policy_revision: Mapped[str]


class PlanEntry(Base):
    """One version of the plan. issued_at is of its first issue, expires_at of its latest renewal."""

    __tablename__ = "plan"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    issued_at: Mapped[float]
    expires_at: Mapped[float]
    k: Mapped[dict[str, Any]]
    fallback: Mapped[dict[str, Any]]
    policy_revision: Mapped[str]
    kill_switch: Mapped[str]


class PolicyRevision(Base):
    """A policy as it was applied: the text, by whom and why. Applying the same text again is one more row."""

    __tablename__ = "policy_revision"
    __table_args__ = (UniqueConstraint("applied_at", "revision"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    revision: Mapped[str]
    applied_at: Mapped[float]
    applied_by: Mapped[str]
    why: Mapped[str]
    text: Mapped[str]


class PolicyRollout(Base):
    """A policy tried on a part of the system before it is put in force, by whom and why, and what became of it.

    unit: cohorts or replicas; members: the cohorts or workers of it. min_windows, max_s: as in rollout.StageOrder.
    stage: staged until it ended, then promoted, rolled_back, timed_out or aborted, with the reason in `sentence`.
    revision, text: of the candidate; incumbent: the revision in force meanwhile.
    """

    __tablename__ = "policy_rollout"
    __table_args__ = (UniqueConstraint("started_at", "revision"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    revision: Mapped[str]
    incumbent: Mapped[str]
    unit: Mapped[str]
    share: Mapped[float]
    min_windows: Mapped[int]
    max_s: Mapped[float]
    members: Mapped[list[Any]]
    stage: Mapped[str]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    started_by: Mapped[str]
    why: Mapped[str]
    sentence: Mapped[str]
    text: Mapped[str]


class Tick(Base):
    """One time that a controller published: a tick, or an order of a person. What replay goes by.

    at: the `now` that the controller was given. plan_version, policy_revision and kill_switch are of the plan that was
    published. The windows that went into it have this `at` as their tick_at.
    """

    __tablename__ = "tick"

    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(primary_key=True)
    plan_version: Mapped[int]
    policy_revision: Mapped[str]
    kill_switch: Mapped[str]


class ControlEvent(Base):
    """What else a controller was told, so that a replay can tell it again. `at` is between two of its ticks, or one.

    kind and value: rates, {"per_second", "per_joule"}, in force for the ticks after `at`; experiment, {"arm",
    "sentence"}, at the very tick that began a window of it; resume, {"k": cohort -> K by
    load, "windows": [[worker, epoch, sequence], ...]}, at the very tick.
    """

    __tablename__ = "control_event"
    __table_args__ = (UniqueConstraint("epoch", "at", "kind"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    epoch: Mapped[int]
    at: Mapped[float]
    kind: Mapped[str]
    value: Mapped[dict[str, Any]]


class AlertEntry(Base):
    """One alert from when it was first seen until an operator cleared it (controlplane.alerts.Alert)."""

    __tablename__ = "alert"
    __table_args__ = (UniqueConstraint("kind", "subject", "first_seen"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    kind: Mapped[str]
    subject: Mapped[str]
    severity: Mapped[str]
    state: Mapped[str]
    first_seen: Mapped[float]
    last_seen: Mapped[float]
    count: Mapped[int]
    detail: Mapped[str]
    cleared_at: Mapped[float | None]
    cleared_by: Mapped[str]
    why: Mapped[str]


class CanaryResult(Base):
    """One finished request, computed again by the target alone (controlplane.alerts.CanaryCheck)."""

    __tablename__ = "canary_result"
    __table_args__ = (Index(None, "at"),)

    request_id: Mapped[str] = mapped_column(primary_key=True)
    worker: Mapped[str]
    cohort: Mapped[str]
    drafter: Mapped[str]
    at: Mapped[float]
    mode: Mapped[str]
    verdict: Mapped[str]
    positions: Mapped[int]
    near_ties: Mapped[int]
    mismatches: Mapped[int]
    worst_gap: Mapped[float | None]
    tolerance: Mapped[float]
    first_mismatch: Mapped[int | None]
    rows: Mapped[int]
    seconds: Mapped[float]


class PriceEntry(Base):
    """One line of the price sheet that the running system uses. effective_* as unix seconds, end exclusive."""

    __tablename__ = "price"
    __table_args__ = (UniqueConstraint("sku", "basis", "effective_from"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    sku: Mapped[str]
    basis: Mapped[str]
    currency: Mapped[str]
    per_hour_nano: Mapped[int]
    region: Mapped[str]
    source: Mapped[str]
    as_of: Mapped[str]
    effective_from: Mapped[float]
    effective_to: Mapped[float | None]
