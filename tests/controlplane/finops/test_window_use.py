"""A window taken apart: prefill, verification and drafting by measured seconds, each by its own positions, and idle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.finops.attribution import Use, Wasted, WindowUse, nanoseconds, wasted_speculation, window_use
from controlplane.telemetry import CohortWindow, LatencyCell, StepCell, StepCount, TenantUse, WindowId, WorkerWindow
from controlplane.window_problems import window_problem

MS = 1_000_000
Make = Callable[..., WorkerWindow]

# 3 steps of 4 drafts, half of them kept; 1 step of 4 drafts, all kept; 20 plain steps.
X = TenantUse("x", 30, 15, 12, 12, 6, input_tokens=30, emitted_tokens=10, requests=1)
Y = TenantUse("y", 0, 5, 8, 4, 4, input_tokens=0, emitted_tokens=5, requests=0)
CODE = CohortWindow(
    "code",
    (StepCell(0, 4, (StepCount(4, 2, False, 3), StepCount(4, 4, False, 1)), 0.3),),
    prefill_positions=30,
    draft_positions=20,
    first_tokens=1,
    requests_finished=1,
    tenants=(X, Y),
)
PLAIN = CohortWindow("plain", (StepCell(0, 0, (StepCount(0, 0, False, 20),), 0.2),), prefill_positions=10)
LATENCY = (LatencyCell(1, 1, 20, 0.2), LatencyCell(1, 5, 4, 0.3, draft_seconds=0.1))


@pytest.fixture
def make(make_worker_window: Make) -> Make:
    """0.8 of 1 s busy: 0.3 s prefill, 0.4 s verification, 0.1 s drafting; cohorts code and plain."""

    def window(**changes: Any) -> WorkerWindow:
        return make_worker_window(**{"cohorts": (CODE, PLAIN), "busy_s": 0.8, "latency": LATENCY, **changes})

    return window


def ns(use: WindowUse) -> dict[tuple[str, str | None, str], int]:
    return {u[:3]: u.ns for u in use.uses}


def uj(use: WindowUse) -> dict[tuple[str, str | None, str], int | None]:
    return {u[:3]: u.uj for u in use.uses}


def test_the_window_of_these_tests_is_one_that_is_let_in(make: Make) -> None:
    assert window_problem(make(energy_uj=1_000_000, idle_energy_uj=200_000)) is None


def test_busy_time_goes_by_measured_seconds_and_then_by_the_positions_of_each_pool(make: Make) -> None:
    use = window_use(make())
    assert ns(use) == {
        ("code", "x", "input"): 225 * MS,  # 30 of 40 prefill positions
        ("code", "x", "output"): (150 + 60) * MS,  # 15 of 40 verified positions, 12 of 20 drafted ones
        ("code", "y", "output"): (50 + 40) * MS,
        ("plain", None, "input"): 75 * MS,
        ("plain", None, "output"): 200 * MS,
    }
    assert (use.idle_ns, use.total_ns) == (200 * MS, 1000 * MS)


def test_rejected_positions_and_their_drafting_are_wasted(make: Make) -> None:
    # Of x, 6 of 15 verified positions and 6 of 12 drafted tokens; y kept all.
    wasted = {u[:3]: u.wasted_ns for u in window_use(make()).uses if u.wasted_ns}
    assert wasted == {("code", "x", "output"): (60 + 30) * MS}


def test_tokens_are_those_of_the_tenant(make: Make) -> None:
    tokens = [(*u[:3], u.tokens) for u in window_use(make()).uses]
    assert tokens == [
        ("code", "x", "input", 30),
        ("code", "x", "output", 10),
        ("code", "y", "output", 5),
        ("plain", None, "input", 0),
        ("plain", None, "output", 20),
    ]


def test_energy_over_the_idle_power_is_split_as_busy_time_is(make: Make) -> None:
    use = window_use(make(energy_uj=1_000_000, energy_source="counter", idle_energy_uj=360_000))
    assert uj(use) == {
        ("code", "x", "input"): 180_000,
        ("code", "x", "output"): 168_000,
        ("code", "y", "output"): 72_000,
        ("plain", None, "input"): 60_000,
        ("plain", None, "output"): 160_000,
    }
    assert (use.idle_uj, use.total_uj) == (360_000, 1_000_000)


def test_without_a_known_idle_power_energy_is_idle_as_time_is(make: Make) -> None:
    use = window_use(make(energy_uj=1000, energy_source="counter"))
    assert (sum(u.uj or 0 for u in use.uses), use.idle_uj) == (800, 200)


def test_wasted_energy_is_the_share_that_wasted_time_is(make: Make) -> None:
    use = window_use(make(energy_uj=1000, energy_source="counter"))
    assert {u[:3]: u.wasted_uj for u in use.uses if u.wasted_uj} == {("code", "x", "output"): 90}


def test_energy_that_was_not_measured_stays_unknown(make: Make) -> None:
    use = window_use(make())
    assert {(u.uj, u.wasted_uj) for u in use.uses} == {(None, None)}
    assert (use.idle_uj, use.total_uj) == (None, None)


def test_a_drafter_that_computes_nothing_is_split_by_the_tokens_it_found(make: Make) -> None:
    ngram = replace(CODE, draft_positions=0, tenants=(X._replace(draft_positions=0), Y._replace(draft_positions=0)))
    use = window_use(make(cohorts=(ngram,)))
    # 400 ms of verification by 15 and 5 positions, 100 ms of drafting by 12 and 4 tokens.
    assert ns(use)["code", "x", "output"] == (300 + 75) * MS
    assert ns(use)["code", "y", "output"] == (100 + 25) * MS


def test_looking_for_drafts_and_finding_none_is_a_cost_of_the_step_and_not_wasted(make: Make) -> None:
    use = window_use(make(cohorts=(PLAIN,), latency=(LatencyCell(1, 1, 20, 0.5, draft_seconds=0.1),)))
    assert [(u.direction, u.ns, u.wasted_ns) for u in use.uses] == [("input", 300 * MS, 0), ("output", 500 * MS, 0)]


def test_steps_without_a_draft_do_not_add_to_what_drafts_cost(make: Make) -> None:
    """An n-gram look-up in silent steps is nobody's draft: else the one tenant with a draft would pay them all."""
    ngram = replace(CODE, draft_positions=0, tenants=())
    silent = LatencyCell(1, 1, 20, 0.2, draft_seconds=0.1)
    drafting = LatencyCell(1, 5, 4, 0.3, draft_seconds=0.016)
    use = window_use(make(cohorts=(ngram, replace(PLAIN, prefill_positions=0)), latency=(silent, drafting)))
    # 500 - 16 ms by 20 and 20 positions.
    assert ns(use)["plain", None, "output"] == 242 * MS
    assert ns(use)["code", None, "output"] == (242 + 16) * MS


