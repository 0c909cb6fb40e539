"""Figures and table rows from what was read: sums over points, never averages of averages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import tzinfo

import pandas as pd

from controlplane.store.queries import CohortPoint, CostReport, CostRow, DecisionRow
from dashboard import format as fmt
from dashboard.charts import load_label


def chosen_row(report: CostReport, cohort: str | None) -> CostRow:
    """The report's row of `cohort`, an empty one where it has none; the total for None."""
    if cohort is None:
        return report.total
    return next((row for row in report.rows if row.key == cohort), CostRow(cohort))


def tokens_per_second(points: Sequence[CohortPoint]) -> float | None:
    """Emitted tokens over the seconds in which any of the points' cohorts had work; None without work."""
    spans: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for p in points:
        spans[p.at].append((p.first_at, p.last_at))
    seconds = sum(_covered(span) for span in spans.values())
    return sum(p.emitted_tokens for p in points) / seconds if seconds > 0 else None


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0.0)
        end = max(end, last)
    return total


def acceptance_length(points: Sequence[CohortPoint]) -> float | None:
    """1 + accepted / spec step over the points that know their spec steps; None where nothing was drafted."""
    known = [p for p in points if p.spec_steps is not None]
    steps = sum(p.spec_steps or 0 for p in known)
    return 1 + sum(p.accepted_tokens for p in known) / steps if steps else None


def untold(points: Sequence[CohortPoint]) -> str:
    """What to say where hours of an older version do not tell steps with a draft from others; "" where all do."""
    lacking = [p for p in points if p.spec_steps is None]
    if not lacking:
        return ""
    if len(lacking) == len(points):
        return "not known: hours recorded by an older version do not tell steps with a draft from others"
    return "of the hours that tell steps with a draft from others; those of an older version do not"


def why(decision: DecisionRow) -> str:
    """The sentence without its head, "<cohort> <change> at load <n>: ", which other columns tell."""
    head = decision.sentence[len(decision.cohort) :] if decision.sentence.startswith(f"{decision.cohort} ") else ""
    return head.partition(": ")[2] or decision.sentence


def decision_table(decisions: Sequence[DecisionRow], zone: tzinfo) -> pd.DataFrame:
    """The decision log as a reader sees it, in the order given."""
    return pd.DataFrame(
        [
            (
                fmt.moment(d.at, zone),
                d.cohort,
                f"{d.old_k} → {d.new_k}",
                why(d),
                str(d.reason),
                load_label(d.load_bucket),
                d.samples,
                d.plan_version,
            )
            for d in decisions
        ],
        columns=["Time", "Cohort", "K", "Why", "Reason", "Running", "Samples", "Plan"],
    )
