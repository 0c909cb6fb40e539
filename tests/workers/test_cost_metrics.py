"""Dollars and wasted joules in the exposition: billed as machine time comes, absent where there is no price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.finops.attribution import cost_of_time, window_use
from controlplane.finops.pricing import parse_prices
from controlplane.finops.pricing.current import MachinePrices, machine_prices
from controlplane.telemetry import CohortWindow, StepCell, StepCount, WindowId, WorkerWindow
from workers.backend import JournalCounts
from workers.metrics import OTHER_COHORTS, MetricsAggregator
from workers.worker_totals import CohortUse, MetricsSnapshot, WorkerTotals

HOUR = 3600 * 10**9
CODE = CohortWindow("code", (StepCell(0, 4, (StepCount(4, 3, False, 5),), 0.5),), first_tokens=1)
SNAPSHOT = MetricsSnapshot(
    worker="w-1", epoch=1, model="tiny", totals={"code": CODE}, last_window={"code": CODE}, device="gpu",
    use={"code": CohortUse(2 * HOUR, HOUR // 2, 3_000_000)}, last_use={"code": CohortUse(HOUR // 3600, 0, None)},
    idle_ns=HOUR,
)  # fmt: skip
PRICES = MachinePrices("USD", "on_demand", {("gpu", "on_demand"): 3 * 10**9, ("gpu", "spot"): 10**9})
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(
    aggregator: MetricsAggregator, *snapshots: MetricsSnapshot, prices: MachinePrices | None = PRICES
) -> Samples:
    aggregator.observe(snapshots, ["code"])
    text = aggregator.render(JournalCounts(prices=prices)).decode()
    return {
        (sample.name.removeprefix("kadence_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "usd" in sample.name or "wasted" in sample.name
    }


def once(*snapshots: MetricsSnapshot, prices: MachinePrices | None = PRICES) -> Samples:
    return scrape(MetricsAggregator(), *snapshots, prices=prices)


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset({"model": "tiny", **labels}.items())]


def test_a_cohorts_machine_time_is_shown_in_dollars_on_every_basis() -> None:
    samples = once(SNAPSHOT)
    assert of(samples, "cost_usd_total", cohort="code", basis="on_demand") == 6.0
    assert of(samples, "cost_usd_total", cohort="code", basis="spot") == 2.0


def test_what_was_wasted_is_part_of_it() -> None:
    assert of(once(SNAPSHOT), "wasted_speculation_cost_usd_total", cohort="code", basis="on_demand") == 1.5


def test_idle_has_a_counter_of_its_own_and_no_cohort() -> None:
    assert of(once(SNAPSHOT), "idle_cost_usd_total", basis="on_demand") == 3.0


def test_wasted_energy_is_in_joules() -> None:
    assert of(once(SNAPSHOT), "wasted_speculation_joules_total", cohort="code") == 3.0


def test_wasted_energy_that_nothing_measured_is_absent_and_not_zero() -> None:
    samples = once(replace(SNAPSHOT, use={"code": CohortUse(HOUR, 5, None)}))
    assert not [name for name, _ in samples if "joules" in name]


def test_an_unpriced_machine_has_no_cost_and_not_zero() -> None:
    assert not [name for name, _ in once(replace(SNAPSHOT, device="other")) if "usd" in name]


def test_a_cohort_that_is_partly_unpriced_has_no_cost() -> None:
    other = replace(SNAPSHOT, worker="w-2", device="other")
    assert not [name for name, _ in once(SNAPSHOT, other) if "usd" in name]


def test_a_sheet_in_another_currency_gives_no_dollars() -> None:
    assert not [name for name, _ in once(SNAPSHOT, prices=replace(PRICES, currency="EUR")) if "usd" in name]


def test_a_new_price_counts_from_then_on() -> None:
    aggregator = MetricsAggregator()
    scrape(aggregator, SNAPSHOT)
    dearer = replace(PRICES, per_hour_nano={("gpu", "on_demand"): 5 * 10**9})
    more = replace(SNAPSHOT, use={"code": CohortUse(3 * HOUR, HOUR // 2, None)})
    samples = scrape(aggregator, more, prices=dearer)
    assert of(samples, "cost_usd_total", cohort="code", basis="on_demand") == 6.0 + 5.0


def test_what_came_before_the_first_word_of_the_controller_is_billed_with_it() -> None:
    aggregator = MetricsAggregator()
    assert not scrape(aggregator, SNAPSHOT, prices=None).keys() & {"cost_usd_total"}
    assert of(scrape(aggregator, SNAPSHOT), "cost_usd_total", cohort="code", basis="on_demand") == 6.0


def test_a_controller_that_is_away_leaves_the_prices_that_were_known() -> None:
    aggregator = MetricsAggregator()
    scrape(aggregator, SNAPSHOT)
    samples = scrape(aggregator, SNAPSHOT, prices=None)
    assert of(samples, "cost_usd_total", cohort="code", basis="on_demand") == 6.0


def test_workers_add_up_and_a_restart_takes_nothing_back() -> None:
    aggregator = MetricsAggregator()
    scrape(aggregator, SNAPSHOT, replace(SNAPSHOT, worker="w-2"))
    samples = scrape(aggregator, replace(SNAPSHOT, epoch=2, use={"code": CohortUse(HOUR, 0, None)}))
    assert of(samples, "cost_usd_total", cohort="code", basis="on_demand") == 6.0 + 6.0 + 3.0


def test_cohorts_that_the_policy_does_not_name_share_one_cost() -> None:
    samples = once(replace(SNAPSHOT, use={"old": CohortUse(HOUR), "older": CohortUse(HOUR)}))
    assert of(samples, "cost_usd_total", cohort=OTHER_COHORTS, basis="on_demand") == 6.0


def test_a_million_tokens_cost_what_the_last_window_says() -> None:
    # A second at 3 USD an hour for 21 tokens.
    value = of(once(SNAPSHOT), "cost_usd_per_million_tokens", cohort="code")
    assert value == pytest.approx(3 / 3600 / 21 * 1e6)


def test_a_window_without_tokens_has_no_cost_per_million() -> None:
    silent = replace(SNAPSHOT, last_window={"code": CohortWindow("code", prefill_positions=8)})
    assert not [name for name, _ in once(silent) if "per_million" in name]


def test_totals_of_a_worker_are_the_ledgers_use_of_its_windows() -> None:
    window = WorkerWindow(
        WindowId("w", 1, 1), "tiny", "ngram", "gpu", 10.0, 11.0, 0.5, 40_000_000, "counter", 1, False, 0.0, 0, 0, 0, 1,
        (CODE,),
    )  # fmt: skip
    totals = WorkerTotals()
    totals.add(window)
    found, use = totals.add(window), window_use(window)
    assert found.use["code"].ns + found.idle_ns == 2 * use.total_ns
    assert found.use["code"].wasted_uj == 2 * sum(each.wasted_uj or 0 for each in use.uses)
    usd = of(once(found), "cost_usd_total", cohort="code", basis="on_demand")
    assert usd == pytest.approx(cost_of_time(found.use["code"].ns, 3 * 10**9) / 1e9, abs=1e-9)


def test_only_prices_in_force_are_told() -> None:
    sheet = parse_prices(
        """
version: 1
prices:
  - {sku: gpu, basis: on_demand, currency: USD, per_hour: 2, source: x, as_of: 2026-11-01, effective_from: 2026-01-01,
     effective_to: 2026-07-01}
  - {sku: gpu, basis: on_demand, currency: USD, per_hour: 3, source: x, as_of: 2026-11-01, effective_from: 2026-07-01}
"""
    )
    assert machine_prices(sheet, 1_790_000_000.0) == MachinePrices(
        "USD", "on_demand", {("gpu", "on_demand"): 3 * 10**9}
    )
