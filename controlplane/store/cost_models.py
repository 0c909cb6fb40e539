"""The tables of the rolled-up bill, and which windows were let go. Units as in models.py.

They are kept by the transaction that stores a window (rollup.py), so that reports are right after the windows are
pruned. No row holds money: prices are applied when a report is read.
"""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.models import Base


class _Usage:
    """What a key of a rollup used. `direction`: input (prefill), output (verification and drafting) or idle.

    cohort, tenant: '' where there is none; idle has neither. uj, wasted_uj: null where no window was measured, else the
    sum of those that were. tokens: prompt tokens (input) or completion tokens (output); measured_tokens: of them in
    windows with energy. steps to spec_steps: of output. planned_k_steps: sum over steps of the plan's K. spec_steps: of
    the steps, those with a draft; null where windows of before revision 0009, no longer all kept, did not tell.
    """

    sku: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    cohort: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    direction: Mapped[str] = mapped_column(primary_key=True)
    energy_source: Mapped[str] = mapped_column(primary_key=True)
    ns: Mapped[int]
    wasted_ns: Mapped[int]
    uj: Mapped[int | None]
    wasted_uj: Mapped[int | None]
    tokens: Mapped[int]
    measured_tokens: Mapped[int]
    steps: Mapped[int]
    planned_k_steps: Mapped[int]
    draft_tokens: Mapped[int]
    accepted_tokens: Mapped[int]
    requests: Mapped[int]
    spec_steps: Mapped[int | None]


class CostHour(_Usage, Base):
    """Usage of one hour (since the unix epoch, UTC). A window belongs whole to the hour in which it began."""

    __tablename__ = "cost_hour"
    __table_args__ = ({"sqlite_with_rowid": False},)

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=-1)


class CostDay(_Usage, Base):
    """Usage of one day (since the unix epoch, UTC): the sums of its 24 hours."""

    __tablename__ = "cost_day"
    __table_args__ = ({"sqlite_with_rowid": False},)

    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=-1)


class CostMonth(_Usage, Base):
    """Usage of one calendar month (months since January 1970, UTC): the sums of its days."""

    __tablename__ = "cost_month"
    __table_args__ = ({"sqlite_with_rowid": False},)

    month: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, sort_order=-1)


class MachineHour(Base):
    """All machine time of one sku in an hour: what the hour's bill is computed from, once. windows: how many it is."""

    __tablename__ = "machine_hour"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sku: Mapped[str] = mapped_column(primary_key=True)
    ns: Mapped[int]
    windows: Mapped[int]


class PrunedWindow(Base):
    """Sequence numbers first to last of one worker's start: windows that were counted and then deleted.

    One that arrives again is a repetition; one that is not in any of these is late, and counted.
    """

    __tablename__ = "pruned_window"

    worker: Mapped[str] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    first: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last: Mapped[int]
