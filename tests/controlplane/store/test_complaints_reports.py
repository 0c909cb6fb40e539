"""What users of other cost tools complain about, and that a report of ours does not do it. Named after the symptom."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.finops.pricing import PriceSheet
from controlplane.store.cost import cost_report
from controlplane.store.cost_rows import CostReport
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import CohortWindow, StepCell, StepCount, TenantUse, WindowId, WorkerWindow
from tests.controlplane.store.random_traffic import MIDNIGHT, empty_ledger, prices, write

DAY = TimeRange(MIDNIGHT, MIDNIGHT + 86_400)
SHEET = prices({"gpu": ["3.6"], "gpu-quarter": ["0.9"]})  # a second is 1 000 000 nano-units, or a quarter of it


@pytest.fixture
def ledger() -> Iterator[sa.Engine]:
    engine = empty_ledger()
    yield engine
    engine.dispose()


def cohort(name: str, *tenants: TenantUse, steps: tuple[StepCount, ...] = (), **changes: Any) -> CohortWindow:
    cells = (StepCell(0, 4, steps, 0.1),) if steps else ()
    return CohortWindow(name, cells, tenants=tenants, **changes)


def window(
    sequence: int, *cohorts: CohortWindow, busy: float = 1.0, seconds: float = 1.0, **changes: Any
) -> WorkerWindow:
    values: dict[str, Any] = {
        "id": WindowId("w", 1, sequence), "model": "own-model", "drafter": "ngram", "device": "gpu",
        "started_at": MIDNIGHT + sequence * seconds, "ended_at": MIDNIGHT + (sequence + 1) * seconds,
        "busy_s": busy * seconds, "energy_uj": None, "energy_source": "none", "plan_version": 1, "plan_expired": False,
        "plan_age_s": 0.0, "running": 1, "waiting": 0, "kv_used": 1, "kv_total": 10, "cohorts": cohorts,
    }  # fmt: skip
    return WorkerWindow(**{**values, **changes})


def by(engine: sa.Engine, dimension: str, sheet: PriceSheet = SHEET, **asked: Any) -> CostReport:
    return cost_report(engine, DAY, dimension, sheet, **asked)


def test_1_streamed_and_cancelled_requests_log_spend_0(ledger: sa.Engine) -> None:
    """A stream that its client dropped after 9 tokens costs what was computed for it."""
    dropped = TenantUse("agent", 20, 10, input_tokens=20, emitted_tokens=9, requests=1)
    steps = (StepCount(0, 0, False, 8), StepCount(1, 0, False, 1))
    use = cohort("chat", dropped._replace(draft_tokens=1, emitted_tokens=10), steps=steps, prefill_positions=20,
                 first_tokens=1, requests_failed=1)  # fmt: skip
    write(ledger, [window(0, use, busy=0.5)])
    (row,) = by(ledger, "tenant").rows
    assert (row.key, row.cost_nano, row.emitted_tokens, row.requests) == ("agent", 500_000, 10, 1)


def test_1_what_is_still_running_is_in_no_bill_yet(ledger: sa.Engine) -> None:
    """A request that has not ended is billed window by window, not on the day it ends."""
    use = TenantUse("agent", 20, input_tokens=20)
    write(ledger, [window(0, cohort("chat", use, prefill_positions=20))])
    (row,) = by(ledger, "tenant").rows
    assert (row.cost_nano, row.requests) == (1_000_000, 0)


def test_3_a_custom_price_is_logged_as_0(ledger: sa.Engine) -> None:
    """A sku of one's own costs its own price; without one it is unpriced and never 0."""
    use = cohort("chat", TenantUse("acme", 5), prefill_positions=5)
    write(ledger, [window(0, use, device="my-box")])
    assert by(ledger, "cohort", prices({"my-box": ["0.36"]})).rows[0].cost_nano == 100_000
    unpriced = by(ledger, "cohort")
    assert (unpriced.rows[0].cost_nano, unpriced.total.cost_nano) == (None, None)
    assert "my-box has no on_demand price" in unpriced.unpriced[0]


def test_4_a_self_hosted_model_always_costs_0(ledger: sa.Engine) -> None:
    """The model's name needs no price of its own: its machine's time has one, for prompt and completion alike."""
    steps = (StepCount(0, 0, False, 5),)
    use = TenantUse("acme", 5, 5, input_tokens=5, emitted_tokens=5)
    write(ledger, [window(0, cohort("chat", use, steps=steps, prefill_positions=5))])
    (row,) = by(ledger, "model").rows
    assert (row.key, row.input_cost_nano, row.output_cost_nano) == ("own-model", 500_000, 500_000)
    assert row.cost_per_million_input_tokens == Decimal("100.000000")


def test_11_the_cost_is_a_multiple_of_the_bill(ledger: sa.Engine) -> None:
    """A prompt that is computed twice (after a preemption) is paid for in machine time, and counted once."""
    first = cohort("chat", TenantUse("acme", 100, input_tokens=100), prefill_positions=100)
    again = cohort("chat", TenantUse("acme", 100), prefill_positions=100)
    write(ledger, [window(0, first), window(1, again)])
    report = by(ledger, "tenant")
    assert (report.rows[0].input_tokens, report.total.cost_nano) == (100, 2_000_000)


