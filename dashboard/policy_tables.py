"""The policy, its revisions and what happened under it, as tables. Text from a policy is only ever a cell."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

import pandas as pd

from controlplane.alerts import Alert
from controlplane.policy import Policy, PolicyProblem
from controlplane.policy.effective import SECTIONS, differences, policy_view, text_of
from controlplane.policy_cli.planned import Planned
from controlplane.policy_cli.records import text_diff
from controlplane.policy_forecast import CohortForecast
from controlplane.store.kill_switch import SwitchChange
from controlplane.store.policies import PolicyEntry, RolloutEntry
from controlplane.store.queries import PlanRow
from dashboard import format as fmt

FIELDS: tuple[tuple[str, str, str], ...] = (
    ("Tuner", "speculation", "tuner"),
    ("Objective", "speculation", "objective"),
    ("Ladder", "speculation", "ladder"),
    ("Floor", "speculation", "acceptance_floor"),
    ("Start", "speculation", "start"),
    ("Fallback", "speculation", "fallback"),
    ("Slots", "speculation", "slots"),
    ("TPOT p95", "slo", "tpot_p95_s"),
    ("TTFT p95", "slo", "ttft_p95_s"),
    ("Hold", "guard", "hold_s"),
    ("Samples", "guard", "min_samples"),
    ("Tolerance", "guard", "tolerance"),
    ("Probe every", "guard", "probe_every_s"),
)
"""Column, section and field of the effective policy."""


def effective_table(policy: Policy, plan: PlanRow | None, cohort: str | None = None) -> pd.DataFrame:
    """A line a cohort, in the order in which they match: all of what the plan obeys, and the K that it says now.

    cohort: only this one; a name that the policy does not have gives no line.
    """
    lines = []
    for view in policy_view(policy)["cohorts"]:
        if cohort not in (None, view["name"]):
            continue
        values = [_value(view, section, name) for _, section, name in FIELDS]
        by_load = None if plan is None else plan.k.get(view["name"])
        lines.append(
            (
                view["name"],
                "no plan" if by_load is None else " ".join(map(str, by_load)),
                *values,
                _budget(view["budget"]),
                _match(view["match"]),
            )
        )
    columns = ["Cohort", "K by load", *(name for name, _, _ in FIELDS), "Budget", "Matches"]
    return pd.DataFrame(lines, columns=columns)


def _value(view: dict[str, Any], section: str, name: str) -> str:
    value = view[section][name]
    if value is None:
        return fmt.NOTHING
    if name in ("tpot_p95_s", "ttft_p95_s"):
        return f"{1000 * value:g} ms"
    if name in ("acceptance_floor", "tolerance"):
        return f"{100 * value:g}%"
    return f"{value:g} s" if name.endswith("_s") else text_of(value)


def _budget(budget: dict[str, Any] | None) -> str:
    return fmt.NOTHING if budget is None else f"{budget['usd']} USD a {budget['period']}, {budget['on_exceeded']}"


def _match(match: dict[str, Any]) -> str:
    given = {name: value for name, value in match.items() if value}
    return "; ".join(f"{name} {text_of(value)}" for name, value in given.items()) or "every request"


def field_table(policy: Policy, cohort: str | None = None) -> pd.DataFrame:
    """Every field of every cohort with where its value comes from, as `kadence policy show` prints them."""
    lines = []
    for view in policy_view(policy)["cohorts"]:
        if cohort not in (None, view["name"]):
            continue
        for section in SECTIONS:
            for name, value in (view[section] or {}).items():
                line = view["origin"][f"{section}.{name}"]["line"]
                origin = "default" if line is None else f"line {line}"
                lines.append((view["name"], section, name, text_of(value), origin))
    return pd.DataFrame(lines, columns=["Cohort", "Section", "Field", "Value", "From"])


def budget_table(policy: Policy) -> pd.DataFrame:
    """All budgets: the cohorts' own and the named ones."""
    return pd.DataFrame(
        [
            (
                named.name,
                named.cohort or fmt.NOTHING,
                named.tenant or fmt.NOTHING,
                f"{named.budget.usd} USD",
                f"{named.budget.period} ({named.budget.timezone})",
                named.budget.on_exceeded,
                text_of([f"{share:.0%}" for share in named.budget.soft]),
            )
            for named in policy.all_budgets
        ],
        columns=["Budget", "Cohort", "Tenant", "Amount", "Period", "When exceeded", "Alerts at"],
    )


