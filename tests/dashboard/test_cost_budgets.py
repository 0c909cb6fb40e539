"""Budgets from the ledger alone, on a month worked out by hand.

100 s of machine time an hour at 3.60 USD an hour (0.001 USD a second) is 0.10 USD an hour. From 1 to 10 November that
is 240 hours: 24.00 USD. It is 2026-11-11, 20 days (480 hours) before the reset: 48.00 USD more are expected, 72.00 USD
in all. Every day of the last week cost the same 2.40 USD, so the interval has no width. A limit of 50 USD is reached
after (50 - 24) / 0.10 = 260 hours: on 21 November at 20:00.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from controlplane.finops.pricing import PriceSheet, parse_prices
from controlplane.policy import parse_policy
from controlplane.store.cost_models import CostHour, MachineHour
from controlplane.store.engine import open_database
from controlplane.store.models import PolicyRevision
from dashboard.cost_budgets import ahead_text, budget_frame, outlooks, standing_text
from dashboard.cost_charts import forecast_chart
from dashboard.overview_cards import budget_words
from dashboard.policy_reading import policy_in_force

HOUR_S = 3600
NANO = 10**9
NOVEMBER = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) // HOUR_S
NOW = float((NOVEMBER + 240) * HOUR_S)
POLICY = """version: 1
cohorts:
  - name: json
    match: {headers: {x-kadence-cohort: json}}
    speculation: {tuner: fixed, ladder: [2], start: 2, fallback: 2}
    budget: {usd: LIMIT, period: month, timezone: UTC, soft: [40%]}
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}
"""
SHEET = parse_prices("""version: 1
prices:
  - {sku: test-machine, basis: on_demand, currency: USD, per_hour: "3.60", source: by hand, as_of: 2026-11-01,
     effective_from: 2020-01-01}
