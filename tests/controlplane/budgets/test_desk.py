"""Who may still ask: money is reserved before it is spent, so that nobody races past a budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.budgets.desk import SETTLED_S, SILENT_S, Ask, BudgetDesk, Settled
from controlplane.budgets.office import second_nano
from controlplane.budgets.token_cost import ENOUGH_TOKENS, TokenCosts
from controlplane.finops.budget import BudgetStatus, fresh, status
from controlplane.finops.spending import Spent, spent
from controlplane.policy import Policy, parse_policy

CENT = 10_000_000
NOON = 1_790_596_800.0
"""2026-09-28T12:00:00Z."""
POLICY = """
version: 1
cohorts:
  - name: code
    match: {}
    speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}
    budget: {usd: 1, period: day, on_exceeded: reject}
"""
HUNDRED = "name: code, cohort: code, usd: 1, period: day, on_exceeded: reject"

COSTS = TokenCosts().learn([("code", "input", 0.0, 1000), ("code", "output", 1000.0 * CENT / 10, 1000)])
"""A completion token is a tenth of a cent, a prompt token nothing."""


def statuses(policy: Policy, cents: float = 0.0, **changes: Any) -> list[BudgetStatus]:
    money = Spent(total=int(cents * CENT) * 3600 * 10**9)
    said = (status(named, fresh(named, NOON), money, NOON) for named in policy.all_budgets)
    return [replace(each, **changes) for each in said]


def ask(id: str, tokens: int = 100, tenant: str | None = None, cohort: str = "code") -> Ask:
    return Ask(id, cohort, tenant, 5, tokens)


@pytest.fixture
def desk_of(make_policy: Any) -> Callable[..., BudgetDesk]:
    def make(*budgets: str, cents: float = 0.0, costs: TokenCosts = COSTS) -> BudgetDesk:
        desk = BudgetDesk()
        desk.update(statuses(make_policy(*(budgets or (HUNDRED,))), cents), costs, CENT, NOON)
        return desk

    return make


def test_what_may_be_spent_is_reserved_until_the_request_ends(desk_of: Any) -> None:
    desk = desk_of()
    assert desk.admit("e", ask("a"), NOON).refusal is None
    assert (desk.reserved("code"), desk.under_way("code")) == (10 * CENT, 1)
    desk.settle("e", Settled("a", 5, 30), NOON)
    assert desk.reserved("code") == 3 * CENT  # until the windows have come with it
    desk.update(statuses_of(desk), COSTS, CENT, NOON + SETTLED_S)
    assert (desk.reserved("code"), desk.under_way("code")) == (0, 0)


def statuses_of(desk: BudgetDesk) -> list[BudgetStatus]:
    return list(desk._statuses.values())


def test_a_refusal_names_the_budget_what_is_spent_and_when_it_resets(desk_of: Any) -> None:
    """A "Budget exceeded" did not say which team, key or user."""
    refusal = desk_of(cents=120).admit("e", ask("a"), NOON).refusal
    assert refusal.message == (
        "The budget 'code' (cohort code) is exhausted: 1.20 of 1.00 USD are spent in 2026-09-28; "
        "it resets at 2026-09-29T00:00+00:00."
    )
    assert (refusal.budget, refusal.resets_at) == ("code", NOON + 12 * 3600)


def test_what_is_left_may_be_reserved_by_others(desk_of: Any) -> None:
    desk = desk_of(cents=95)
    assert desk.admit("e", ask("a"), NOON).refusal is None
    refusal = desk.admit("e", ask("b"), NOON).refusal
    assert "0.95 of 1.00 USD are spent" in refusal.message
    assert "1 request under way or just ended may use the rest" in refusal.message
    assert not refusal.is_spent
    assert desk.rejections == {"code": 1}


def test_the_answer_names_what_was_asked_and_others_are_not(desk_of: Any) -> None:
    desk = desk_of(HUNDRED, "name: soft, cohort: code, usd: 1, period: day, on_exceeded: warn")
    assert desk.admit("e", ask("a"), NOON).budgets == ("code",)
    assert desk.admit("e", ask("b", cohort="rest"), NOON).budgets == ()


def test_a_request_needs_room_in_its_cohorts_and_its_tenants_budget(desk_of: Any) -> None:
    desk = desk_of(HUNDRED, "name: acme, tenant: acme, usd: 0.05, period: day, on_exceeded: reject")
    assert desk.admit("e", ask("a", tenant="acme"), NOON).refusal is None
    assert desk.admit("e", ask("b", tenant="acme"), NOON).refusal.budget == "acme"
    assert desk.admit("e", ask("c", tenant="other"), NOON).refusal is None


def test_a_budget_that_is_unknown_refuses_nobody(desk_of: Any, make_policy: Any) -> None:
    desk = desk_of()
    desk.update(statuses(make_policy(HUNDRED), 80, standing="unknown", why="no price"), COSTS, CENT, NOON)
    assert all(desk.admit("e", ask(str(i), 10**6), NOON).refusal is None for i in range(50))


def test_an_endpoint_that_went_silent_holds_nothing(desk_of: Any) -> None:
    desk = desk_of()
    for holder in ("dead", "alive"):
        desk.admit(holder, ask(holder), NOON)
    desk.hold("alive", [ask("alive")], NOON + SILENT_S)
    desk.update(statuses_of(desk), COSTS, CENT, NOON + SILENT_S + 1)
    assert desk.under_way("code") == 1


def test_a_new_controller_learns_what_is_under_way_from_the_endpoints(desk_of: Any) -> None:
    desk = desk_of()
    desk.hold("e", [ask("a"), ask("b")], NOON)
    desk.hold("e", [ask("a"), ask("b")], NOON + 1)
    assert (desk.reserved("code"), desk.under_way("code")) == (20 * CENT, 2)


def test_a_lost_word_that_a_request_ended_is_healed_by_the_next_list(desk_of: Any) -> None:
    desk = desk_of()
    desk.admit("e", ask("a"), NOON)
    desk.hold("e", [], NOON + 1)
    assert desk.reserved("code") == 10 * CENT  # what it used is on its way
    desk.update(statuses_of(desk), COSTS, CENT, NOON + 1 + SETTLED_S)
    assert (desk.reserved("code"), desk.under_way("code")) == (0, 0)


def test_a_word_that_comes_after_the_list_says_what_was_used(desk_of: Any) -> None:
    """The list of a second and the end of a request may be sent in one instant; what it used was then in no sum."""
    desk = desk_of()
    desk.admit("e", ask("a"), NOON)
    desk.hold("e", [], NOON)
    for _ in range(2):
        desk.settle("e", Settled("a", 5, 30), NOON)
    assert (desk.reserved("code"), desk.under_way("code")) == (3 * CENT, 1)
    desk.update(statuses_of(desk), COSTS, CENT, NOON + SETTLED_S)
    assert (desk.reserved("code"), desk.under_way("code")) == (0, 0)


def test_what_was_used_stays_reserved_while_a_workers_windows_are_late(desk_of: Any) -> None:
    """On a machine that is too busy to report, money was in neither sum, and everybody was let in."""
    desk = desk_of()
    desk.admit("e", ask("a"), NOON)
    desk.settle("e", Settled("a", 5, 100), NOON)
    reserved = []
    for later, known_until in ((9, NOON), (20, NOON + 0.5), (21, NOON + 1), (22, NOON + 1)):
        desk.update(statuses_of(desk), COSTS, CENT, NOON + later, known_until)
        reserved.append(desk.reserved("code"))
    assert reserved == [10 * CENT, 10 * CENT, 0, 0]


def test_a_worker_that_is_gone_holds_nobodys_money(desk_of: Any) -> None:
    desk = desk_of()
    desk.admit("e", ask("a"), NOON)
    desk.settle("e", Settled("a", 5, 100), NOON)
    desk.update(statuses_of(desk), COSTS, CENT, NOON + SILENT_S + 1, NOON)
    assert (desk.reserved("code"), desk.under_way("code")) == (0, 0)


def test_what_is_being_asked_stays_as_the_desk_has_it(desk_of: Any) -> None:
    desk = desk_of()
    desk.admit("e", ask("admitted"), NOON)
    desk.hold("e", [], NOON + 1, asking=["admitted", "refused"])
    assert desk.under_way("code") == 1


def test_at_the_reset_nobody_is_refused_for_what_was_spent_before_it(desk_of: Any) -> None:
    """A tick comes once a second, and clients come at midnight."""
    desk = desk_of(cents=100)
    (reset,) = {status.period.end for status in statuses_of(desk)}
    assert desk.admit("e", ask("before"), reset - 0.01).refusal is not None
    said = [desk.admit("e", ask(str(i), 600), reset).refusal is None for i in range(3)]
    assert said == [True, True, False]  # two of them may use all of the new period


def test_a_request_that_was_held_before_it_asked_is_not_in_its_own_way(desk_of: Any) -> None:
    desk = desk_of(cents=95)
    desk.hold("e", [ask("a")], NOON)
    assert desk.admit("e", ask("a"), NOON).refusal is None
    assert desk.under_way("code") == 1


def test_what_ended_twice_or_was_never_admitted_changes_nothing(desk_of: Any) -> None:
    desk = desk_of()
    desk.settle("nobody", Settled("a", 1, 1), NOON)
    desk.admit("e", ask("a"), NOON)
    for _ in range(2):
        desk.settle("e", Settled("a", 0, 0), NOON)
    assert (desk.reserved("code"), desk.under_way("code")) == (0, 1)


def test_another_policy_counts_what_is_under_way_against_its_own_budgets(desk_of: Any, make_policy: Any) -> None:
    desk = desk_of()
    desk.admit("e", ask("a", tenant="acme"), NOON)
    new = make_policy("name: acme, tenant: acme, usd: 1, period: day, on_exceeded: reject")
    desk.update(statuses(new), COSTS, CENT, NOON)
    assert (desk.reserved("acme"), desk.reserved("code")) == (10 * CENT, 0)


def test_before_anything_was_measured_a_token_is_taken_to_be_dear(desk_of: Any) -> None:
    desk = desk_of(costs=TokenCosts())
    desk.admit("e", ask("a", 100), NOON)
    assert desk.reserved("code") == round((5 * 0.05 + 100 * 0.5) * CENT)


def test_the_dearest_of_the_last_minutes_counts_not_the_mean() -> None:
    costs = TokenCosts().learn([("code", "output", 100.0 * 8, 100)])
    for _ in range(100):
        costs = costs.learn([("code", "output", 100.0, 100)])
    assert 7 < costs.of("code", 0.0).output_nano <= 8
    for _ in range(3000):
        costs = costs.learn([("code", "output", 100.0, 100)])
    assert costs.of("code", 0.0).output_nano == pytest.approx(1, rel=0.01)


def test_a_few_tokens_are_no_measurement() -> None:
    costs = TokenCosts().learn([("code", "output", 1.0, int(ENOUGH_TOKENS) - 1)])
    assert costs.of("code", 1000.0).output_nano == 500.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["ask", "end", "windows"])), max_size=120),
    st.integers(1, 300),
)
def test_reserved_money_is_never_forgotten_nor_kept(steps: list[tuple[int, str]], tokens: int) -> None:
    """Whatever order things come in: when all have ended and settled, nothing is reserved."""
    policy = parse_policy(POLICY)
    desk, now, open_ = BudgetDesk(), NOON, set[str]()
    desk.update(statuses(policy), COSTS, CENT, now)
    for i, (holder, step) in enumerate(steps):
        now += 0.1
        if step == "ask" and desk.admit(str(holder), ask(f"{holder}", tokens), now).refusal is None:
            open_.add(str(holder))
        elif step == "end" and str(holder) in open_:
            desk.settle(str(holder), Settled(str(holder), 1, i % tokens), now)
            open_.discard(str(holder))
        elif step == "windows":
            desk.update(statuses(policy, 5), COSTS, CENT, now)
        assert desk.under_way("code") >= len(open_) >= 0
    for holder in open_:
        desk.settle(holder, Settled(holder, 0, 0), now)
    desk.update(statuses(policy), COSTS, CENT, now + SETTLED_S)
    assert (desk.reserved("code"), desk.under_way("code")) == (0, 0)


def test_eight_replicas_that_race_overrun_a_budget_by_one_request_at_most(desk_of: Any, make_policy: Any) -> None:
    """Each request may cost a tenth of the budget, and what it did cost is known a second later."""
    desk, lock, policy = desk_of(), threading.Lock(), make_policy(HUNDRED)
    used: list[tuple[float, float]] = []
    clock = [NOON]
    start = threading.Barrier(8)

    def replica(number: int) -> None:
        start.wait()
        for i in range(250):
            request, tokens = ask(f"{number}-{i}", 100), 20 + 13 * (number + i) % 80
            with lock:  # an actor's calls take turns
                clock[0] += 0.02
                said = desk.admit(str(number), request, clock[0])
            if said.refusal is None:
                with lock:
                    used.append((clock[0], tokens * 0.1))
                    desk.settle(str(number), Settled(request.id, 5, tokens), clock[0])
            with lock:
                come = sum(cents for at, cents in used if at <= clock[0] - 1)
                desk.update(statuses(policy, come), COSTS, CENT, clock[0])

    threads = [threading.Thread(target=replica, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent_cents = sum(cents for _, cents in used)
    assert 100 <= spent_cents <= 110
    assert desk.rejections["code"] == 8 * 250 - len(used)


def test_the_price_of_unmeasured_time_is_that_of_the_dearest_machine(make_sheet: Any) -> None:
    assert second_nano(make_sheet(), "gpu", NOON) == second_nano(make_sheet(), "other", NOON) == CENT
    assert spent({}, make_sheet()).nano == 0
