"""Why K is what it is: of each cohort K now, by load, and the decision that last changed it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

import pandas as pd

from controlplane.decision.guard import Reason
from controlplane.store.queries import DecisionRow, PlanRow
from dashboard import format as fmt
from dashboard.charts import load_label
from dashboard.figures import why

CONTROL_WINDOW = "0, control window"
"""The plan on record has the K that control goes on from; in a control window of an experiment no cohort drafts."""

WHY_COLUMNS = ("Cohort", "K", "Why", "Since")


def k_text(by_load: Sequence[int]) -> str:
    """`4`, or `0 to 4 by load` where load matters."""
    if not by_load:
        return fmt.NOTHING
    low, high = min(by_load), max(by_load)
    return str(low) if low == high else f"{low} to {high} by load"


def why_frame(
    plan: PlanRow | None, changes: Sequence[DecisionRow], cohorts: Sequence[str], zone: tzinfo
) -> pd.DataFrame:
    """changes: newest first. A cohort whose K nothing changed in the range says so."""
    newest: dict[str, DecisionRow] = {}
    for each in changes:
        newest.setdefault(each.cohort, each)
    planned = {} if plan is None else plan.k
    lines = []
    for cohort in cohorts:
        found = newest.get(cohort)
        k = k_text(planned.get(cohort, ()))
        if found is None:
            lines.append((cohort, k, "nothing changed it in this range", fmt.NOTHING))
        else:
            if found.reason == Reason.EXPERIMENT and found.new_k == 0:
                k = CONTROL_WINDOW
            reason = f"{found.old_k} → {found.new_k} at load {load_label(found.load_bucket)}: {why(found)}"
            lines.append((cohort, k, reason, fmt.moment(found.at, zone)))
    return pd.DataFrame(lines, columns=list(WHY_COLUMNS))
