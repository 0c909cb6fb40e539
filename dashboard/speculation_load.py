"""What the Speculation page reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.store.queries import (
    CohortPoint,
    CostReport,
    DecisionRow,
    PlanRow,
    TimeRange,
    decision_log,
    latest_plan,
)
from dashboard.break_even_rows import EvenRow, Past, even_rows, pasts
from dashboard.charts import MAX_SERIES
from dashboard.ledger import Ledger
from dashboard.speculation_evidence import Evidence, price_per_hour, read_evidence
from dashboard.speculation_tables import busiest_cohorts

DECISIONS = 500
PAST_DECISIONS, PAST_S = 2_000, 30 * 86_400.0
"""Decisions before the evidence in which a cohort's past acceptance is looked for, and how far back."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """report: of all cohorts that the model filter takes. changes: the newest decisions that changed K. coloured:
    cohorts with a colour, by name; shown: those that charts draw. ranked: all, most emitted tokens first, then those
    that only the plan has. even: None without evidence or step times. price: an hour of the machine; unpriced: why
    there is none. past: by cohort.
    """

    report: CostReport
    series: Sequence[CohortPoint]
    bucket_s: float
    changes: Sequence[DecisionRow]
    plan: PlanRow | None
    coloured: Sequence[str]
    shown: Sequence[str]
    ranked: Sequence[str]
    evidence: Evidence | None
    even: Sequence[EvenRow] | None
    price: float | None
    unpriced: str | None
    past: Mapping[str, Past]


def load_speculation(ledger: Ledger) -> Speculation:
    report = ledger.report("cohort", where=ledger.where_model, idle="none")
    ranked = busiest_cohorts(report)
    coloured = sorted(ranked[:MAX_SERIES])
    if ledger.cohort is not None and ledger.cohort not in coloured:
        coloured = [ledger.cohort]
    shown = [ledger.cohort] if ledger.cohort is not None else coloured
    plan = latest_plan(ledger.engine)
    quiet = sorted(set(plan.k) - set(ranked)) if plan is not None else []
    evidence = read_evidence(ledger)
    price, unpriced = (None, None) if evidence is None else price_per_hour(ledger, evidence.devices)
    even: Sequence[EvenRow] | None = None
    past: Mapping[str, Past] = {}
    if evidence is not None:
        even = even_rows(evidence, price, ledger.cohort)
        past = read_past(ledger, evidence)
    return Speculation(
        report=report,
        series=ledger.series(coloured),
        bucket_s=ledger.bucket_s,
        changes=_changes(ledger, shown),
        plan=plan,
        coloured=coloured,
        shown=shown,
        ranked=[*ranked, *quiet] if ledger.cohort is None else [ledger.cohort],
        evidence=evidence,
        even=even,
        price=price,
        unpriced=unpriced,
        past=past,
    )


def _changes(ledger: Ledger, shown: Sequence[str]) -> list[DecisionRow]:
    only = shown[0] if len(shown) == 1 else None
    found = decision_log(ledger.engine, ledger.range, only, limit=DECISIONS, changes_only=True)
    return [row for row in found if row.cohort in shown]


def read_past(ledger: Ledger, evidence: Evidence) -> Mapping[str, Past]:
    """Acceptance by cohort as decisions before the evidence have it."""
    before = TimeRange(evidence.first_at - PAST_S, evidence.first_at)
    return ledger.cached(("past", before), lambda: pasts(decision_log(ledger.engine, before, limit=PAST_DECISIONS)))
