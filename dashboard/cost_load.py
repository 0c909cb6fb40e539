"""What the Cost page reads: one report under every price basis, and where budgets stand. No Streamlit here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.store.queries import CostReport
from dashboard.cost_budgets import Outlook
from dashboard.ledger import Ledger
from dashboard.overview_load import load_budgets, reports

BY = ("cohort", "tenant", "model", "sku", "direction", "hour", "day")
"""As `kadence cost report --by` has them."""
DEFAULT_BY = "cohort"
OF_TIME = ("hour", "day")
HOURS_MOST = 31 * 24
"""Rows by hour that a page shows; a longer range is shown by day."""


@dataclass(frozen=True, slots=True)
class Bill:
    """One reading. by: what the rows are of; note: why it is not what was asked, "" where it is. reports: by basis.
    allocated: by the same, with idle spread (by machine time, unless the page has a rule): what the quadrant is of.
    cohorts: how many an export of every cell may have.
    """

    by: str
    note: str
    reports: Mapping[str, CostReport]
    main: str
    allocated: CostReport
    budgets: tuple[Outlook, ...]
    has_policy: bool
    cohorts: int

    @property
    def report(self) -> CostReport:
        return self.reports[self.main]


def load_cost(ledger: Ledger, asked_by: str) -> Bill:
    by, note = dimension_shown(asked_by, ledger.range.end - ledger.range.start)
    main = ledger.main_basis
    found = reports(ledger, by)
    allocated = found[main]
    if ledger.idle == "none" and by in QUADRANT_BY:
        allocated = reports(ledger, by, idle="weighted")[main]
    policy, budgets = load_budgets(ledger)
    cohorts = len(ledger.choices.cohorts) if ledger.cohort is None else 1
    return Bill(by, note, found, main, allocated, budgets, policy is not None, cohorts)


QUADRANT_BY = ("cohort", "tenant", "model")
"""Rows among which shares of cost and of tokens say something."""


def dimension_shown(asked: str, span_s: float) -> tuple[str, str]:
    """The dimension, and why it is another one than was asked for ("" where it is not)."""
    by = asked if asked in BY else DEFAULT_BY
    if by == "hour" and span_s > HOURS_MOST * 3600:
        return (
            "day",
            f"By day: the range has more than {HOURS_MOST:,} hours, which `kadence cost report --by hour` prints.",
        )
    return by, ""
