import shutil
import subprocess
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.alerts import CanaryCheck
from controlplane.policy import parse_policy
from controlplane.telemetry import CohortWindow, LatencyHistogram, StepCell, StepCount, WindowId, WorkerWindow
from workers.backend import JournalCounts
from workers.metrics import OTHER_COHORTS, MetricsAggregator, render
from workers.worker_totals import CohortUse, MetricsSnapshot, WorkerTotals

CELL = StepCell(
    0, 4, (StepCount(0, 0, False, 3), StepCount(2, 1, False, 5), StepCount(4, 4, False, 2)), step_seconds=0.5
)
CODE = CohortWindow(
    "code",
    (CELL,),
    first_tokens=2,
    requests_started=2,
    requests_finished=1,
    ttft=LatencyHistogram().observe(0.004).observe(60.0),
    tpot=LatencyHistogram().observe(0.02),
)
SNAPSHOT = MetricsSnapshot(
    worker="w-1", epoch=1, model="tiny", totals={"code": CODE}, last_window={"code": CODE},
    energy_uj={"counter": 2_500_000}, energy_windows_dropped={"reset": 3},
    plan_version=7, plan_age_s=1.5, running=3, waiting=1, kv_used=100, kv_total=400,
    prefix_cache_queries={"code": 300, "chat": 20}, prefix_cache_hits={"code": 144}, preemptions={"chat": 2},
)  # fmt: skip
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def exposition(*snapshots: MetricsSnapshot, known: tuple[str, ...] = ("code", "chat")) -> Samples:
    return parse(render(snapshots, JournalCounts(), known))


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"kadence_{name}", tuple(sorted({"model": "tiny", **labels}.items()))]


def observe(aggregator: MetricsAggregator, *snapshots: MetricsSnapshot) -> Samples:
    aggregator.observe(snapshots, ["code"])
    return parse(aggregator.render(JournalCounts()))


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("drafts_total", {"cohort": "code"}, 7),
        ("plain_steps_total", {"cohort": "code"}, 3),
        ("draft_tokens_total", {"cohort": "code", "position": "0"}, 7),
        ("draft_tokens_total", {"cohort": "code", "position": "3"}, 2),
        ("accepted_tokens_total", {"cohort": "code", "position": "1"}, 2),
        ("emitted_tokens_total", {"cohort": "code"}, 2 + 3 + 5 * 2 + 2 * 5),
        ("acceptance_length", {"cohort": "code"}, 1 + (5 + 8) / 7),
        ("num_speculative_tokens", {"cohort": "code"}, (10 + 8) / 10),
        ("step_seconds_sum", {"cohort": "code"}, 0.5),
        ("step_seconds_count", {"cohort": "code"}, 10),
        ("time_to_first_token_seconds_bucket", {"cohort": "code", "le": "0.0025"}, 0),
        ("time_to_first_token_seconds_bucket", {"cohort": "code", "le": "0.005"}, 1),
        ("time_to_first_token_seconds_bucket", {"cohort": "code", "le": "+Inf"}, 2),
        ("time_to_first_token_seconds_sum", {"cohort": "code"}, 60.004),
        ("time_per_output_token_seconds_count", {"cohort": "code"}, 1),
        ("energy_joules_total", {"source": "counter"}, 2.5),
        ("energy_windows_dropped_total", {"reason": "reset"}, 3),
        ("prefix_cache_queries_total", {"cohort": "code"}, 300),
        ("prefix_cache_hits_total", {"cohort": "code"}, 144),
        ("preemptions_total", {"cohort": "chat"}, 2),
        ("plan_version", {}, 7),
        ("plan_age_seconds", {}, 1.5),
        ("plan_expired", {}, 0),
        ("running_sequences", {}, 3),
        ("kv_total_tokens", {}, 400),
    ],
)
def test_a_snapshot_is_shown_under_the_names_of_the_contract(name: str, labels: dict[str, str], value: float) -> None:
    assert of(exposition(SNAPSHOT), name, **labels) == pytest.approx(value)


def test_workers_add_up_without_a_label_of_their_own() -> None:
    samples = exposition(SNAPSHOT, replace(SNAPSHOT, worker="w-2"))
    assert of(samples, "drafts_total", cohort="code") == 14
    assert of(samples, "running_sequences") == 6
    assert of(samples, "workers") == 2


def test_the_plan_gauges_show_the_worker_that_is_furthest_behind() -> None:
    behind = replace(SNAPSHOT, worker="w-2", plan_version=5, plan_age_s=30.0, plan_expired=True)
    samples = exposition(SNAPSHOT, behind)
    assert [of(samples, n) for n in ("plan_version", "plan_age_seconds", "plan_expired")] == [5, 30.0, 1]


def test_the_same_snapshot_twice_adds_nothing() -> None:
    aggregator = MetricsAggregator()
    assert observe(aggregator, SNAPSHOT) == observe(aggregator, SNAPSHOT)


