"""What a worker reads out of a plan."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.decision.plan import Plan, StagedPlan, price_at
from controlplane.telemetry import LOAD_BUCKETS, MAX_K, PRICE_LOADS

LOADS = len(PRICE_LOADS)
PLAN = Plan(
    epoch=1,
    version=1,
    issued_at=100.0,
    expires_at=110.0,
    k={"code": (8, 8, 8, 8, 4, 4, 2, 0, 0), "chat": (2,) * 9},
    fallback={"code": 1, "chat": 2},
    policy_revision="abc",
)
PRICED = replace(
    PLAN,
    survival={"code": (0.9, 0.7, 0.5, 0.3, *(0.1,) * 12)},
    price=(0.4, *(0.6,) * (LOADS - 1)),
    depth=(8,) * LOADS,
)
NOW = 105.0


@pytest.mark.parametrize(("running", "k"), [(0, 8), (1, 8), (8, 8), (9, 4), (64, 2), (65, 0), (256, 0), (9999, 0)])
def test_k_is_that_of_the_load(running: int, k: int) -> None:
    assert PLAN.k_for("code", running, NOW) == k


def test_an_unknown_cohort_does_not_draft() -> None:
    assert PLAN.k_for("gone", 1, NOW) == 0


@pytest.mark.parametrize(("now", "k"), [(109.9, 8), (110.0, 1), (1e9, 1)])
def test_an_expired_plan_means_the_fallback(now: float, k: int) -> None:
    assert PLAN.k_for("code", 1, now) == k


@pytest.mark.parametrize(("mode", "k"), [("off", 8), ("fallback", 1), ("zero", 0)])
def test_the_kill_switch_overrides_k(mode: str, k: int) -> None:
    assert replace(PLAN, kill_switch=mode).k_for("code", 1, NOW) == k  # type: ignore[arg-type]


def test_the_kill_switch_to_zero_holds_after_the_plan_has_expired() -> None:
    assert replace(PLAN, kill_switch="zero").k_for("code", 1, 1e9) == 0


@pytest.mark.parametrize("now", [NOW, 1e9])
def test_a_blocked_drafter_does_not_draft_however_old_the_plan_is(now: float) -> None:
    plan = replace(PLAN, blocked_drafters=("ngram@1",))
    assert (plan.k_for("code", 1, now, drafter="ngram@1"), plan.k_for("code", 1, NOW, drafter="other@1")) == (0, 8)


STAGED = replace(PRICED, staged=StagedPlan(("w1",), {"code": (4,) * 9}, {"code": 2, "chat": 0}, "def"))


def test_the_workers_that_try_a_policy_obey_it_and_the_others_do_not() -> None:
    assert (STAGED.k_for("code", 1, NOW, worker="w1"), STAGED.k_for("chat", 1, NOW, worker="w1")) == (4, 0)
    assert STAGED.k_for("chat", 1, NOW, worker="w2") == 2


def test_they_fall_back_by_it_too() -> None:
    assert STAGED.k_for("code", 1, 1e9, worker="w1") == 2


def test_the_kill_switch_holds_for_the_workers_that_try_a_policy() -> None:
    assert replace(STAGED, kill_switch="zero").k_for("code", 1, NOW, worker="w1") == 0


def test_the_workers_that_try_a_policy_drop_what_does_not_pay_under_it() -> None:
    """Else they would be compared by a policy that nobody will ever run."""
    staged = replace(STAGED.staged, survival={"code": (0.9, 0.1)}, price=(0.5,) * LOADS, depth=(MAX_K,) * LOADS)  # type: ignore[type-var]
    plan = replace(STAGED, staged=staged)
    assert (plan.k_for("code", 1, NOW, worker="w1"), plan.k_for("code", 1, NOW, worker="w2")) == (1, 3)


# Prices


@pytest.mark.parametrize(("running", "k"), [(1, 3), (2, 2), (256, 0)])
def test_positions_that_bring_less_than_the_price_are_dropped(running: int, k: int) -> None:
    assert PRICED.k_for("code", running, NOW) == k


def test_a_cohort_without_survival_is_not_priced() -> None:
    assert PRICED.k_for("chat", 1, NOW) == 2


def test_no_draft_goes_deeper_than_a_pass_of_the_drafter_pays() -> None:
    assert replace(PRICED, depth=(2,) * LOADS).k_for("code", 1, NOW) == 2


def test_a_probe_drafts_whatever_the_price() -> None:
    plan = replace(PRICED, probing={"code": 0})
    assert (plan.k_for("code", 1, NOW), plan.k_for("code", 2, NOW)) == (8, 2)


@pytest.mark.parametrize(("running", "price"), [(0, 0.2), (1, 0.2), (4, 0.4), (5, 0.5), (6, 0.6), (7, 0.6), (300, 0.6)])
def test_the_price_is_linear_between_its_loads(running: int, price: float) -> None:
    plan = replace(PRICED, price=(0.2, 0.2, 0.2, 0.4, *(0.6,) * (LOADS - 4)))
    assert price_at(plan, running)[0] == pytest.approx(price)


@pytest.mark.parametrize(("running", "depth"), [(12, 3), (13, 3), (14, 6), (15, 6), (16, 6)])
def test_the_depth_is_that_of_the_nearest_load(running: int, depth: int) -> None:
    depths = [3 if load <= 12 else 6 for load in PRICE_LOADS]
    assert price_at(replace(PRICED, depth=tuple(depths)), running)[1] == depth


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"price": (0.5,)}, "1 prices for 16 loads"),
        ({"depth": (0.5, 1)}, "2 depths for 16 loads"),
        ({"k": {"code": (1, 2)}}, "'code' has 2 load buckets, not 9"),
    ],
)
def test_a_plan_of_the_wrong_shape_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(PLAN, **changes)  # type: ignore[arg-type]


plans = st.builds(
    lambda k, survival, price, depth: replace(
        PLAN, k={"code": tuple(k)}, survival={"code": tuple(sorted(survival, reverse=True))}, price=tuple(price),
        depth=tuple(depth),
    ),
    st.lists(st.integers(0, MAX_K), min_size=len(LOAD_BUCKETS), max_size=len(LOAD_BUCKETS)),
    st.lists(st.floats(0, 1), min_size=MAX_K, max_size=MAX_K),
    st.lists(st.floats(0, 1), min_size=LOADS, max_size=LOADS),
    st.lists(st.integers(0, MAX_K), min_size=LOADS, max_size=LOADS),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(plans, st.integers(0, 400))
def test_a_price_only_takes_draft_positions_away(plan: Plan, running: int) -> None:
    unpriced = replace(plan, survival={}, price=(), depth=())
    assert 0 <= plan.k_for("code", running, NOW) <= unpriced.k_for("code", running, NOW)
