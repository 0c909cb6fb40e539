"""Tables of the Speculation page: what was drafted and kept, what was wasted, and break-even. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from controlplane.decision.sentence import load_label
from controlplane.store.queries import CostReport, CostRow, PlanRow
from controlplane.telemetry import LOAD_BUCKETS
from dashboard import format as fmt
from dashboard.break_even_rows import EvenRow

COUNT_COLUMNS = (
    "Cohort",
    "Planned K",
    "Mean K",
    "Acceptance length",
    "Accepted",
    "Draft tokens",
    "Accepted tokens",
    "Emitted tokens",
    "Steps",
)


def count_row(row: CostRow) -> tuple[Any, ...]:
    """One line of COUNT_COLUMNS. Acceptance length: of steps with a draft. Accepted: over drafted, in [0, 1]."""
    steps = row.steps or None
    return (
        row.key,
        row.planned_k_steps / steps if steps else None,
        row.draft_tokens / steps if steps else None,
        row.acceptance_length,
        row.accepted_tokens / row.draft_tokens if row.draft_tokens else None,
        row.draft_tokens,
        row.accepted_tokens,
        row.emitted_tokens,
        row.steps,
    )


def busiest_cohorts(report: CostReport) -> list[str]:
    """Names, most emitted tokens first."""
    return [row.key for row in sorted(report.rows, key=lambda row: (-row.emitted_tokens, row.key))]


def plan_table(plan: PlanRow, cohorts: Sequence[str]) -> pd.DataFrame:
    """K by cohort (rows, in the order given) and load (columns), then the fallback."""
    columns = ["Cohort", *map(load_label, range(len(LOAD_BUCKETS))), "Fallback"]
    rows = [(name, *plan.k[name], plan.fallback.get(name, 0)) for name in cohorts if name in plan.k]
    return pd.DataFrame(rows, columns=columns)


WASTE_COLUMNS = ("Cohort", "Rejected tokens", "Of drafted", "Machine time", "Of machine time", "Cost", "Energy")


def waste_table(report: CostReport, cohorts: Sequence[str], currency: str | None) -> pd.DataFrame:
    """Draft tokens that were not kept and what went into them: the ledger's wasted columns, then the total.

    The rows of `cohorts`, in their order; the total is of all that the report's filter takes.
    """
    by_key = {row.key: row for row in report.rows}
    lines = [_waste(by_key[name], name, currency) for name in cohorts if name in by_key]
    lines.append(_waste(report.total, "total", currency))
    return pd.DataFrame(lines, columns=list(WASTE_COLUMNS))


def _waste(row: CostRow, name: str, currency: str | None) -> tuple[str, ...]:
    rejected = row.draft_tokens - row.accepted_tokens
    return (
        name,
        fmt.count(rejected),
        fmt.share(rejected, row.draft_tokens),
        f"{fmt.number(row.wasted_ns / 1e9)} s",
        fmt.share(row.wasted_ns, row.machine_ns),
        fmt.cost(row.wasted_cost_nano, currency),
        fmt.energy(row.wasted_uj),
    )


EVEN_COLUMNS = (
    "Cohort",
    "Running",
    "Pays",
    "Acceptance now",
    "Acceptance needed",
    "Tokens a step",
    "Needed",
    "At K",
    "K used",
    "Best K",
    "Left on the table",
    "Of its time",
)

VERDICTS = {True: "yes", False: "no", None: "within the interval"}


def even_table(rows: Sequence[EvenRow], currency: str | None, *, is_priced: bool) -> pd.DataFrame:
    """Break-even by cohort and load; money an hour where the machine is priced, else tokens per second."""
    return pd.DataFrame([_even(row, currency, is_priced) for row in rows], columns=list(EVEN_COLUMNS))


def _even(row: EvenRow, currency: str | None, is_priced: bool) -> tuple[str, ...]:
    if row.rung is None:
        needed = now = rung = fmt.NOTHING
    else:
        needed = needed_text(row)
        now, rung = f"{100 * row.accept_now:.0f} %", str(row.rung)
    return (
        row.cohort,
        row.load,
        "no rung over 0" if row.rung is None else VERDICTS[row.pays],
        now,
        needed,
        fmt.NOTHING if row.rung is None else f"{row.expected:.2f} ({row.low:.2f} to {row.high:.2f})",
        fmt.NOTHING if row.rung is None else f"{row.needed:.2f}",
        rung,
        f"{row.k_used:.1f}",
        str(row.best),
        left_text(row, currency, is_priced=is_priced),
        f"{100 * row.left_share:.1f} %",
    )


def needed_text(row: EvenRow) -> str:
    """The acceptance from which speculation pays."""
    return "over 100 %" if row.accept_needed is None else f"{100 * row.accept_needed:.0f} %"


def left_text(row: EvenRow, currency: str | None, *, is_priced: bool) -> str:
    """What a row leaves: an amount an hour, or tokens per second; said to be within the dead band where it is."""
    if row.is_within:
        return "within the dead band" if row.left_share > 0 else "nothing"
    return left_amount(row.left_money if is_priced else None, row.left_tokens_per_s, currency)


def left_amount(money: float | None, tokens_per_s: float, currency: str | None) -> str:
    """`$1.20 an hour`, or `35.0 tokens/s` where nothing is priced."""
    if money is None:
        return f"{fmt.number(tokens_per_s, 3)} tokens/s"
    return f"{fmt.money(money, currency)} an hour"