def test_a_restarted_worker_adds_to_what_it_had_counted_before() -> None:
    aggregator = MetricsAggregator()
    observe(aggregator, SNAPSHOT)
    assert of(observe(aggregator, replace(SNAPSHOT, epoch=2)), "drafts_total", cohort="code") == 14


def test_a_new_endpoint_counts_from_zero_what_workers_had_counted_for_another_one() -> None:
    aggregator = MetricsAggregator(started_at=100.0)
    aggregator.begin([SNAPSHOT])
    assert of(observe(aggregator, SNAPSHOT), "drafts_total", cohort="code") == 0
    more = replace(SNAPSHOT, totals={"code": replace(CODE, cells=(CELL, CELL))})
    assert of(observe(aggregator, more), "drafts_total", cohort="code") == 7


def test_a_counter_of_a_new_endpoint_is_there_from_the_start_so_that_its_first_rise_is_seen() -> None:
    aggregator = MetricsAggregator(started_at=100.0)
    lost = replace(SNAPSHOT, reports_lost=5)
    aggregator.begin([lost])
    assert of(observe(aggregator, lost), "reports_lost_total") == 0
    assert of(observe(aggregator, replace(lost, reports_lost=6)), "reports_lost_total") == 1


@pytest.mark.parametrize(("age_s", "counted"), [(3600, 0), (5, 7), (-5, 7)])
def test_a_worker_that_did_not_answer_as_the_endpoint_started_is_told_by_its_age(age_s: float, counted: int) -> None:
    aggregator = MetricsAggregator(started_at=10_000.0)
    late = replace(SNAPSHOT, epoch=int((10_000 - age_s) * 1e9))
    assert of(observe(aggregator, late), "drafts_total", cohort="code") == counted


def test_a_worker_that_went_away_takes_nothing_with_it() -> None:
    aggregator = MetricsAggregator()
    observe(aggregator, SNAPSHOT, replace(SNAPSHOT, worker="w-2"))
    assert of(observe(aggregator, SNAPSHOT), "time_to_first_token_seconds_count", cohort="code") == 4


def test_an_outdated_snapshot_takes_nothing_back() -> None:
    aggregator = MetricsAggregator()
    observe(aggregator, replace(SNAPSHOT, epoch=2))
    before = of(observe(aggregator, replace(SNAPSHOT, epoch=2, totals={})), "drafts_total", cohort="code")
    assert of(observe(aggregator, SNAPSHOT), "drafts_total", cohort="code") == before == 7


def test_cohorts_that_the_policy_does_not_name_share_one_label() -> None:
    samples = exposition(replace(SNAPSHOT, totals={c: replace(CODE, cohort=c) for c in ("code", "old", "older")}))
    assert of(samples, "drafts_total", cohort=OTHER_COHORTS) == 14


def test_energy_that_nothing_measured_is_absent_and_not_zero() -> None:
    assert not [n for n, _ in exposition(replace(SNAPSHOT, energy_uj={"none": 0})) if "energy_joules" in n]


def test_a_cohort_that_drafted_nothing_has_no_acceptance_length_and_a_mean_k_of_zero() -> None:
    plain = CohortWindow("code", (StepCell(0, 0, (StepCount(0, 0, False, 3),), 0.1),))
    samples = exposition(replace(SNAPSHOT, last_window={"code": plain}))
    assert of(samples, "num_speculative_tokens", cohort="code") == 0
    assert not [n for n, _ in samples if "acceptance_length" in n]


def test_without_workers_only_the_journal_is_shown() -> None:
    text = render([], JournalCounts({("code", "hold"): 3}, 2, 1, {"duplicate": 4}, True), ["code"])
    assert parse(text) == {
        ("kadence_decisions_total", (("cohort", "code"), ("reason", "hold"))): 3,
        ("kadence_ledger_rows_spooled", ()): 2,
        ("kadence_ledger_rows_lost_total", ()): 1,
        ("kadence_reports_refused_total", (("reason", "duplicate"),)): 4,
        ("kadence_controller_stepped_down", ()): 1,
        ("kadence_budget_unasked_total", ()): 0,
    }


def test_what_workers_refused_and_lost_adds_up_over_their_restarts() -> None:
    aggregator = MetricsAggregator()
    troubled = replace(SNAPSHOT, plans_refused={"epoch": 2, "future": 1}, plan_k_clamped=3, reports_lost=5)
    observe(aggregator, troubled)
    samples = observe(aggregator, replace(troubled, epoch=2))
    counted = [of(samples, "plans_refused_total", reason=reason) for reason in ("epoch", "future")]
    assert counted == [4, 2]
    assert [of(samples, "plan_k_clamped_total"), of(samples, "reports_lost_total")] == [6, 10]


def test_a_swap_of_drafters_is_visible() -> None:
    samples = exposition(replace(SNAPSHOT, drafter="ngram@1"), replace(SNAPSHOT, worker="w-2", drafter="ngram@2"))
    assert [of(samples, "drafter_info", drafter=drafter) for drafter in ("ngram@1", "ngram@2")] == [1, 1]


