"""The cost report against figures worked out by hand, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from controlplane.decision.plan import Plan
from controlplane.finops.attribution import cost_of_time, nanoseconds
from controlplane.finops.pricing import Price, PriceSheet
from controlplane.store.cost_rows import DIMENSIONS
from controlplane.store.journal import SqlJournal
from controlplane.store.queries import CostReport, TimeRange, cost_report
from controlplane.telemetry import Report, StepCount, TenantUse, WindowId

Make = Callable[..., Any]

AT = 1_790_000_000.0
DAY = TimeRange(AT, AT + 86400)


def price(sku: str = "cpu-2core", per_hour: str = "3.6", **changes: Any) -> Price:
    values: dict[str, Any] = {
        "sku": sku,
        "basis": "on_demand",
        "currency": "USD",
        "per_hour": Decimal(per_hour),
        "region": "",
        "source": "test",
        "as_of": date(2026, 9, 1),
        "effective_from": 0.0,
    }
    return Price(**{**values, **changes})


EDGE = 497_225 * 3600.0
"""A whole hour, 10 000 s after AT: prices change at such moments alone."""

SHEET = PriceSheet((price(),))  # 3.6 an hour is 0.001 a second: 1 000 000 nano-units


def store(engine: sa.Engine, *reports: Report) -> None:
    journal = SqlJournal(engine)
    journal.record(reports, [], Plan(1, 1, AT, AT + 10, {}, {}, ""), AT)
    journal.close()
    assert journal.lost == 0


@pytest.fixture
def tiny(ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make) -> sa.Engine:
    """Two windows of a second.

    1: busy 0.4 s, 40 positions: json 30 (10 prefill + 4 steps x 5; 8 of 16 drafts rejected), poetry 10 (prefill).
       100 J: 40 J busy -> json 30 J (8 J wasted), poetry 10 J; idle 60 J.
       Of json acme has 6 + 15 positions and zeta 4 + 5; poetry has no tenant.
    2: busy 0.2 s, poetry alone: 1 plain step. Energy not measured.
    """
    json = make_cohort_window(
        "json", (StepCount(4, 2, False, 4),), prefill_positions=10, first_tokens=1, requests_finished=2,
        tenants=(
            TenantUse("acme", 6, 15, draft_tokens=12, accepted_tokens=6, input_tokens=6, emitted_tokens=9, requests=1),
            TenantUse("zeta", 4, 5, draft_tokens=4, accepted_tokens=2, input_tokens=4, emitted_tokens=4, requests=1),
        ),
    )  # fmt: skip
    poetry = make_cohort_window(
        "poetry", prefill_positions=10, first_tokens=1,
        tenants=(TenantUse(None, 10, input_tokens=10, emitted_tokens=1),),
    )  # fmt: skip
    more = make_cohort_window("poetry", (StepCount(0, 0, False, 1),), k=0, requests_finished=1)
    store(
        ledger,
        Report(
            make_worker_window(1, (json, poetry), busy_s=0.4, energy_uj=100_000_000, energy_source="counter"),
            (
                make_request_record("a", tenant="acme", prompt_tokens=6, completion_tokens=9, verify_positions=15),
                make_request_record("b", tenant="zeta", prompt_tokens=4, completion_tokens=4, prefill_positions=5),
            ),
        ),
        Report(
            make_worker_window(2, (more,), busy_s=0.2),
            (make_request_record("c", cohort="poetry", tenant=None, prompt_tokens=10, completion_tokens=2),),
        ),
    )
    return ledger


def costs(report: CostReport) -> dict[str, int | None]:
    return {row.key: row.cost_nano for row in (*report.rows, report.idle, report.total)}


def test_cost_by_cohort_is_the_hand_computed_one(tiny: sa.Engine) -> None:
    # json 0.3 s; poetry 0.1 + 0.2 s; idle 0.6 + 0.8 s; at 1 000 000 nano-units a second.
    report = cost_report(tiny, DAY, "cohort", SHEET)
    assert costs(report) == {"json": 300_000, "poetry": 300_000, "idle": 1_400_000, "total": 2_000_000}


def test_tokens_and_requests_by_cohort_are_the_hand_computed_ones(tiny: sa.Engine) -> None:
    report = cost_report(tiny, DAY, "cohort", SHEET)
    figures = [(r.key, r.requests, r.input_tokens, r.emitted_tokens) for r in (*report.rows, report.total)]
    assert figures == [("json", 2, 10, 13), ("poetry", 1, 10, 2), ("total", 3, 20, 15)]


def test_cost_per_million_tokens_is_per_emitted_token_without_idle(tiny: sa.Engine) -> None:
    json = cost_report(tiny, DAY, "cohort", SHEET).rows[0]
    assert json.cost_per_million_tokens == Decimal("23.076923")  # 0.0003 / 13 x 1e6


def test_waste_is_what_rejected_drafts_took(tiny: sa.Engine) -> None:
    json, poetry = cost_report(tiny, DAY, "cohort", SHEET).rows
    assert (json.wasted_cost_nano, json.wasted_uj) == (80_000, 8_000_000)
    assert (poetry.wasted_cost_nano, poetry.wasted_uj) == (0, 0)


def test_energy_is_of_the_measured_windows_and_says_so(tiny: sa.Engine) -> None:
    report = cost_report(tiny, DAY, "cohort", SHEET)
    json, poetry = report.rows
    assert (json.energy_uj, json.energy_source, json.j_per_token) == (30_000_000, "counter", 30 / 13)
    # Its second window was not measured: joules per token are of the one token of the first.
    assert (poetry.energy_uj, poetry.energy_source, poetry.j_per_token) == (10_000_000, "counter+none", 10.0)
    assert (report.idle.energy_uj, report.total.energy_uj) == (60_000_000, 100_000_000)


def test_cost_by_tenant_is_of_their_own_positions(tiny: sa.Engine) -> None:
    # json's 300 000: acme 21 of 30 positions, zeta 9; poetry has no tenant.
    report = cost_report(tiny, DAY, "tenant", SHEET)
    assert costs(report) == {
        "(none)": 300_000,
        "acme": 210_000,
        "zeta": 90_000,
        "idle": 1_400_000,
        "total": 2_000_000,
    }


def test_tokens_by_tenant_are_those_of_its_requests(tiny: sa.Engine) -> None:
    rows = cost_report(tiny, DAY, "tenant", SHEET).rows
    assert [(r.key, r.requests, r.input_tokens, r.emitted_tokens) for r in rows] == [
        ("(none)", 1, 10, 2),
        ("acme", 1, 6, 9),
        ("zeta", 1, 4, 4),
    ]


def test_a_cohort_without_a_finished_request_keeps_its_cost(
    ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    store(ledger, Report(make_worker_window(1, (make_cohort_window("json", prefill_positions=3),))))
    report = cost_report(ledger, DAY, "tenant", SHEET)
    assert costs(report) == {"(none)": 500_000, "idle": 500_000, "total": 1_000_000}


def test_cost_by_model_and_hour_add_up_to_the_same_bill(tiny: sa.Engine) -> None:
    by_model = costs(cost_report(tiny, DAY, "model", SHEET))
    by_hour = costs(cost_report(tiny, DAY, "hour", SHEET))
    assert by_model == {"smollm2": 600_000, "idle": 1_400_000, "total": 2_000_000}
    assert by_hour == {"2026-09-21T14:00Z": 600_000, "idle": 1_400_000, "total": 2_000_000}


@pytest.mark.parametrize("by", DIMENSIONS)
def test_rows_and_idle_are_the_bill_at_an_odd_price(
    by: str, ledger: sa.Engine, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make
) -> None:
    reports = [
        Report(
            make_worker_window(
                s,
                tuple(make_cohort_window(f"c{i}", prefill_positions=7 * s + i) for i in range(s % 4)),
                started_at=AT + 613.7 * s,
                busy_s=(s % 7) / 7,
                device=f"gpu-{s % 2}",
                model=f"m{s % 3}",
                energy_uj=1_000_003 * s if s % 2 else None,
                energy_source="counter" if s % 2 else "none",
            ),
            (make_request_record(f"r{s}", cohort=f"c{s % 3}", model=f"m{s % 3}", finished_at=AT + 613.7 * s),),
        )
        for s in range(1, 40)
    ]
    store(ledger, *reports)
    sheet = PriceSheet(
        (
            price("gpu-0", "2.950000007", effective_to=EDGE),
            price("gpu-0", "1.7", effective_from=EDGE),
            price("gpu-1", "0.333333333"),
        )
    )
    report = cost_report(ledger, DAY, by, sheet)
    assert sum(r.cost_nano or 0 for r in report.rows) + (report.idle.cost_nano or 0) == report.total.cost_nano
    assert sum(r.energy_uj or 0 for r in (*report.rows, report.idle)) == sum(1_000_003 * s for s in range(1, 40, 2))
    time: dict[tuple[int, str], int] = {}
    for window in (each.window for each in reports):
        key = (int(window.started_at // 3600), window.device)
        time[key] = time.get(key, 0) + nanoseconds(window.seconds)
    bill = 0
    for (hour, sku), ns in time.items():
        at = sheet.price_at(sku, "on_demand", hour * 3600)
        bill += cost_of_time(ns, at.per_hour_nano if at else 0)
    assert report.total.cost_nano == bill


def test_history_is_priced_with_the_price_of_its_day(ledger: sa.Engine, make_worker_window: Make) -> None:
    store(ledger, *(Report(make_worker_window(s, started_at=EDGE - 2 + s)) for s in (1, 2)))
    sheet = PriceSheet((price(effective_to=EDGE), price(per_hour="7.2", effective_from=EDGE)))
    assert cost_report(ledger, DAY, "cohort", sheet).idle.cost_nano == 1_000_000 + 2_000_000


def test_an_unknown_price_is_unpriced_and_named(tiny: sa.Engine) -> None:
    report = cost_report(tiny, DAY, "cohort", PriceSheet((price("other"),)))
    assert set(costs(report).values()) == {None}
    assert report.unpriced == ("cpu-2core has no on_demand price on 2026-09-21: the sheet does not name it",)


def test_one_unpriced_window_makes_the_rows_it_is_in_unpriced(
    tiny: sa.Engine, make_worker_window: Make, make_cohort_window: Make
) -> None:
    window = make_worker_window(3, (make_cohort_window("poetry", prefill_positions=1),), device="mystery")
    store(tiny, Report(window))
    assert costs(cost_report(tiny, DAY, "cohort", SHEET)) == {
        "json": 300_000,
        "poetry": None,
        "idle": None,
        "total": None,
    }


def test_an_old_price_is_reported_as_such(tiny: sa.Engine) -> None:
    report = cost_report(tiny, DAY, "cohort", PriceSheet((price(as_of=date(2026, 1, 1)),)))
    assert report.warnings == ("the on_demand price of cpu-2core was read on 2026-01-01, over 180 days ago",)


def test_a_range_takes_the_windows_that_began_in_it(tiny: sa.Engine) -> None:
    report = cost_report(tiny, TimeRange(AT + 1, AT + 2), "cohort", SHEET)
    assert costs(report) == {"poetry": 200_000, "idle": 800_000, "total": 1_000_000}


def test_workers_with_another_epoch_are_counted_apart(ledger: sa.Engine, make_worker_window: Make) -> None:
    store(ledger, *(Report(make_worker_window(1, id=WindowId(w, e, 1))) for w, e in (("a", 1), ("a", 2), ("b", 1))))
    assert cost_report(ledger, DAY, "cohort", SHEET).machine_s == 3.0


def test_an_empty_ledger_costs_nothing(ledger: sa.Engine) -> None:
    assert costs(cost_report(ledger, DAY, "cohort", SHEET)) == {"idle": 0, "total": 0}


def test_another_dimension_is_refused(ledger: sa.Engine) -> None:
    with pytest.raises(ValueError, match="by: 'colour' is none of cohort, tenant, model, sku, direction, hour, day"):
        cost_report(ledger, DAY, "colour", SHEET)
