"""What the first pages read at once: the report, the series, the decisions and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo

from controlplane.alerts import Alert
from controlplane.store import queries
from controlplane.store.alerts import alert_log
from controlplane.store.queries import CohortPoint, CostReport, DecisionRow, PlanRow, TimeRange
from dashboard.charts import busiest
from dashboard.ledger import Ledger

DECISION_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading. at: unix seconds of it. bounds: of all there is. decisions: the newest, holds included; changes: the
    newest that changed K. alerts: the active ones, newest first.
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
    alerts: Sequence[Alert] = ()


@dataclass(frozen=True, slots=True)
class View:
    """One reading and how to look at it.

    since: the range as `kadence cost report --since` takes it. cohort: the one chosen, None = all. colours: cohorts
    that have a colour.
    """

    snapshot: Snapshot
    since: str
    cohort: str | None
    zone: tzinfo
    colours: Sequence[str]

    @property
    def shown(self) -> Sequence[str]:
        """Cohorts that charts draw."""
        return [self.cohort] if self.cohort is not None else self.colours


def load_view(ledger: Ledger) -> View:
    bucket_s, series = ledger.bucket_s, ledger.series()
    shot = Snapshot(
        at=ledger.now,
        range=ledger.range,
        bounds=ledger.bounds,
        report=ledger.report("cohort", where=ledger.where_model),
        series=series,
        bucket_s=bucket_s,
        decisions=queries.decision_log(ledger.engine, ledger.range, limit=DECISION_LIMIT),
        changes=queries.decision_log(ledger.engine, ledger.range, limit=DECISION_LIMIT, changes_only=True),
        plan=queries.latest_plan(ledger.engine),
        alerts=alert_log(ledger.engine, "active"),
    )
    colours = busiest(series)
    if ledger.cohort is not None and ledger.cohort not in colours:
        colours = [ledger.cohort]
    return View(shot, ledger.since, ledger.cohort, ledger.zone, colours)