def test_drafting_that_gave_no_token_is_wasted_whole(make: Make) -> None:
    caught_up = CohortWindow("code", PLAIN.cells, draft_positions=7)
    (use,) = window_use(make(cohorts=(caught_up,), busy_s=0.5, latency=(LatencyCell(1, 1, 20, 0.5, 0, 0.1),))).uses
    assert (use.ns, use.wasted_ns) == (500 * MS, 100 * MS)


def test_a_window_of_prefill_alone_is_input(make: Make) -> None:
    long_prompt = CohortWindow("code", prefill_positions=128, tenants=(TenantUse("x", 128, input_tokens=1000),))
    use = window_use(make(cohorts=(long_prompt,), latency=()))
    assert use.uses == (Use("code", "x", "input", 800 * MS, 0, None, None, 1000),)


def test_the_token_that_prefill_yields_is_output_and_its_time_is_input(make: Make) -> None:
    use = TenantUse("x", 128, input_tokens=128, emitted_tokens=1)
    answered = CohortWindow("code", prefill_positions=128, first_tokens=1, tenants=(use,))
    uses = window_use(make(cohorts=(answered,), latency=())).uses
    assert [(u.direction, u.ns, u.tokens) for u in uses] == [("input", 800 * MS, 128), ("output", 0, 1)]