""")


def hour_rows(hour: int) -> list[CostHour | MachineHour]:
    zeros = dict.fromkeys(
        ("wasted_ns", "measured_tokens", "steps", "planned_k_steps", "draft_tokens", "accepted_tokens", "requests"), 0
    )
    used = CostHour(
        hour=hour, sku="test-machine", model="m", cohort="json", tenant="", direction="output", energy_source="none",
        ns=100 * NANO, uj=None, wasted_uj=None, tokens=1000, **zeros,
    )  # fmt: skip
    return [used, MachineHour(hour=hour, sku="test-machine", ns=100 * NANO, windows=10)]


@pytest.fixture(scope="module")
def november(make_ledger, tmp_path_factory):
    ledger = make_ledger(tmp_path_factory.mktemp("november"))
    ledger.migrate()
    ledger.add([row for hour in range(NOVEMBER, NOVEMBER + 240) for row in hour_rows(hour)])
    engine = open_database(ledger.url)
    yield engine
    engine.dispose()


def found(engine, limit: str = "50", sheet: PriceSheet = SHEET):
    return outlooks(engine, parse_policy(POLICY.replace("LIMIT", limit)), sheet, NOW)


def test_what_is_spent_and_expected_is_what_was_worked_out_by_hand(november):
    (outlook,) = found(november)
    status = outlook.status
    assert status.spent_nano == 24 * NANO
    assert status.standing == "soft"  # 24 of 50 USD is 48 %, over the threshold of 40 %
    assert status.forecast is not None
    assert status.forecast.at_reset_nano == 72 * NANO
    assert (status.forecast.low_nano, status.forecast.high_nano) == (72 * NANO, 72 * NANO)
    assert status.forecast.exceeds_at == pytest.approx(datetime(2026, 11, 21, 20, tzinfo=UTC).timestamp())


def test_the_line_of_what_is_spent_goes_up_by_the_hour_and_ends_at_the_spending(november):
    (outlook,) = found(november)
    assert outlook.so_far[:3] == (
        (NOVEMBER * HOUR_S, 0),
        ((NOVEMBER + 1) * HOUR_S, NANO // 10),
        ((NOVEMBER + 2) * HOUR_S, 2 * NANO // 10),
    )
    assert outlook.so_far[-1] == (NOW, outlook.status.spent_nano)


def test_a_budget_that_will_be_exceeded_is_in_danger_and_says_when(november):
    (outlook,) = found(november)
    assert outlook.is_in_danger
    assert standing_text(outlook.status) == "soft threshold passed: $24.00 of $50.00 in 2026-11"
    assert ahead_text(outlook.status) == (
        "$72.00 ($72.00 to $72.00) expected at the reset, 2026-12-01T00:00+00:00; "
        "exceeded on 2026-11-21T20:00:00Z at this rate"
    )


def test_a_budget_that_will_do_is_not_in_danger(november):
    (outlook,) = found(november, "100")
    assert not outlook.is_in_danger
    assert outlook.status.standing == "ok"


def test_an_exceeded_budget_is_in_danger(november):
    (outlook,) = found(november, "20")
    assert outlook.is_in_danger
    assert standing_text(outlook.status) == "exceeded: $24.00 of $20.00 in 2026-11"


def test_spending_without_a_price_is_unknown_and_not_zero(november):
    (outlook,) = found(november, sheet=PriceSheet())
    assert outlook.status.standing == "unknown"
    assert standing_text(outlook.status).startswith("cannot be computed: at least $0.00")
    line = budget_frame((outlook,)).iloc[0]
    assert (line["Standing"], line["Used"], line["Expected at reset"]) == ("unknown", "not known", "not known yet")


def test_the_table_has_a_line_for_each_budget(november):
    line = budget_frame(found(november)).iloc[0]
    assert line.to_dict() == {
        "Budget": "json",
        "Of": "cohort json",
        "Standing": "soft",
        "Spent": "$24.00",
        "Limit": "$50.00",
        "Used": "48.0 %",
        "Expected at reset": "$72.00",
        "95 % interval": "$72.00 to $72.00",
        "Resets": "2026-12-01T00:00+00:00",
    }


def test_every_one_of_many_budgets_has_a_forecast(november):
    policy = parse_policy(POLICY.replace("LIMIT", "50"))
    named = policy.all_budgets[0]
    many = replace(policy, budgets=tuple(replace(named, name=f"b{i}") for i in range(40)))
    assert all(each.status.forecast is not None for each in outlooks(november, many, SHEET, NOW))


def test_the_most_urgent_budget_comes_first(november):
    policy = parse_policy(POLICY.replace("LIMIT", "100"))
    named = policy.all_budgets[0]
    small = replace(named, name="zz", budget=replace(named.budget, usd=named.budget.usd / 10))
    both = outlooks(november, replace(policy, budgets=(small,)), SHEET, NOW)
    assert [each.status.name for each in both] == ["zz", "json"]
    assert budget_words(both, has_policy=True)[0] == "1 of 2 exceeded"


def test_the_chart_holds_the_limit_what_is_spent_and_what_is_expected(november):
    (outlook,) = found(november)
    spec = forecast_chart(outlook, UTC).to_dict()
    rows = [row for data in spec["datasets"].values() for row in data if "what" in row]
    assert {row["usd"] for row in rows if row["what"] == "limit"} == {50.0}
    assert max(row["usd"] for row in rows if row["what"] == "spent") == pytest.approx(24.0)
    assert max(row["usd"] for row in rows if row["what"] == "expected") == pytest.approx(72.0)


def test_the_policy_in_force_is_the_last_one_that_was_applied(ledger):
    ledger.migrate()
    texts = [POLICY.replace("LIMIT", str(n)) for n in (10, 20)]
    ledger.add(
        [
            PolicyRevision(revision=f"{i}" * 12, applied_at=100.0 + i, applied_by="ann", why="", text=text)
            for i, text in enumerate(texts)
        ]
    )
    engine = open_database(ledger.url)
    policy = policy_in_force(engine)
    engine.dispose()
    assert policy is not None
    assert policy.all_budgets[0].budget.usd == 20


def test_without_a_policy_on_record_there_is_none(ledger):
    ledger.migrate()
    engine = open_database(ledger.url)
    assert policy_in_force(engine) is None
    engine.dispose()
