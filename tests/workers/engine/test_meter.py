"""A window worked out by hand, and what makes a window trustworthy: identity, gap-free intervals, no negative time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.telemetry import LatencyCell, LatencyHistogram, RankCount, StepCell, StepCount, TenantUse, WindowId
from workers.commit import Committed
from workers.detokenizer import Detokenizer
from workers.energy.base import EnergyReading
from workers.latency_profile import StepSize
from workers.meter import Gauges, Meter
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.token_tree import TokenTree

GAUGES = Gauges(plan_version=7, plan_expired=True, plan_age_s=1.5, running=2, waiting=3, kv_used=40, kv_total=512)


@pytest.fixture
def meter(clock) -> Meter:
    return Meter("worker", 9, "model", "ngram", "cpu", clock)


@pytest.fixture
def make_sequence(tokenizer):
    def make(cohort, tenant=None):
        request = EngineRequest("r", (3, 4), SamplingParams(20), cohort, tenant)
        return Sequence(request, [3, 4, 5], 0, Detokenizer(tokenizer))

    return make


def committed(sequence, k, drafted, accepted, ended=False, from_prefill=False):
    token_ids = (5,) * (accepted + (not ended))
    return Committed(sequence, token_ids, "", drafted, accepted, ended, from_prefill, k, None)


def test_a_window_worked_out_by_hand(meter, clock, make_sequence) -> None:
    a, b = make_sequence("a"), make_sequence("b")
    for sequence in (a, a, b):
        meter.count_start(sequence)
    meter.count_prefill(a, 128, 0.25)
    # Two sequences at a planned K of 4, of which one drafts only 2 tokens; a third one's prompt completes.
    step = [committed(a, 4, 4, 1), committed(b, 4, 2, 2, ended=True), committed(a, 0, 0, 0, from_prefill=True)]
    meter.count_step(step, [5, 3], 0.125)
    meter.count_step([committed(a, 4, 4, 1), committed(b, 4, 4, 4)], [5, 5], 0.0625)
    meter.count_step([committed(a, 0, 0, 0)], [0], 0.03125)
    meter.count_first_token(a, 0.004)
    meter.count_end(a, 0.04, failed=False)
    meter.count_end(b, None, failed=True)
    clock.now += 1.0
    window = meter.close(GAUGES)

    one, two = 0, 1  # indices of the load buckets for one and for two running sequences
    assert [c.cohort for c in window.cohorts] == ["a", "b"]
    of_a, of_b = window.cohorts
    assert of_a.cells == (
        StepCell(one, 0, (StepCount(0, 0, False, 1),), 0.03125),
        StepCell(two, 4, (StepCount(4, 1, False, 2),), 0.1875),
    )
    assert of_b.cells == (StepCell(two, 4, (StepCount(2, 2, True, 1), StepCount(4, 4, False, 1)), 0.1875),)
    assert (of_a.prefill_positions, of_a.draft_positions, of_b.draft_positions) == (128, 10, 8)
    assert (of_a.first_tokens, of_a.requests_started, of_a.requests_finished, of_a.requests_failed) == (1, 2, 1, 0)
    assert (of_b.first_tokens, of_b.requests_started, of_b.requests_finished, of_b.requests_failed) == (0, 1, 0, 1)
    assert (of_a.ttft, of_a.tpot) == (LatencyHistogram().observe(0.004), LatencyHistogram().observe(0.04))
    # a: 1 from prefill, 2 x (1 + 1), 1 plain; b: 2 that ended inside the draft, 4 + 1.
    assert (of_a.emitted_tokens, of_b.emitted_tokens) == (6, 7)
    assert (of_a.verify_positions, of_b.verify_positions) == (11, 8)
    assert window.positions == (128 + 11 + 10) + (8 + 8)
    assert window.busy_s == 0.25 + 0.125 + 0.0625 + 0.03125
    # Sequences and positions of a step: 5 + 3, 5 + 5, and 1.
    assert window.latency == (
        LatencyCell(1, 1, 1, 0.03125),
        LatencyCell(2, 8, 1, 0.125),
        LatencyCell(2, 10, 1, 0.0625),
    )


def test_a_cohort_is_taken_apart_by_tenant(meter, make_sequence) -> None:
    ours, theirs, nobodys = make_sequence("a", "x"), make_sequence("a", "y"), make_sequence("a")
    meter.count_prefill(ours, 128, 0.25, 140)
    meter.count_prefill(ours, 12, 0.25)
    meter.count_first_token(ours, 0.5)
    meter.count_step([committed(ours, 4, 4, 1), committed(theirs, 2, 2, 2, ended=True)], [5, 3], 0.125)
    meter.count_step([committed(nobodys, 0, 0, 0), committed(ours, 4, 4, 4)], [0, 4], 0.125)
    meter.count_shadow("a", 1, 4, 2, 1, False)
    meter.count_end(theirs, 0.04, failed=True)
    (cohort,) = meter.close(GAUGES).cohorts
    assert cohort.tenants == (
        TenantUse(None, verify_positions=1, emitted_tokens=1),
        TenantUse("x", 140, 10, 9, 8, 5, input_tokens=140, emitted_tokens=1 + 2 + 5),
        TenantUse("y", 0, 3, 3, 2, 2, emitted_tokens=2, requests=1),
    )
    assert (cohort.prefill_positions, cohort.draft_positions, cohort.first_tokens) == (140, 12, 1)


def test_a_tenant_for_whom_nothing_was_done_does_not_travel(meter, make_sequence) -> None:
    meter.count_start(make_sequence("a", "x"))
    (cohort,) = meter.close(GAUGES).cohorts
    assert (cohort.requests_started, cohort.tenants) == (1, ())


def test_a_window_says_whose_it_is_and_what_was_obeyed(meter, clock) -> None:
    clock.now += 1.0
    window = meter.close(GAUGES)
    assert (window.id, window.model, window.drafter, window.device) == (
        WindowId("worker", 9, 1), "model", "ngram", "cpu",
    )  # fmt: skip
    assert (window.plan_version, window.plan_expired, window.plan_age_s) == (7, True, 1.5)
    assert (window.running, window.waiting, window.kv_used, window.kv_total) == (2, 3, 40, 512)


def test_windows_follow_each_other_without_a_gap(meter, clock) -> None:
    windows = []
    for seconds in (1.0, 0.5, 2.0):
        clock.now += seconds
        windows.append(meter.close(GAUGES))
    assert [w.id.sequence for w in windows] == [1, 2, 3]
    assert [(w.started_at, w.ended_at) for w in windows] == [(1000.0, 1001.0), (1001.0, 1001.5), (1001.5, 1003.5)]


def test_nothing_is_counted_twice(meter, clock, make_sequence) -> None:
    a = make_sequence("a")
    meter.count_step([committed(a, 4, 4, 1)], [0], 0.125)
    clock.now += 1.0
    meter.close(GAUGES)
    clock.now += 1.0
    window = meter.close(GAUGES)
    assert (window.cohorts, window.latency, window.busy_s) == ((), (), 0.0)


def test_a_window_is_never_busier_than_it_is_long(meter, clock, make_sequence) -> None:
    meter.count_step([committed(make_sequence("a"), 0, 0, 0)], [0], 1.5)
    clock.now += 1.0
    assert meter.close(GAUGES).busy_s == 1.0


def test_a_clock_that_is_set_back_gives_no_negative_time(meter, clock, make_sequence) -> None:
    meter.count_step([committed(make_sequence("a"), 0, 0, 0)], [0], 0.5)
    clock.now -= 10.0
    window = meter.close(GAUGES)
    assert (window.seconds, window.busy_s) == (0.0, 0.0)
    clock.now += 1.0
    assert meter.close(GAUGES).seconds == 1.0


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_a_clock_that_jumps_an_hour_bills_no_hour_that_did_not_pass(clock, make_sequence, jump) -> None:
    passed, asked = type(clock)(), []

    def read(now, is_idle):
        asked.append(now)
        return EnergyReading(1, "counter")

    meter = Meter("worker", 9, "model", "ngram", "cpu", clock, read, passed)
    meter.count_step([committed(make_sequence("a"), 0, 0, 0)], [0], 0.5)
    passed.now += 1.0
    clock.now += 1.0 + jump
    window = meter.close(GAUGES)
    assert (window.started_at, window.ended_at, window.busy_s) == (1000.0, 1001.0, 0.5)
    passed.now += 1.0
    clock.now += 1.0
    after = meter.close(GAUGES)
    assert (after.started_at, after.ended_at) == (1001.0 + jump, 1002.0 + jump)
    assert asked == [1001.0, 1002.0]


def test_a_clock_that_is_slewed_leaves_no_gap_between_windows(clock) -> None:
    passed = type(clock)()
    meter = Meter("worker", 9, "model", "ngram", "cpu", clock, elapsed=passed)
    passed.now += 1.0
    clock.now += 1.125
    first = meter.close(GAUGES)
    clock.now += 1.0
    passed.now += 1.0
    assert first.ended_at == meter.close(GAUGES).started_at == 1001.125


def test_energy_that_cannot_be_measured_is_none(meter) -> None:
    window = meter.close(GAUGES)
    assert (window.energy_uj, window.energy_source) == (None, "none")


def test_energy_is_read_once_for_each_window(clock) -> None:
    readings = iter([EnergyReading(5, "counter", 2), EnergyReading(7, "power")])
    meter = Meter("worker", 9, "model", "ngram", "cpu", clock, lambda now, is_idle: next(readings))
    windows = [meter.close(GAUGES) for _ in range(2)]
    seen = [(w.energy_uj, w.energy_source, w.idle_energy_uj) for w in windows]
    assert seen == [(5, "counter", 2), (7, "power", None)]


@pytest.fixture
def asked(clock):
    """A meter, and what its energy reader was asked: (now, is_idle)."""
    calls = []

    def read(now, is_idle):
        calls.append((now, is_idle))
        return EnergyReading(1, "counter")

    return Meter("worker", 9, "model", "ngram", "cpu", clock, read), calls


QUIET = replace(GAUGES, running=0, waiting=0)


def test_idle_power_is_learned_only_where_nothing_was_computed(asked, clock, make_sequence) -> None:
    meter, calls = asked
    clock.now += 1.0
    meter.close(QUIET)
    meter.count_step([committed(make_sequence("a"), 0, 0, 0)], [0], 0.5)
    meter.close(QUIET)
    meter.close(QUIET)
    assert calls == [(1001.0, True), (1001.0, False), (1001.0, True)]


@pytest.mark.parametrize("gauges", [replace(QUIET, running=1), replace(QUIET, waiting=1)])
def test_a_window_with_requests_in_hand_is_not_idle(asked, gauges) -> None:
    meter, calls = asked
    meter.close(gauges)
    assert calls[0][1] is False


def test_a_rehearsal_is_not_idle_either(asked, make_engine) -> None:
    engine = make_engine(0, "none")
    engine.meter, calls = asked
    engine.rehearse(StepSize(1, 0, 8))
    engine.close_window()
    engine.close_window()
    assert [is_idle for _, is_idle in calls] == [False, True]


def test_the_engines_gauges_are_its_state(make_engine, ask, clock) -> None:
    engine = make_engine(0, "none", slots=2, eos=(), clock=clock)
    for i in range(3):
        engine.submit(ask([3, 4, 5, 6], f"{i}"))
    engine.step()
    engine.step()
    window = engine.close_window()
    # Each of those that run holds one block of 16.
    assert (window.running, window.waiting, window.kv_used, window.kv_total) == (2, 1, 16 + 16, 2 * 256)


def test_acceptance_probabilities_are_summed_over_the_examined_positions(meter, clock, make_sequence) -> None:
    a = make_sequence("a")
    first = replace(committed(a, 4, 4, 1), acceptance=(0.9, 0.25))
    second = replace(committed(a, 4, 3, 3), acceptance=(0.5, 0.75, 0.125))
    for step in (first, second):
        meter.count_step([step], [0], 0.1)
    (cell,) = meter.close(GAUGES).cohorts[0].cells
    assert (cell.overlap, cell.overlap_steps) == ((1.4, 1.0, 0.125), (2, 2, 1))


def test_a_latency_cell_knows_how_much_was_context_and_drafting(meter, make_sequence) -> None:
    a = make_sequence("a")
    meter.count_step([committed(a, 4, 4, 1)], [0], 0.5, draft_seconds=0.125, context=10)
    meter.count_step([committed(a, 4, 4, 1)], [0], 0.5, draft_seconds=0.25, context=12)
    assert meter.close(GAUGES).latency == (LatencyCell(1, 5, 2, 1.0, 22, 0.375),)


def test_the_engine_gives_it_the_context_before_the_step(make_engine, ask) -> None:
    engine = make_engine(0, "none", eos=())
    engine.submit(ask([3, 4, 5], "a"))
    engine.submit(ask([3, 4], "b"))
    for _ in range(3):
        engine.step()
    # Both prompts are computed in the first step, each with its first token; then both decode, twice.
    assert [(c.sequences, c.context) for c in engine.close_window().latency] == [(2, (4 + 3) + (5 + 4))]


def test_drafting_is_timed_within_the_step(make_engine, ask, drain) -> None:
    engine = make_engine(4, "target", eos=())
    engine.submit(ask([3, 4, 5], max_tokens=40))
    drain(engine)
    (cell,) = (c for c in engine.close_window().latency if c.positions == 5)
    assert 0.0 < cell.draft_seconds < cell.seconds


def test_a_closed_window_carries_its_cells_as_columns(meter, make_sequence) -> None:
    meter.count_step([committed(make_sequence("a"), 4, 4, 1)], [0], 0.5)
    meter.count_shadow("a", 1, 4, 2, 1, False)
    columns = meter.close(GAUGES).columns
    assert (columns.cohorts, columns.drafted.tolist(), columns.is_shadow.tolist()) == (("a",), [4, 2], [False, True])


def test_a_shadow_is_no_step(meter, make_sequence) -> None:
    meter.count_shadow("a", 1, 4, 2, 2, True)
    window = meter.close(GAUGES)
    (cohort,) = window.cohorts
    assert cohort.shadow == (StepCell(1, 4, (StepCount(2, 2, True, 1),), 0.0),)
    assert (cohort.cells, cohort.emitted_tokens, window.positions, window.busy_s) == ((), 0, 0, 0.0)


TREE = TokenTree((-1, -1, 0, 1))
"""The first path is 0, 2."""


def of_tree(sequence, nodes, tried, ended=False):
    done = committed(sequence, 4, 4, len(nodes), ended=ended)
    return replace(done, tree=TREE, nodes=nodes, tried=tried)


def test_a_trees_children_are_counted_by_depth_and_rank(meter, make_sequence) -> None:
    sequence = make_sequence("a")
    meter.count_step([of_tree(sequence, (1, 3), (2, 1))], [1], 0.1)
    meter.count_step([of_tree(sequence, (), (2,))], [1], 0.1)
    (cohort,) = meter.close(GAUGES).cohorts
    (cell,) = cohort.cells
    assert (cell.tree, cell.counts) == (TREE.parents, (StepCount(4, 0, False, 1), StepCount(4, 2, False, 1)))
    assert cell.ranks == (RankCount(0, 0, 2, 0), RankCount(0, 1, 2, 1), RankCount(1, 0, 1, 1))
    assert [cohort.drafted_at(position) for position in range(4)] == [2, 2, 0, 0]


@pytest.mark.parametrize(
    ("nodes", "tried", "ended", "accepted"),
    [
        ((0, 2), (1, 1), False, 2),
        ((0,), (1, 1), False, 1),
        ((1, 3), (2, 1), False, 0),
        ((), (2,), False, 0),
        ((0,), (1,), True, 1),
        ((1,), (2,), True, 0),
    ],
)
def test_a_trees_first_path_is_evidence_of_a_chain(meter, make_sequence, nodes, tried, ended, accepted) -> None:
    meter.count_step([of_tree(make_sequence("a"), nodes, tried, ended)], [1], 0.1)
    (cohort,) = meter.close(GAUGES).cohorts
    says_no_more = ended and accepted == len(nodes)
    assert cohort.shadow == (StepCell(0, 2, (StepCount(2, accepted, says_no_more, 1),), 0.0),)
