"""The tables of savings experiments. Units as in models.py."""

from __future__ import annotations

from typing import Any

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.store.models import Base, RowId


class ExperimentEntry(Base):
    """An experiment as it was ordered (experiment.Run): its schedule follows from seed, spec and started_at alone.

    holdout: a share. window_s, burn_in_s: seconds. pairs: complete ones after which it ends. state: running, finished
    or stopped, with the reason in `sentence`.
    """

    __tablename__ = "experiment"

    experiment: Mapped[str] = mapped_column(primary_key=True)
    unit: Mapped[str]
    holdout: Mapped[float]
    window_s: Mapped[float]
    burn_in_s: Mapped[float]
    pairs: Mapped[int]
    seed: Mapped[int]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    started_by: Mapped[str]
    why: Mapped[str]
    state: Mapped[str]
    sentence: Mapped[str]


class ExperimentWindow(Base):
    """One arm of one pair (experiment.Window), and what the ledger has of its measured part (savings.Sums).

    The sums are made again from windows and requests as those come in, and keep what they had once raw rows are pruned.
    windows: worker windows in them; requests: those that arrived in the measured part. machine_ns: sku -> nanoseconds
    billed. energy_sources: those of energy_uj. lengths, ttft, tpot: histograms, {"counts", "sum_s"} the last two.
    filled_at: when the sums were made last, null before.
    """

    __tablename__ = "experiment_window"
    __table_args__ = (UniqueConstraint("experiment", "pair", "arm"),)

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    experiment: Mapped[str]
    pair: Mapped[int]
    arm: Mapped[str]
    started_at: Mapped[float]
    burn_in_end: Mapped[float]
    ended_at: Mapped[float]
    policy_revision: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    windows: Mapped[int]
    seconds_ns: Mapped[int]
    busy_ns: Mapped[int]
    machine_ns: Mapped[dict[str, Any]]
    tokens: Mapped[int]
    energy_uj: Mapped[int | None]
    measured_tokens: Mapped[int]
    energy_sources: Mapped[list[Any]]
    early_busy_ns: Mapped[int]
    early_tokens: Mapped[int]
    draft_tokens: Mapped[int]
    requests: Mapped[int]
    failed: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    lengths: Mapped[list[Any]]
    ttft: Mapped[dict[str, Any]]
    tpot: Mapped[dict[str, Any]]
    filled_at: Mapped[float | None]