def history_table(entries: Sequence[PolicyEntry], where: tzinfo) -> pd.DataFrame:
    """Who put what in force, when and why; the lines of `kadence policy history`."""
    return pd.DataFrame(
        [(fmt.moment(e.applied_at, where), e.revision, e.what, e.applied_by, e.why) for e in entries],
        columns=["Time", "Revision", "What", "By", "Why"],
    )


def revision_diff(old: Policy, new: Policy) -> tuple[list[str], list[str]]:
    """What `kadence policy diff` says: settings that change, and the lines of the unified diff of the texts."""
    return differences(old, new), text_diff(old, new)


def problem_table(problems: Sequence[PolicyProblem]) -> pd.DataFrame:
    """Everything that is wrong with a text, by line."""
    return pd.DataFrame(
        [("whole file" if p.line is None else str(p.line), p.field or fmt.NOTHING, p.message) for p in problems],
        columns=["Line", "Field", "Problem"],
    )


def planned_table(planned: Planned) -> pd.DataFrame:
    """What is expected of each cohort of the new policy."""
    return pd.DataFrame(
        [_planned(cohort, planned.currency) for cohort in planned.cohorts],
        columns=["Cohort", "Requests", "K before", "K after", "Tokens/s", "TPOT p95", "Per 1M tokens", "Energy per 1M"],
    )


def _planned(cohort: CohortForecast, currency: str | None) -> tuple[str, ...]:
    change, cost, joules = cohort.change, cohort.cost, cohort.joules
    return (
        cohort.name,
        fmt.count(cohort.requests) + (f" ({fmt.count(cohort.uncertain)} not sure)" if cohort.uncertain else ""),
        _shares(cohort.k_before),
        _shares(cohort.k_after),
        "not known" if change is None else f"{change.mid:+.1%} ({change.low:+.1%} to {change.high:+.1%})",
        _from_to(_milliseconds(cohort.tpot_p95_before_s), _milliseconds(cohort.tpot_p95_s), fmt.NOTHING),
        _from_to(
            None if cohort.cost_before is None else fmt.money(cohort.cost_before, currency),
            None if cost is None else fmt.money(cost.mid, currency),
            fmt.UNPRICED,
        ),
        _from_to(
            None if cohort.joules_before is None else f"{fmt.number(cohort.joules_before)} J",
            None if joules is None else f"{fmt.number(joules.mid)} J",
            fmt.NOT_MEASURED,
        ),
    )


def _shares(shares: dict[int, float]) -> str:
    return "  ".join(f"{k}: {share:.0%}" for k, share in shares.items()) or fmt.NOTHING


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{fmt.number(1000 * seconds)} ms"


def _from_to(before: str | None, after: str | None, unknown: str) -> str:
    if before is None:
        return unknown
    return before if after is None else f"{before} → {after}"


def switch_table(changes: Sequence[SwitchChange], where: tzinfo) -> pd.DataFrame:
    return pd.DataFrame(
        [(fmt.moment(c.at, where), f"{c.before} → {c.after}", c.plan_version) for c in changes],
        columns=["Time", "Kill switch", "Plan"],
    )


def rollout_table(entries: Sequence[RolloutEntry], where: tzinfo) -> pd.DataFrame:
    return pd.DataFrame(
        [
            (
                fmt.moment(e.started_at, where),
                "under way" if e.ended_at is None else fmt.moment(e.ended_at, where),
                e.revision,
                e.incumbent,
                f"{e.share:.0%} of the {e.unit}",
                e.stage,
                e.started_by,
                e.why,
                e.sentence,
            )
            for e in entries
        ],
        columns=["Started", "Ended", "Tried", "Against", "On", "Stage", "By", "Why", "What became of it"],
    )


def alert_table(alerts: Sequence[Alert], where: tzinfo) -> pd.DataFrame:
    """Alerts, active and cleared, as `kadence alerts list --state all` has them."""
    return pd.DataFrame(
        [
            (
                fmt.moment(a.last_seen, where),
                fmt.moment(a.first_seen, where),
                a.name,
                a.severity,
                a.state,
                a.count,
                a.detail,
                "" if a.cleared_at is None else f"{a.cleared_by}, {fmt.moment(a.cleared_at, where)}: {a.why}",
            )
            for a in alerts
        ],
        columns=["Last seen", "First seen", "Alert", "Severity", "State", "Seen", "Detail", "Cleared by"],
    )