def window(sequence: int = 1, energy: int | None = None) -> WorkerWindow:
    return WorkerWindow(
        WindowId("w-1", 9, sequence), "tiny", "none", "cpu", 0.0, 1.0, 0.5, energy, "counter" if energy else "none",
        7, False, 1.5, 3, 1, 100, 400, (CODE,),
    )  # fmt: skip


def test_totals_of_a_worker_are_the_sum_of_its_windows() -> None:
    totals = WorkerTotals()
    for sequence, energy in ((1, 5), (2, None), (3, 7)):
        snapshot = totals.add(window(sequence, energy))
    assert snapshot.totals["code"].spec_steps == 21
    assert snapshot.last_window == {"code": CODE}
    assert snapshot.energy_uj == {"counter": 12}
    assert (snapshot.worker, snapshot.epoch, snapshot.drafter) == ("w-1", 9, "none")


def test_prometheus_own_linter_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool of Debian's prometheus package")
    text = render(
        [replace(SNAPSHOT, plans_refused={"epoch": 2}, drafter="ngram@1")],
        JournalCounts({("code", "raised"): 2}, 1, 0, {"late": 1}),
        ["code"],
    )
    linted = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=30, check=False)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, b"")


def test_the_canarys_checks_are_counted_by_cohort_and_drafter() -> None:
    wrong = CanaryCheck("r1", "w1", "code", "ngram@1", 100.0, "greedy", 40, 1, 2, 7.0, 1.0, 3, 90, 0.25)
    right = replace(wrong, near_ties=0, mismatches=0)
    totals = WorkerTotals()
    totals.add(window(), [wrong])
    samples = exposition(totals.add(window(2), [right, replace(right, cohort="gone")]))
    named = {"cohort": "code", "drafter": "ngram@1"}
    counts = ("checked", "mismatch", "near_tie", "seconds")
    assert [of(samples, f"canary_{name}_total", **named) for name in counts] == [2, 1, 1, 0.5]
    assert of(samples, "canary_checked_total", **{**named, "cohort": OTHER_COHORTS}) == 1


def test_an_active_alert_is_a_gauge() -> None:
    text = MetricsAggregator().render(JournalCounts(alerts=("canary:ngram@1",)))
    assert parse(text)["kadence_alerts_active", (("alert", "canary:ngram@1"),)] == 1


def test_the_k_that_was_planned_is_shown_beside_the_one_that_was_drafted() -> None:
    samples = exposition(SNAPSHOT)
    assert of(samples, "planned_speculative_tokens", cohort="code") == 4
    assert of(samples, "num_speculative_tokens", cohort="code") == pytest.approx(1.8)


def test_machine_time_is_shown_in_seconds_whatever_it_costs() -> None:
    used = replace(SNAPSHOT, use={"code": CohortUse(3_000_000_000, 500_000_000)}, idle_ns=2_000_000_000)
    samples = exposition(used, replace(used, worker="w-2", device="another"))
    shown = [of(samples, f"{name}_total", cohort="code") for name in ("busy_seconds", "wasted_speculation_seconds")]
    assert shown == [6.0, 1.0]
    assert of(samples, "idle_seconds_total") == 4.0


def test_a_cohorts_energy_is_absent_where_nothing_measured_it() -> None:
    measured = exposition(replace(SNAPSHOT, use={"code": CohortUse(1, 0, 1, 2_500_000)}))
    assert of(measured, "attributed_energy_joules_total", cohort="code") == 2.5
    dark = exposition(replace(SNAPSHOT, use={"code": CohortUse(1, 0)}))
    assert not [name for name, _ in dark if "attributed" in name]


def test_measured_energy_of_a_cohort_adds_up_over_windows_that_were_not() -> None:
    totals = WorkerTotals()
    for sequence, energy in ((1, 4_000_000), (2, None), (3, 2_000_000)):
        snapshot = totals.add(replace(window(sequence, energy), idle_energy_uj=None if energy is None else 500_000))
    assert snapshot.use["code"].uj == 5_000_000


def test_the_ends_of_a_cohorts_ladder_are_shown_with_its_tuner() -> None:
    policy = parse_policy(
        "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
        "    speculation: {tuner: threshold, ladder: [1, 2, 8], start: 2, fallback: 1}\n"
    )
    samples = parse(MetricsAggregator().render(JournalCounts(), policy))
    ends = [samples[f"kadence_ladder_{end}_tokens", (("cohort", "default"), ("tuner", "threshold"))]
            for end in ("min", "max")]  # fmt: skip
    assert ends == [1, 8]


def test_a_controller_that_never_answered_has_no_silence_and_not_zero() -> None:
    name = ("kadence_controller_silence_seconds", ())
    assert parse(MetricsAggregator().render(JournalCounts(silence_s=7.5)))[name] == 7.5
    assert name not in parse(MetricsAggregator().render(JournalCounts()))