def test_steps_without_prefill_have_all_busy_time(make: Make) -> None:
    """What a step takes outside its decode part (admission, sampling) has no prefill to go to."""
    (use,) = window_use(make(cohorts=(replace(PLAIN, prefill_positions=0),))).uses
    assert (use.direction, use.ns, use.wasted_ns) == ("output", 800 * MS, 0)


def test_a_window_without_positions_is_idle_as_a_whole(make: Make) -> None:
    window = make(
        cohorts=(CohortWindow("code", requests_failed=1),), energy_uj=900, energy_source="counter", idle_energy_uj=500
    )
    assert window_use(window) == WindowUse((), 1000 * MS, 900, 1000 * MS, 900)


def test_step_seconds_beyond_the_busy_time_are_cut(make: Make) -> None:
    use = window_use(make(busy_s=0.3))
    assert (ns(use)["code", "x", "input"], ns(use)["plain", None, "input"]) == (0, 0)
    # 100 ms drafting stay, 200 ms are left for verification.
    assert ns(use)["code", "x", "output"] == (75 + 60) * MS
    assert use.idle_ns == 700 * MS


def test_a_clock_that_was_set_back_leaves_no_time_and_counts_the_tokens(make: Make) -> None:
    window = make(energy_uj=900, energy_source="counter")
    use = window_use(replace(window, ended_at=window.started_at - 5.0, busy_s=0.0))
    assert (use.total_ns, use.idle_ns, use.idle_uj) == (0, 0, 900)
    assert sum(u.tokens for u in use.uses) == 30 + 10 + 5 + 20


def test_windows_without_step_times_go_by_positions(make: Make) -> None:
    """Those of workers before they sent step times: 10 + 20 positions beside 30 + 20 + 20."""
    use = window_use(make(busy_s=0.5, latency=()))
    assert ns(use)["plain", None, "input"] == 50 * MS
    assert ns(use)["plain", None, "output"] == 100 * MS
    assert sum(n for (cohort, *_), n in ns(use).items() if cohort == "code") == 350 * MS


def test_an_old_workers_cohort_is_billed_to_no_tenant(make: Make) -> None:
    old = window_use(make(cohorts=(replace(CODE, tenants=()), PLAIN)))
    new = ns(window_use(make()))
    assert ns(old)["code", None, "output"] == new["code", "x", "output"] + new["code", "y", "output"]
    assert {(u.direction, u.tokens) for u in old.uses if u.cohort == "code"} == {("input", 0), ("output", 15)}


def test_what_speculation_wasted_is_said_in_money_and_joules(make: Make) -> None:
    uses = window_use(make(energy_uj=1000, energy_source="counter")).uses
    # 90 ms at 3.60 an hour: a thousandth a second.
    assert wasted_speculation(uses, 3_600_000_000) == {
        "code": Wasted(90 * MS, 90_000, 90),
        "plain": Wasted(0, 0, 0),
    }


def test_without_a_price_or_a_meter_what_was_wasted_is_unknown_and_not_nothing(make: Make) -> None:
    assert wasted_speculation(window_use(make()).uses, None)["code"] == Wasted(90 * MS, None, None)


COUNTS = st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.integers(1, 40)).map(
    lambda c: StepCount(c[0], min(c[0], c[1]), c[2] and 0 < c[1] <= c[0], c[3])
)
SECONDS = st.floats(0, 2, allow_nan=False)


def of_one(tenant: str | None, counts: list[StepCount], numbers: tuple[int, int, int, int, int]) -> CohortWindow:
    """A cohort in which only this tenant was active."""
    prefill, drafting, first, ended, asked = numbers
    cells = tuple(StepCell(0, k, (count,), 0.1) for k, count in enumerate(counts))
    window = CohortWindow("", cells, prefill, drafting, first, ended, ended)
    return replace(window, tenants=(window.as_one_tenant._replace(tenant=tenant, input_tokens=asked),))


NUMBERS = st.tuples(*(st.integers(0, 300) for _ in range(5)))
PARTS = st.builds(of_one, st.sampled_from([None, "x", "y"]), st.lists(COUNTS, max_size=3), NUMBERS)


