"""What to change: each sentence comes from something that was found, the most urgent first, three at most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.alerts import Alert
from controlplane.finops.budget import BudgetStatus
from controlplane.finops.periods import Period
from controlplane.store.queries import CostReport, CostRow, DecisionRow, PlanRow
from dashboard.cost_budgets import Outlook
from dashboard.overview_advice import Facts, advice, stopped

NANO = 10**9


def row(key: str, **changes: Any) -> CostRow:
    return CostRow(key, **{"emitted_tokens": 1000, "cost_nano": 3 * NANO, "machine_ns": 3 * NANO, **changes})


def report(*rows: CostRow, idle_ns: int = 1 * NANO, unpriced: tuple[str, ...] = ()) -> CostReport:
    """Three seconds of work beside idle_ns, which cost as many dollars."""
    idle = CostRow("idle", cost_nano=idle_ns, idle_ns=idle_ns, has_idle=True)
    total = CostRow("total", machine_ns=3 * NANO, idle_ns=idle_ns, has_idle=True)
    seconds = (3 * NANO + idle_ns) / NANO
    return CostReport(rows or (row("json"),), idle, total, "USD", "on_demand", seconds, unpriced, idle_s=idle_ns / NANO)


def plan(**k: tuple[int, ...]) -> PlanRow:
    return PlanRow(3, 1, 100.0, 200.0, k, {}, "0123456789ab", "off")


def alert(kind: str, subject: str, detail: str) -> Alert:
    return Alert(kind, subject, "warning", 100.0, 100.0, 1, detail)


def outlook(standing: Any, spent: int = 60 * NANO) -> Outlook:
    period = Period("2026-11", 0.0, 1000.0)
    status = BudgetStatus(
        "ide", "json", None, "warn", period, 50 * NANO, spent, standing, (), (), 500.0, "x is missing"
    )
    return Outlook(status, ())


CALM = Facts(report(), "1h", plan(json=(2, 2)), 150.0)


def sentences(facts: Facts) -> list[str]:
    return [each.sentence for each in advice(facts)]


def test_where_nothing_stands_out_nothing_is_said():
    assert not advice(CALM)


def test_much_idle_time_is_said_with_what_it_cost():
    # 3 s of work and 3 s without: half of the time, for 3 USD.
    (said,) = advice(replace(CALM, report=report(idle_ns=3 * NANO)))
    assert said.sentence.startswith("Machines were idle 50% of the time, for $3.000")
    assert said.page == "pages/cost.py"
    assert said.command == "kadence cost report --since 1h --idle weighted"


def test_idle_time_without_a_price_is_said_without_money():
    idle = replace(report(idle_ns=3 * NANO).idle, cost_nano=None)
    (said,) = sentences(replace(CALM, report=replace(report(idle_ns=3 * NANO), idle=idle)))
    assert "50% of the time:" in said


def test_a_cohort_without_speculation_is_said_with_its_journals_sentence():
    why = DecisionRow(1.0, "json", 0, 2, 0, "below_floor", "json 2 -> 0 at load 1: accepted 3 %", 9, (), 1, "x")
    (said,) = advice(replace(CALM, plan=plan(json=(0, 0)), zero_k={"json": why}))
    assert said.sentence == "json is served without speculation: json 2 -> 0 at load 1: accepted 3 %."
    assert said.page == "pages/speculation.py"


def test_a_cohort_that_sends_nothing_needs_no_speculation():
    assert not advice(replace(CALM, plan=plan(json=(2, 2), quiet=(0, 0))))


@pytest.mark.parametrize(("by_load", "is_stopped"), [((0, 0), True), ((0, 2), False), ((), False)])
def test_a_cohort_is_stopped_where_k_is_0_at_every_load(by_load, is_stopped):
    assert stopped(plan(json=by_load)) == (["json"] if is_stopped else [])


def test_without_a_plan_nobody_is_stopped():
    assert stopped(None) == []


def test_a_budget_in_danger_is_said_first():
    facts = replace(CALM, report=report(idle_ns=9 * NANO), budgets=(outlook("exceeded"),))
    assert sentences(facts)[0].startswith("Budget ide is exceeded: $60.00 of $50.00")


def test_a_budget_that_cannot_be_computed_says_what_is_missing():
    (said,) = sentences(replace(CALM, budgets=(outlook("unknown", 0),)))
    assert "because x is missing" in said


def test_a_budget_that_is_kept_is_nothing_to_change():
    assert not advice(replace(CALM, budgets=(outlook("ok", NANO),)))


def test_a_wrong_text_an_anomaly_and_a_missing_price_are_each_said():
    facts = replace(
        CALM,
        report=report(unpriced=("h100 has no price", "a100 has no price")),
        alerts=(alert("anomaly", "json/2026", "json cost twice"), alert("canary", "ngram@1", "text of json is wrong")),
    )
    first, second, third = sentences(facts)
    assert "text of json is wrong" in first
    assert second == "Part of the bill has no price, so it is not known: h100 has no price (1 more like it)."
    assert third == "Unusual: json cost twice."


def test_an_expired_plan_is_said_with_its_age():
    (said,) = sentences(replace(CALM, now=260.0))
    assert said.startswith("The plan expired 1 min ago")


def test_a_cohort_that_wastes_much_of_its_cost_is_named():
    wasteful = row("json", wasted_cost_nano=NANO)  # 1 of 3 USD
    (said,) = sentences(replace(CALM, report=report(wasteful)))
    assert said.startswith("json spends 33.3 % of its cost on draft tokens that are rejected")


def test_waste_without_a_price_is_no_advice():
    assert not advice(replace(CALM, report=report(row("json", cost_nano=None, wasted_cost_nano=None))))


def test_a_saving_that_is_not_measured_says_how_to_measure_it():
    (said,) = advice(replace(CALM, is_saving_known=False))
    assert said.command == "kadence experiment start"


def test_a_drafter_that_wants_retraining_is_said():
    assert sentences(replace(CALM, retraining=("The drafter of json wants retraining.",))) == [
        "The drafter of json wants retraining."
    ]


def test_no_more_than_three_things_are_said():
    facts = replace(
        CALM,
        report=report(row("json", wasted_cost_nano=NANO), idle_ns=9 * NANO, unpriced=("x has no price",)),
        budgets=(outlook("exceeded"),),
        is_saving_known=False,
    )
    assert len(advice(facts)) == 3
