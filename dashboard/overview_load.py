"""What the Overview reads: the report under every price basis, its trend, the saving, the budgets. No Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.alerts import Alert
from controlplane.finops.pricing import BASES, PriceSheet
from controlplane.finops.savings_report import Report
from controlplane.store.alerts import alert_log
from controlplane.store.cost_rows import IdleRule
from controlplane.store.experiments import find_experiment
from controlplane.store.queries import (
    CohortPoint,
    CostReport,
    CostRow,
    DecisionRow,
    PlanRow,
    TimeRange,
    cost_reports,
    decision_log,
    latest_plan,
)
from dashboard.cost_budgets import Outlook, outlooks
from dashboard.ledger import Ledger
from dashboard.overview_advice import Advice, Facts, advice, off_cohorts
from dashboard.overview_retraining import retraining
from dashboard.overview_trend import Trend, floats, period_before, step_dimension, steps
from dashboard.policy_reading import policy_in_force
from dashboard.savings_reading import told
from dashboard.speculation_evidence import evidence_key

DECISION_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Headline:
    """The row that the key figures are of, under each basis, and how it goes. is_whole: of everything, idle with it."""

    rows: Mapping[str, CostRow]
    main: str
    is_whole: bool
    cost: Mapping[str, Trend]
    energy: Trend
    before: TimeRange | None

    @property
    def row(self) -> CostRow:
        return self.rows[self.main]


@dataclass(frozen=True, slots=True)
class Overview:
    """One reading. report: by cohort, of all cohorts, by the page's rule for idle. series: of the cohorts that charts
    draw; totals: of what is chosen, for sums. changes: of all cohorts, newest first, those that changed K. colours:
    cohorts that charts have a colour for; shown: those that they draw. saving: of the newest experiment, None without
    one.
    """

    headline: Headline
    report: CostReport
    series: Sequence[CohortPoint]
    totals: Sequence[CohortPoint]
    bucket_s: float
    changes: Sequence[DecisionRow]
    plan: PlanRow | None
    alerts: Sequence[Alert]
    colours: Sequence[str]
    shown: Sequence[str]
    saving: Report | None
    budgets: tuple[Outlook, ...]
    has_policy: bool
    advice: Sequence[Advice]


def load_overview(ledger: Ledger) -> Overview:
    engine = ledger.engine
    changes = decision_log(engine, ledger.range, limit=DECISION_LIMIT, changes_only=True)
    plan, alerts = latest_plan(engine), alert_log(engine, "active")
    saving = _saving(ledger)
    policy, budgets = load_budgets(ledger)
    # Advice needs idle as a row of its own, and all cohorts, whatever the page shows.
    apart = reports(ledger, "cohort", idle="none", where={})[ledger.main_basis]
    facts = Facts(
        report=apart,
        since=ledger.since,
        plan=plan,
        now=ledger.now,
        alerts=alerts,
        budgets=budgets,
        zero_k=_zero_k(ledger, plan, apart),
        is_saving_known=saving is not None,
        retraining=_retraining(ledger),
    )
    report = reports(ledger, "cohort", where=ledger.where_model)[ledger.main_basis]
    colours = ledger.busiest(report)
    return Overview(
        headline=_headline(ledger),
        report=report,
        series=ledger.series(colours),
        totals=ledger.totals(),
        bucket_s=ledger.bucket_s,
        changes=changes,
        plan=plan,
        alerts=alerts,
        colours=colours,
        shown=[ledger.cohort] if ledger.cohort is not None else colours,
        saving=saving,
        budgets=budgets,
        has_policy=policy is not None,
        advice=advice(facts),
    )


def _retraining(ledger: Ledger) -> list[str]:
    # Evidence moves slowly, and forming beliefs again from 240 windows is most of this page's work: once a minute.
    key = ("retraining", *evidence_key(ledger), ledger.basis, ledger.sheet.revision)
    return ledger.cached_minute(key, lambda: retraining(ledger))


def load_budgets(ledger: Ledger) -> tuple[Any, tuple[Outlook, ...]]:
    """The policy in force, and where its budgets stand; budgets are of everything, whatever the filters say."""

    def read() -> tuple[Any, tuple[Outlook, ...]]:
        policy = policy_in_force(ledger.engine)
        return policy, () if policy is None else outlooks(ledger.engine, policy, ledger.sheet, ledger.now)

    # A forecast is of now: kept for a minute at most.
    return ledger.cached(("budgets", ledger.sheet.revision, int(ledger.now // 60)), read)


def bases_of(sheet: PriceSheet, chosen: str | None) -> tuple[str, ...]:
    """Those that the sheet has any price for, in the order of the command; the chosen one, or the default, is among
    them.
    """
    present = {price.basis for price in sheet.prices}
    main = chosen or sheet.default_basis
    return tuple(basis for basis in BASES if basis in present or basis == main)


def reports(
    ledger: Ledger,
    by: str,
    *,
    shown: TimeRange | None = None,
    idle: IdleRule | None = None,
    where: Mapping[str, Sequence[str]] | None = None,
) -> Mapping[str, CostReport]:
    """The cost report under every basis of the sheet, with the filters of the page where not said otherwise."""
    span, rule = shown or ledger.range, idle or ledger.idle
    asked = ledger.where if where is None else where
    bases = bases_of(ledger.sheet, ledger.basis)
    key = ("reports", by, span, rule, tuple(sorted((n, tuple(v)) for n, v in asked.items())), bases)
    keep = ledger.cached_past if ledger.is_past(span) else ledger.cached
    return keep(
        (*key, ledger.sheet.revision),
        lambda: cost_reports(ledger.engine, span, by, ledger.sheet, bases, where=asked, idle=rule),
    )


def picked(report: CostReport, ledger: Ledger) -> CostRow:
    """The total, or the row of the cohort or model that is chosen: one that `kadence cost report` prints, too."""
    if ledger.cohort is None and ledger.model is None:
        return report.total
    return report.rows[0] if report.rows else CostRow(ledger.cohort or ledger.model or "")


def dimension(ledger: Ledger) -> str:
    """What `picked` is to be asked by."""
    return "model" if ledger.model is not None and ledger.cohort is None else "cohort"


def _headline(ledger: Ledger) -> Headline:
    by, main = dimension(ledger), ledger.main_basis
    is_whole = not ledger.where
    rows = {basis: picked(report, ledger) for basis, report in reports(ledger, by).items()}
    if is_whole:
        by = "direction"  # the total is the same by any dimension, and two rows are read sooner than two hundred
    before = period_before(ledger.range, ledger.bounds.start)
    earlier: dict[str, CostRow] = {}
    if before is not None:
        earlier = {basis: picked(report, ledger) for basis, report in reports(ledger, by, shown=before).items()}
    points = _points(ledger, by, is_whole=is_whole)

    def known(basis: str) -> float | None:
        row = earlier.get(basis)
        return None if row is None or row.cost_per_million_tokens is None else float(row.cost_per_million_tokens)

    cost = {basis: Trend(floats(_unit(r, is_whole) for r in points[basis]), known(basis)) for basis in rows}
    joules = floats(r.loaded_j_per_token if is_whole else r.j_per_token for r in points[main])
    energy = Trend(joules, earlier[main].j_per_token if earlier else None)
    return Headline(rows, main, is_whole, cost, energy, before)


def _points(ledger: Ledger, by: str, *, is_whole: bool) -> Mapping[str, Sequence[CostRow]]:
    """Under each basis, the row step by step: hours or days as the report has them, or parts of a short range."""
    step = step_dimension(ledger.range)
    if step is not None:
        return {basis: report.rows for basis, report in reports(ledger, step).items()}
    found = [reports(ledger, by, shown=part) for part in steps(ledger.range)]
    return {basis: [picked(each[basis], ledger) for each in found] for basis in found[0]}


def _unit(row: CostRow, is_whole: bool) -> Any:
    """Of an hour or a day the whole has its idle time in it, as the total has."""
    return row.loaded_cost_per_million_tokens if is_whole else row.cost_per_million_tokens


def _saving(ledger: Ledger) -> Report | None:
    run = find_experiment(ledger.engine, None)
    return None if run is None else told(ledger, run).report


def _zero_k(ledger: Ledger, plan: PlanRow | None, report: CostReport) -> dict[str, DecisionRow]:
    """The newest decision for no speculation of the busiest cohort that has none."""
    found = {}
    for cohort in off_cohorts(report, plan)[:1]:
        newest = decision_log(ledger.engine, TimeRange(0.0, ledger.range.end), cohort, limit=20)
        said = next((each for each in newest if each.new_k == 0), None)
        if said is not None:
            found[cohort] = said
    return found
