"""What to change: at most three sentences, each from something that was found, with where to look. Pure.

The rules are few and in one order: money that is about to be refused or overspent, wrong texts, unusual cost, then
waste, then what is not known. Names of cohorts and budgets are in the sentences: text from outside, never markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.alerts import ANOMALY, CANARY, Alert
from controlplane.store.queries import CostReport, DecisionRow, PlanRow
from dashboard import format as fmt
from dashboard.cost_budgets import Outlook, ahead_text, standing_text

MOST = 3
IDLE_HIGH = 0.4
"""Share of the machine time without work from which it is worth a sentence; the shipped alert rule has the same."""
WASTED_HIGH = 0.25
"""Share of the cost that went into rejected draft tokens, likewise."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. page: the file of the page that shows why. command: what prints it in a terminal."""

    sentence: str
    page: str
    label: str
    command: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the advice is drawn from. report: by cohort, idle a row of its own. zero_k: newest decision for K = 0, by
    cohort. is_saving_known: whether an experiment says what speculation saves. retraining: drafters that want it, a
    sentence each.
    """

    report: CostReport
    since: str
    plan: PlanRow | None = None
    now: float = 0.0
    alerts: Sequence[Alert] = ()
    budgets: Sequence[Outlook] = ()
    zero_k: Mapping[str, DecisionRow] | None = None
    is_saving_known: bool = True
    retraining: Sequence[str] = ()


def advice(facts: Facts, most: int = MOST) -> list[Advice]:
    """The most urgent first."""
    rules = (_budgets, _wrong_texts, _no_plan, _unpriced, _unusual, _off, _idle, _wasted, _retraining, _saving)
    return [each for rule in rules for each in rule(facts)][:most]


def stopped(plan: PlanRow | None) -> list[str]:
    """Cohorts for which the plan has K = 0 at every load, by name."""
    return [] if plan is None else sorted(cohort for cohort, by_load in plan.k.items() if by_load and not any(by_load))


def off_cohorts(report: CostReport, plan: PlanRow | None) -> list[str]:
    """Those of `stopped` that emitted something, the one with the most tokens first."""
    emitted = {row.key: row.emitted_tokens for row in report.rows}
    return sorted((c for c in stopped(plan) if emitted.get(c)), key=lambda cohort: (-emitted[cohort], cohort))


def _budgets(facts: Facts) -> Iterator[Advice]:
    for each in facts.budgets:
        if not each.is_in_danger and each.status.standing != "unknown":
            continue
        text = f"Budget {each.status.name} is {standing_text(each.status)}"
        if each.status.standing == "unknown":
            text += f", because {each.status.why}: add the price and it is enforced again."
        else:
            text += f"; {ahead_text(each.status)}: raise it, or serve less under it."
        yield Advice(text, "pages/cost.py", "Cost", "kadence budget status")


def _wrong_texts(facts: Facts) -> Iterator[Advice]:
    for alert in facts.alerts:
        if alert.kind == CANARY:
            text = f"A drafter changed texts and is not used until the alert is cleared: {alert.detail}."
            yield Advice(text, "pages/policy.py", "Policy and audit", "kadence alerts list")


def _no_plan(facts: Facts) -> Iterator[Advice]:
    plan = facts.plan
    if plan is None or facts.now <= plan.expires_at:
        return
    text = (
        f"The plan expired {fmt.duration(facts.now - plan.expires_at)} ago and workers use the fallback K: "
        "see whether the controller still runs."
    )
    yield Advice(text, "pages/speculation.py", "Speculation", "kadence doctor")


def _unpriced(facts: Facts) -> Iterator[Advice]:
    if facts.report.unpriced:
        more = len(facts.report.unpriced) - 1
        others = f" ({more} more like it)" if more else ""
        text = f"Part of the bill has no price, so it is not known: {facts.report.unpriced[0]}{others}."
        yield Advice(text, "pages/cost.py", "Cost", "kadence cost prices check")


def _unusual(facts: Facts) -> Iterator[Advice]:
    for alert in facts.alerts:
        if alert.kind == ANOMALY:
            yield Advice(f"Unusual: {alert.detail}.", "pages/cost.py", "Cost", "kadence cost anomalies")


def _off(facts: Facts) -> Iterator[Advice]:
    off = off_cohorts(facts.report, facts.plan)
    for cohort in off[:1]:
        found = (facts.zero_k or {}).get(cohort)
        others = f" ({len(off) - 1} more like it)" if len(off) > 1 else ""
        why = f": {found.sentence}" if found is not None else "; no decision in this range says why"
        text = f"{cohort} is served without speculation{others}{why}."
        yield Advice(text, "pages/speculation.py", "Speculation", "kadence policy replay")


def _idle(facts: Facts) -> Iterator[Advice]:
    share = facts.report.idle_share
    if share is None or share < IDLE_HIGH:
        return
    paid = facts.report.idle.cost_nano
    money = "" if paid is None else f", for {fmt.cost(paid, facts.report.currency)}"
    text = f"Machines were idle {share:.0%} of the time{money}: serve with fewer of them, or bring traffic together."
    command = f"kadence cost report --since {facts.since} --idle weighted"
    yield Advice(text, "pages/cost.py", "Cost", command)


def _wasted(facts: Facts) -> Iterator[Advice]:
    priced = [r for r in facts.report.rows if r.cost_nano and r.wasted_cost_nano is not None]
    high = [r for r in priced if (r.wasted_cost_nano or 0) >= WASTED_HIGH * (r.cost_nano or 0)]
    for row in sorted(high, key=lambda r: (-(r.wasted_cost_nano or 0), r.key))[:1]:
        text = (
            f"{row.key} spends {fmt.share(row.wasted_cost_nano, row.cost_nano)} of its cost on draft tokens that are "
            "rejected: give it a smaller K or a better drafter."
        )
        yield Advice(text, "pages/speculation.py", "Speculation", f"kadence cost report --since {facts.since}")


def _retraining(facts: Facts) -> Iterator[Advice]:
    for sentence in facts.retraining[:1]:
        yield Advice(sentence, "pages/speculation.py", "Speculation", "kadence train eagle")


def _saving(facts: Facts) -> Iterator[Advice]:
    if not facts.is_saving_known:
        text = "What speculation saves is not measured here: start an experiment, it takes its control pairs by itself."
        yield Advice(text, "pages/savings.py", "Savings", "kadence experiment start")