def test_12_token_buckets_overlap(ledger: sa.Engine) -> None:
    """Prompt and completion tokens are two buckets without a third: accepted drafts are among the completion's."""
    steps = (StepCount(4, 3, False, 2),)
    use = TenantUse("acme", 7, 10, draft_tokens=8, accepted_tokens=6, input_tokens=7, emitted_tokens=9)
    write(ledger, [window(0, cohort("chat", use, steps=steps, prefill_positions=7, first_tokens=1))])
    directions = {row.key: row for row in by(ledger, "direction").rows}
    assert (directions["input"].input_tokens, directions["input"].emitted_tokens) == (7, 0)
    assert (directions["output"].input_tokens, directions["output"].emitted_tokens) == (0, 9)
    assert directions["output"].accepted_tokens < directions["output"].emitted_tokens
    total = by(ledger, "cohort").total
    assert (total.input_tokens, total.emitted_tokens) == (7, 9)


def test_16_usage_and_allocation_differ_by_less_than_a_percent(ledger: sa.Engine) -> None:
    """A machine that was busy for a quarter: what the work took, and what it cost to have the machine, are 1 to 4."""
    steps = (StepCount(0, 0, False, 10),)
    use = cohort("chat", TenantUse(None, 0, 10, emitted_tokens=10), steps=steps)
    write(ledger, [window(i, use, busy=0.25, energy_uj=4000, energy_source="counter") for i in range(4)])
    report = by(ledger, "cohort")
    (row,) = report.rows
    assert (row.cost_nano, row.loaded_cost_nano) == (1_000_000, 4_000_000)
    assert (row.active_j_per_token, row.loaded_j_per_token) == (0.004 / 40, 0.016 / 40)
    assert (report.utilisation, report.idle_share) == (0.25, 0.75)
    assert by(ledger, "cohort", idle="weighted").rows[0].cost_nano == row.loaded_cost_nano


def test_17_a_quarter_of_a_gpu_is_billed_as_a_whole_one(ledger: sa.Engine) -> None:
    """A slice is a sku of its own: its time has its own price, beside the whole machine's."""
    use = cohort("chat", TenantUse(None, 5), prefill_positions=5)
    slice_of_it = window(0, use, device="gpu-quarter", id=WindowId("slice", 1, 0))
    write(ledger, [window(0, use), slice_of_it])
    assert {row.key: row.cost_nano for row in by(ledger, "sku").rows} == {"gpu": 1_000_000, "gpu-quarter": 250_000}


def test_18_the_api_shows_a_multiple_of_the_hourly_price(ledger: sa.Engine) -> None:
    """An hour of one machine costs its hourly price, for however many cohorts, and however often it is reported."""
    cohorts = [cohort(name, TenantUse(name, 7), prefill_positions=7) for name in ("a", "b", "c")]
    hour = [window(i, *cohorts, busy=0.9, seconds=60.0) for i in range(60)]
    write(ledger, hour)
    write(ledger, hour)
    for dimension in ("cohort", "tenant", "hour", "sku"):
        report = by(ledger, dimension)
        costs = [row.cost_nano or 0 for row in (*report.rows, report.idle)]
        assert (sum(costs), report.total.cost_nano, report.machine_s) == (3_600_000_000, 3_600_000_000, 3600.0)


def test_idle_disappears_where_nobody_has_a_weight(ledger: sa.Engine) -> None:
    """Idle spread over rows that computed nothing on that machine goes to them in even parts."""
    finished = [cohort(name, TenantUse(name, requests=1), requests_finished=1) for name in ("a", "b")]
    write(ledger, [window(0, *finished, busy=0.0)])
    report = by(ledger, "cohort", idle="weighted")
    assert [(row.key, row.cost_nano) for row in report.rows] == [("a", 500_000), ("b", 500_000)]
    assert (report.idle.cost_nano, report.total.cost_nano) == (0, 1_000_000)


def test_idle_of_a_machine_that_nobody_used_is_borne_by_all_that_were_busy(ledger: sa.Engine) -> None:
    cohorts = [cohort(name, TenantUse(name, n), prefill_positions=n) for name, n in (("a", 10), ("b", 30))]
    spare = window(0, busy=0.0, device="gpu-quarter", id=WindowId("spare", 1, 0))
    write(ledger, [window(0, *cohorts), spare])
    report = by(ledger, "cohort", idle="weighted")
    assert [row.cost_nano for row in report.rows] == [250_000 + 62_500, 750_000 + 187_500]


def test_idle_disappears_where_nobody_is_there_to_bear_it(ledger: sa.Engine) -> None:
    write(ledger, [window(0, busy=0.0)])
    for rule in ("weighted", "even"):
        report = by(ledger, "cohort", idle=rule)
        assert (report.rows, report.idle.cost_nano, report.total.cost_nano) == ((), 1_000_000, 1_000_000)


@pytest.mark.parametrize("rule", ["none", "weighted", "even"])
def test_a_filter_counts_all_of_idle_again(ledger: sa.Engine, rule: str) -> None:
    """Each filter's rows with the rest and idle are the bill once; spread idle is not all on the filter's rows."""
    cohorts = [cohort(name, TenantUse(name, n), prefill_positions=n) for name, n in (("a", 10), ("b", 30))]
    write(ledger, [window(0, *cohorts, busy=0.4)])
    report = by(ledger, "cohort", where={"cohort": ["a"]}, idle=rule)
    assert report.rest is not None
    costs = [sum(row.cost_nano or 0 for row in report.rows), report.rest.cost_nano, report.idle.cost_nano]
    expected = {"none": [100_000, 300_000, 600_000], "weighted": [250_000, 750_000, 0], "even": [400_000, 600_000, 0]}
    assert costs == expected[rule]


@pytest.mark.parametrize("rule", ["none", "weighted", "even"])
def test_idle_of_no_machine_is_more_than_0(ledger: sa.Engine, rule: str) -> None:
    report = by(ledger, "cohort", idle=rule)
    assert (report.idle.cost_nano, report.total.cost_nano, report.utilisation) == (0, 0, None)
