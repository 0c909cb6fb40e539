"""What the energy page reads at once: the report, power and batches over time, and what carbon is counted with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.cost_cli.report import carbon_of
from controlplane.finops.carbon import Carbon
from controlplane.store.cost_bill import merged
from controlplane.store.cost_rows import CostReport, CostRow
from controlplane.store.energy import BatchPoint, PowerPoint, batch_series, power_series, rolled_up_power
from controlplane.store.time_range import TimeRange
from dashboard.charts import bucket_seconds
from dashboard.ledger import Ledger

RAW_S = 3 * 3600.0
"""So much of a range is read from single windows; what a longer one shows comes from the rollups."""
HOURS_MOST_S = 7 * 86_400.0
"""A longer range has its power by day."""


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """report: by cohort. row: of what is shown. power, of buckets of power_s seconds: by worker, or where is_rolled_up
    by sku from the rollups. batch: of the newest part of the range, which is batch_range, in buckets of batch_s.
    carbon: None where no zone is configured or, with why, where the range has no one figure.
    """

    report: CostReport
    row: CostRow
    power: Sequence[PowerPoint]
    power_s: float
    is_rolled_up: bool
    batch: Sequence[BatchPoint]
    batch_s: float
    batch_range: TimeRange
    carbon: Carbon | None
    carbon_problem: str | None


def read_energy(ledger: Ledger) -> EnergyReading:
    """All of it under the reading's filters; power and batches are of whole machines, whatever the filter."""
    engine, whole = ledger.engine, ledger.range
    report = ledger.report("cohort")
    span = whole.end - whole.start
    newest = min(whole.end, ledger.bounds.end)
    recent = TimeRange(max(whole.start, newest - RAW_S), whole.end)
    batch_s = bucket_seconds(newest - recent.start)
    is_rolled_up = span > RAW_S
    by_day = span > HOURS_MOST_S
    power_s = (86_400.0 if by_day else 3600.0) if is_rolled_up else float(bucket_seconds(span))
    carbon, problem = carbon_of(ledger.settings, whole)

    def power() -> list[PowerPoint]:
        if is_rolled_up:
            return rolled_up_power(engine, whole, by_day=by_day)
        return power_series(engine, whole, power_s)

    return EnergyReading(
        report=report,
        row=shown_row(report),
        power=ledger.cached(("power", whole, power_s, is_rolled_up), power),
        power_s=power_s,
        is_rolled_up=is_rolled_up,
        batch=ledger.cached(("batch", recent, batch_s), lambda: batch_series(engine, recent, batch_s)),
        batch_s=batch_s,
        batch_range=recent,
        carbon=carbon,
        carbon_problem=problem,
    )


def shown_row(report: CostReport) -> CostRow:
    """The total, or where a filter leaves a rest out, the sum of the rows that it took."""
    return report.total if report.rest is None else merged("shown", report.rows)
