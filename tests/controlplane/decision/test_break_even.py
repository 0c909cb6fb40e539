"""Break-even and what-if on beliefs formed from made windows whose hazards and step times are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.believed import Believed, believe, covering, scaled
from controlplane.decision.break_even import Z95, BreakEven, break_even, even_acceptance, left_on_the_table
from controlplane.decision.decide import DecisionState, Observation, observe
from controlplane.decision.observation import RUNGS
from controlplane.decision.what_if import Brings, Change, Machine, asked_steps, brings, extrapolations
from controlplane.policy import CohortPolicy, Guard, Match, Policy, Speculation
from controlplane.telemetry import (
    LOAD_BUCKETS,
    MAX_K,
    CohortWindow,
    ProfileCell,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
)

T = TypeVar("T")

PLAIN_S, POSITION_S = 0.010, 0.002
"""A step beside n sequences takes 10 ms, and 2 ms more for every draft token of a sequence."""


def sure(found: T | None) -> T:
    assert found is not None
    return found


def sure_break_even(believed: Believed) -> BreakEven:
    return sure(break_even(believed))


def sure_brings(believed: Believed, machine: Machine, change: Change) -> Brings:
    return sure(brings(believed, machine, change))


def profile(ks: Sequence[int] = (0, 1, 4), loads: Sequence[int] = (1, 8)) -> tuple[ProfileCell, ...]:
    return tuple(ProfileCell(n, k, 0, PLAIN_S + POSITION_S * k, 0.0) for n in loads for k in ks)


def cohort_window(name: str, k: int, kept: Sequence[int], *, bucket: int = 0) -> CohortWindow:
    """kept[a]: steps that kept `a` of the k draft tokens."""
    counts = tuple(StepCount(k, a, False, steps) for a, steps in enumerate(kept) if steps)
    return CohortWindow(name, (StepCell(bucket, k, counts, sum(kept) * (PLAIN_S + POSITION_S * k)),))


def window(at: float, *cohorts: CohortWindow, joules: float | None = None) -> WorkerWindow:
    return WorkerWindow(
        id=WindowId("w0", 1, int(at)), model="m", drafter="draft@1", device="gpu", started_at=at - 1, ended_at=at,
        busy_s=0.9, energy_uj=None if joules is None else int(joules * 1e6),
        energy_source="none" if joules is None else "counter", plan_version=1, plan_expired=False, plan_age_s=0.0,
        running=1, waiting=0, kv_used=0, kv_total=1, cohorts=cohorts,
    )  # fmt: skip


def policy(*names: str, ladder: tuple[int, ...] = (0, 1, 2, 4)) -> Policy:
    speculation = Speculation("goodput", 0.5, ladder, start=0, fallback=0)
    return Policy(1, tuple(CohortPolicy(n, Match(), speculation, guard=Guard()) for n in names), None, "r", "")


def made(kept: Sequence[int] = (40, 20, 10, 10, 20), *, k: int = 4, bucket: int = 0, ticks: int = 20) -> Believed:
    """20 ticks of 100 steps at K = 4."""
    return believe(
        [(float(t), [window(t, cohort_window("code", k, kept, bucket=bucket))]) for t in range(1, ticks + 1)],
        policy("code"),
        profile(),
    )


def test_the_belief_is_the_one_that_the_control_loop_forms():
    windows = [window(t, cohort_window("code", 4, (40, 20, 10, 10, 20))) for t in range(1, 6)]
    state = DecisionState.start(policy("code"))
    for w in [replace(windows[0], profile=profile()), *windows[1:]]:
        state = observe(state, Observation.of([w], ("code",)), w.ended_at)
    again = believe([(w.ended_at, [w]) for w in windows], policy("code"), profile())
    np.testing.assert_array_equal(again.outlook.emitted, state.estimate.outlook().emitted)
    np.testing.assert_array_equal(sure(again.state.times).verifying, sure(state.times).verifying)


def test_steps_seconds_and_tokens_are_summed_by_planned_k():
    believed = made(ticks=2)
    assert believed.steps[0, 0, 4] == believed.steps.sum() == 200
    assert believed.seconds[0, 0, 4] == pytest.approx(200 * 0.018)
    assert believed.emitted[0, 0, 4] == 2 * (40 * 1 + 20 * 2 + 10 * 3 + 10 * 4 + 20 * 5)


def test_a_cohort_that_no_policy_names_is_believed_in_with_every_rung():
    covered = covering(policy("code"), ["code", "lost"], 3)
    assert [c.name for c in covered.cohorts] == ["code", "lost"]
    assert covered.cohorts[1].speculation.ladder == (0, 1, 2, 3)
    assert covering(None, ["b", "a"], 0).cohorts[0].speculation.ladder == (0, 1)


def test_what_a_rung_must_bring_is_its_step_time_over_a_plain_steps():
    even = sure_break_even(made())
    rung = int(even.rung[0, 0])
    assert rung > 0
    assert even.needed[0, 0] == pytest.approx((PLAIN_S + POSITION_S * rung) / PLAIN_S, rel=0.02)


def test_one_draft_token_pays_from_the_acceptance_that_its_time_costs():
    # 2 ms on top of 10 ms: 1 + a > 1.2, so 20 %.
    believed = believe(
        [(float(t), [window(t, cohort_window("code", 1, (50, 50)))]) for t in range(1, 30)],
        policy("code", ladder=(0, 1)),
        profile(),
    )
    even = sure_break_even(believed)
    assert even.accept_needed[0, 0] == pytest.approx(0.2, abs=0.005)
    assert even.accept_now[0, 0] == pytest.approx(0.5, abs=0.02)
    assert even.pays[0, 0]


def test_text_that_is_never_kept_surely_does_not_pay():
    even = sure_break_even(made((100, 0, 0, 0, 0)))
    assert not even.pays[0, 0]
    assert even.rung[0, 0] > 0
    assert even.expected[0, 0] + Z95 * even.sd[0, 0] < even.needed[0, 0]
    assert even.best[0, 0] == 0


def test_without_step_times_there_is_no_break_even():
    assert break_even(believe([(1.0, [window(1, cohort_window("code", 1, (5, 5)))])], policy("code"))) is None


def test_a_ladder_of_zero_alone_has_nothing_that_could_pay():
    believed = believe([(1.0, [window(1, cohort_window("code", 0, (5,)))])], policy("code", ladder=(0,)), profile())
    even = sure_break_even(believed)
    assert even.rung[0, 0] == -1
    assert np.isnan(even.accept_needed[0, 0])
    assert not even.pays.any()


hazards = st.lists(st.floats(0.01, 0.99), min_size=MAX_K, max_size=MAX_K)


@settings(max_examples=60, deadline=None)
@given(st.floats(1.0, 6.0), st.integers(1, MAX_K), st.lists(st.floats(0.2, 1.0), min_size=MAX_K, max_size=MAX_K))
def test_even_acceptance_brings_just_the_tokens_or_is_out_of_reach(tokens, k, share):
    offered = np.cumprod(np.array(share))
    a = float(even_acceptance(np.array([tokens]), np.array([k]), offered[None, :])[0])
    if np.isnan(a):
        assert 1.0 + offered[:k].sum() < tokens
    else:
        assert 0.0 <= a <= 1.0
        assert 1.0 + (a ** np.arange(1, k + 1) * offered[:k]).sum() == pytest.approx(tokens, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=5, max_size=5).filter(lambda kept: sum(kept) > 20), st.integers(0, 8))
def test_it_pays_where_and_only_where_acceptance_is_over_break_even(kept, bucket):
    even = sure_break_even(made(kept, bucket=bucket, ticks=3))
    is_over = even.accept_now > np.where(np.isnan(even.accept_needed), np.inf, even.accept_needed)
    close = np.isclose(even.expected, even.needed, rtol=1e-9)
    np.testing.assert_array_equal((even.pays == is_over) | close, np.ones_like(close))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=5, max_size=5).filter(lambda kept: sum(kept) > 20), st.integers(0, 8))
def test_what_is_left_on_the_table_is_a_share_and_nothing_at_the_best_rung(kept, bucket):
    believed = made(kept, bucket=bucket, ticks=3)
    even = sure_break_even(believed)
    left = left_on_the_table(believed, even)
    ran = ~np.isnan(left.share)
    assert np.argwhere(ran).tolist() == [[0, bucket]]
    assert 0.0 <= left.share[0, bucket] < 1.0
    at_best = np.zeros_like(believed.steps)
    at_best[0, bucket, even.best[0, bucket]] = 10.0
    assert left_on_the_table(replace(believed, steps=at_best), even).share[0, bucket] == pytest.approx(0.0, abs=1e-12)


def test_acceptance_scaled_by_one_is_as_it_was_and_more_of_it_brings_more():
    believed = made()
    outlook, hazard = believed.outlook, believed.hazards
    np.testing.assert_allclose(scaled(outlook, hazard, 1.0).emitted, outlook.emitted)
    little, much = scaled(outlook, hazard, 0.5), scaled(outlook, hazard, 3.0)
    assert (little.emitted[:, 1:] < outlook.emitted[:, 1:]).all()
    assert (much.emitted >= outlook.emitted - 1e-12).all()
    assert (much.survival <= outlook.drafted).all()


def test_now_is_the_expectation_of_the_steps_that_were_seen():
    believed = made()
    now = sure_brings(believed, Machine(3.6, 0.5), Change())
    seconds, emitted = sure(believed.step_seconds()), believed.outlook.emitted
    assert now.tokens_per_s == pytest.approx(emitted[0, 4] / seconds[0, 0, 4])
    assert now.tpot_s == pytest.approx(1.0 / now.tokens_per_s)
    # 3.60 an hour is 0.001 a second; half of it is idle.
    assert now.money == pytest.approx(0.001 / 0.5 / now.tokens_per_s * 1e6)
    assert now.joules is None


def test_twice_the_price_or_half_the_utilisation_is_twice_the_money():
    believed, machine = made(), Machine(3.6, 0.8)
    now = sure_brings(believed, machine, Change())
    dear = sure_brings(believed, machine, Change(price=2.0))
    idle = sure_brings(believed, machine, Change(utilisation=0.4))
    assert dear.money == pytest.approx(2 * sure(now.money))
    assert idle.money == pytest.approx(2 * sure(now.money))
    assert dear.tokens_per_s == now.tokens_per_s == idle.tokens_per_s


def test_without_a_price_money_is_unknown_and_speed_is_not():
    found = sure_brings(made(), Machine(None, 0.8), Change(k=1))
    assert found.money is None
    assert found.tokens_per_s > 0


@settings(max_examples=20, deadline=None)
@given(st.floats(0.1, 1.0), st.floats(1.0, 3.0), st.integers(0, 8), st.sampled_from([1, 2, 4]))
def test_more_acceptance_is_never_slower(little, much, bucket, k):
    believed = made(ticks=3)
    slow = sure_brings(believed, Machine(), Change(acceptance=little, load_bucket=bucket, k=k))
    quick = sure_brings(believed, Machine(), Change(acceptance=much, load_bucket=bucket, k=k))
    assert quick.tokens_per_s >= slow.tokens_per_s - 1e-9
    assert quick.tpot_s <= slow.tpot_s + 1e-12


def test_more_sequences_in_the_same_step_bring_more_tokens_a_second():
    believed = made()
    one, eight = (sure_brings(believed, Machine(), Change(load_bucket=b)).tokens_per_s for b in (0, 3))
    assert eight == pytest.approx(8 * one, rel=0.01)  # this machine's steps take as long beside 8


def test_steps_move_to_the_rung_under_a_k_that_is_no_rung():
    moved = asked_steps(made(ticks=1), Change(k=3, load_bucket=2))
    assert moved[0, 2, 2] == moved.sum() == 100


def test_one_cohort_alone_can_be_asked_about():
    both = believe(
        [(1.0, [window(1, cohort_window("code", 1, (5, 5)), cohort_window("chat", 4, (9, 0, 0, 0, 1)))])],
        policy("code", "chat"),
        profile(),
    )
    assert asked_steps(both, Change(cohort=1)).sum() == 10
    assert asked_steps(both, Change()).sum() == 20


def test_energy_has_the_idle_time_in_it():
    ticks = [
        (float(t), [window(t, cohort_window("code", 4, (40, 20, 10, 10, 20 + t % 7)), joules=50.0 + t % 5)])
        for t in range(1, 30)
    ]
    believed = believe(ticks, policy("code"), profile())
    busy = sure_brings(believed, Machine(None, 1.0, idle_w=20.0), Change())
    half = sure_brings(believed, Machine(None, 0.5, idle_w=20.0), Change())
    # Each busy second has an idle one beside it, of 20 W.
    assert sure(half.joules) - sure(busy.joules) == pytest.approx(20.0 / busy.tokens_per_s * 1e6)


def test_what_was_measured_is_not_called_extrapolated():
    believed = made()
    times = sure(believed.state.times)
    heard = replace(times, weight=np.full_like(times.weight, 100.0))
    assert list(extrapolations(replace(believed, state=replace(believed.state, times=heard)), Change())) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Change(k=4), "taken from the profile"),
        (Change(k=4, load_bucket=8), "extrapolated, the profile has 1 to 8 sequences and K 0 to 4"),
        (Change(acceptance=1.2), "over what was measured"),
    ],
)
def test_what_lies_beyond_measurement_is_said(change, said):
    assert any(said in line for line in extrapolations(made(), change))


def test_positions_that_nobody_looked_at_are_said():
    shallow = made((50, 50), k=1)
    lines = list(extrapolations(shallow, Change(k=4)))
    assert "acceptance: up to 3 draft positions of 1 cohort not examined yet" in lines[0]


def test_without_a_step_nothing_is_brought():
    assert brings(replace(made(), steps=np.zeros((1, len(LOAD_BUCKETS), RUNGS))), Machine(), Change()) is None