def merged(name: str, parts: list[CohortWindow]) -> CohortWindow:
    window = CohortWindow(name)
    for part in parts:
        window = window.merge(replace(part, cohort=name))
    return window


COHORTS = st.lists(st.lists(PARTS, max_size=4), max_size=4)
CELLS = st.builds(
    LatencyCell, st.integers(1, 4), st.integers(1, 20), st.integers(1, 9), SECONDS, st.just(0), st.floats(0, 0.5)
)
ENERGY = st.none() | st.tuples(st.integers(0, 10**9), st.none() | st.integers(0, 10**9))


@st.composite
def windows(draw: st.DrawFn) -> WorkerWindow:
    """Any: known and unknown tenants, step times that fit and that do not, clocks that went back."""
    cohorts = [merged(f"c{i}", parts) for i, parts in enumerate(draw(COHORTS))]
    energy = draw(ENERGY)
    return WorkerWindow(
        id=WindowId("w", 1, 1),
        model="m",
        drafter="d",
        device="x",
        started_at=10.0,
        ended_at=10.0 + draw(st.floats(-1, 3, allow_nan=False)),
        busy_s=draw(SECONDS),
        energy_uj=None if energy is None else energy[0],
        energy_source="none" if energy is None else "counter",
        idle_energy_uj=None if energy is None or energy[1] is None else min(energy),
        plan_version=1,
        plan_expired=False,
        plan_age_s=0.0,
        running=0,
        waiting=0,
        kv_used=0,
        kv_total=0,
        cohorts=tuple(replace(c, tenants=()) if draw(st.booleans()) else c for c in cohorts),
        latency=tuple(draw(st.lists(CELLS, max_size=3))),
    )


@settings(deadline=None, max_examples=60)
@given(windows())
def test_uses_and_idle_are_the_window_to_the_last_nanosecond_and_microjoule(window: WorkerWindow) -> None:
    use = window_use(window)
    assert use.total_ns == nanoseconds(window.seconds) == sum(u.ns for u in use.uses) + use.idle_ns
    assert all(0 <= u.wasted_ns <= u.ns for u in use.uses)
    assert use.idle_ns >= 0
    assert use.total_uj == window.energy_uj
    if window.energy_uj is None:
        assert {u.uj for u in use.uses} <= {None}
        assert use.idle_uj is None
    else:
        assert use.idle_uj is not None
        assert use.idle_uj >= 0
        assert sum(u.uj or 0 for u in use.uses) + use.idle_uj == window.energy_uj
        assert all(0 <= (u.wasted_uj or 0) <= (u.uj or 0) for u in use.uses)


@settings(deadline=None, max_examples=60)
@given(windows())
def test_every_token_is_in_one_use_of_its_tenant_and_direction(window: WorkerWindow) -> None:
    uses = window_use(window).uses
    assert len({u[:3] for u in uses}) == len(uses)
    expected = dict(expected_tokens(window))
    assert {u[:3]: u.tokens for u in uses if u.tokens} == expected
    assert sum(u.tokens for u in uses if u.direction == "output") == sum(c.emitted_tokens for c in window.cohorts)


def expected_tokens(window: WorkerWindow) -> Iterator[tuple[tuple[str, str | None, str], int]]:
    for cohort in window.cohorts:
        for use in cohort.by_tenant:
            for direction, tokens in (("input", use.input_tokens), ("output", use.emitted_tokens)):
                if tokens:
                    yield (cohort.cohort, use.tenant, direction), tokens


@settings(deadline=None, max_examples=40)
@given(st.lists(PARTS, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_tenants_add_up_to_their_cohort_in_any_order(parts: list[CohortWindow], order: Any) -> None:
    window = merged("c", parts)
    shuffled = order.sample(parts, len(parts))
    assert merged("c", shuffled).tenants == window.tenants
    sums = [sum(counts) for counts in list(zip(*window.tenants, strict=True))[1:]] or [0] * 8
    whole = window.as_one_tenant
    asked = sum(part.tenants[0].input_tokens for part in parts)
    assert tuple(sums) == whole._replace(input_tokens=asked)[1:]
