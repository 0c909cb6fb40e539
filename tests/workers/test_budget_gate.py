"""An endpoint's side of the desk: who is asked about, what holds while nobody answers, and what is said again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from controlplane.budgets.desk import Answer, Ask, BudgetDesk, Refusal, Settled
from controlplane.budgets.token_cost import TokenCosts
from controlplane.finops.budget import fresh, status
from controlplane.finops.spending import Spent
from controlplane.policy import parse_policy
from workers.budget_gate import AWAY_S, BudgetGate, refusing

POLICY = parse_policy("""
version: 1
cohorts:
  - name: code
    match: {user: a}
    speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}
    budget: {usd: 1, period: day, on_exceeded: reject}
  - {name: rest, match: {}, speculation: {tuner: fixed, ladder: [0], start: 0, fallback: 0}}
budgets:
  - {name: acme, tenant: acme, usd: 1, period: day, on_exceeded: reject}
  - {name: soft, cohort: rest, usd: 1, period: day, on_exceeded: warn}
""")
NOW = 1_790_596_800.0
OVER = Refusal("code", "The budget 'code' is exhausted.", NOW + 3600)


class Desk:
    """The calls of a gate, each answered by `answer` or failed."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Answer | Exception = Answer(None, ("code",))
        self.now = NOW
        self.gate = BudgetGate(self.call, lambda: self.now)

    async def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append((method, *arguments[1:]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if method == "budget_admit" else None

    def named(self, method: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == method]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def ask(id: str = "r1", cohort: str = "code", tenant: str | None = None) -> Ask:
    return Ask(id, cohort, tenant, 5, 100)


def run(act: Callable[[], Awaitable[Any]]) -> Any:
    async def life() -> Any:
        answer = await act()
        await asyncio.sleep(0)  # what is said in the background
        return answer

    return asyncio.run(life())


@pytest.mark.parametrize(
    ("cohort", "tenant", "names"),
    [("code", None, ("code",)), ("rest", None, ()), ("rest", "acme", ("acme",)), ("code", "acme", ("code", "acme"))],
)
def test_only_what_a_refusing_budget_counts_is_asked_about(
    desk: Desk, cohort: str, tenant: str | None, names: tuple[str, ...]
) -> None:
    assert refusing(POLICY, cohort, tenant) == names
    assert run(lambda: desk.gate.admit(POLICY, ask("r", cohort, tenant))) is None
    assert len(desk.calls) == bool(names)


def test_a_refusal_is_handed_on_and_nothing_is_settled_for_it(desk: Desk) -> None:
    async def act() -> Refusal | None:
        desk.answer = Answer(OVER, ("code",))
        said = await desk.gate.admit(POLICY, ask())
        desk.gate.settle(Settled("r1", 0, 0))
        return said

    assert run(act) == OVER
    assert desk.named("budget_settle") == []


def test_an_end_is_told_once(desk: Desk) -> None:
    async def act() -> None:
        await desk.gate.admit(POLICY, ask())
        for _ in range(2):
            desk.gate.settle(Settled("r1", 5, 30))

    run(act)
    assert desk.named("budget_settle") == [(Settled("r1", 5, 30),)]


def test_a_client_that_leaves_while_it_waits_is_settled(desk: Desk) -> None:
    async def act() -> None:
        never = asyncio.Event()

        async def call(method: str, *arguments: Any) -> Any:
            desk.calls.append((method, *arguments[1:]))
            if method == "budget_admit":
                await never.wait()

        gate = BudgetGate(call, lambda: NOW)
        asking = asyncio.create_task(gate.admit(POLICY, ask()))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    run(act)
    assert desk.named("budget_settle") == [(Settled("r1", 0, 0),)]


def test_a_desk_that_does_not_answer_stops_nobody_and_is_left_alone_for_a_while(desk: Desk) -> None:
    async def act() -> list[Refusal | None]:
        desk.answer = ConnectionError("gone")
        said = [await desk.gate.admit(POLICY, ask(str(i))) for i in range(5)]
        desk.now += AWAY_S
        return [*said, await desk.gate.admit(POLICY, ask("later"))]

    assert run(act) == [None] * 6
    assert len(desk.named("budget_admit")) == 2


def test_the_last_word_known_holds_until_the_reset(desk: Desk) -> None:
    async def act() -> list[Refusal | None]:
        desk.answer = Answer(OVER, ("code",))
        await desk.gate.admit(POLICY, ask("a"))
        desk.answer = ConnectionError("gone")
        during = await desk.gate.admit(POLICY, ask("b"))
        desk.now = OVER.resets_at
        return [during, await desk.gate.admit(POLICY, ask("c"))]

    assert run(act) == [OVER, None]


def test_what_others_reserve_for_a_moment_is_no_last_word(desk: Desk) -> None:
    """A controller that went away just then would have kept everybody out until the reset."""

    async def act() -> list[Refusal | None]:
        desk.answer = Answer(replace(OVER, is_spent=False), ("code",))
        refused = await desk.gate.admit(POLICY, ask("a"))
        desk.answer = ConnectionError("gone")
        return [refused, await desk.gate.admit(POLICY, ask("b"))]

    assert run(act) == [replace(OVER, is_spent=False), None]


def test_what_the_controller_says_once_a_second_is_a_last_word_too(desk: Desk) -> None:
    (own, *_) = POLICY.all_budgets

    async def act() -> list[bool]:
        desk.answer = ConnectionError("gone")
        said = []
        for dollars in (2, 0):
            money = Spent(total=dollars * 10**9 * 3600 * 10**9)
            desk.gate.note([status(own, fresh(own, NOW), money, NOW)])
            said.append(await desk.gate.admit(POLICY, ask(str(dollars))) is None)
        return said

    assert run(act) == [False, True]


def test_what_is_under_way_and_what_was_decided_alone_is_said_when_the_desk_is_back(desk: Desk) -> None:
    async def act() -> None:
        await desk.gate.hold()
        desk.answer = Answer(OVER, ("code",))
        await desk.gate.admit(POLICY, ask("a"))
        desk.answer = ConnectionError("gone")
        await desk.gate.admit(POLICY, ask("b"))
        await desk.gate.admit(POLICY, ask("c", "rest", "acme"))
        await desk.gate.hold()
        desk.answer = Answer(None, ())
        await desk.gate.hold()
        desk.gate.settle(Settled("c", 1, 1))
        await desk.gate.hold()
        await desk.gate.hold()

    run(act)
    held = [([each.id for each in asks], refused, unasked) for asks, refused, unasked, _ in desk.named("budget_hold")]
    assert held == [(["c"], {"code": 1}, 2), (["c"], {"code": 1}, 2), ([], {"code": 0}, 0)]


def test_what_it_is_asking_about_is_not_said_to_be_under_way(desk: Desk) -> None:
    """A refused request that was on a list of that second kept its money reserved for a second."""

    async def act() -> None:
        answered = asyncio.Event()

        async def call(method: str, *arguments: Any) -> Any:
            desk.calls.append((method, *arguments[1:]))
            if method == "budget_admit":
                await answered.wait()
                return Answer(OVER, ("code",))

        gate = BudgetGate(call, lambda: NOW)
        asking = asyncio.create_task(gate.admit(POLICY, ask()))
        await asyncio.sleep(0)
        await gate.hold()
        answered.set()
        await asking
        await gate.hold()
        await gate.hold()

    run(act)
    assert desk.named("budget_hold") == [([], {}, 0, ["r1"]), ([], {}, 0, [])]


def test_the_list_is_said_after_a_request_whose_end_nobody_heard(desk: Desk) -> None:
    """One shorter than a second is on no list; with its last word lost its money stayed reserved for good."""

    async def act() -> None:
        await desk.gate.admit(POLICY, ask())
        desk.answer = ConnectionError("gone")
        desk.gate.settle(Settled("r1", 5, 30))
        await asyncio.sleep(0)
        desk.answer = Answer(None, ())
        await desk.gate.hold()

    run(act)
    assert desk.named("budget_hold") == [([], {}, 0, [])]


def test_a_desk_that_is_new_knows_what_is_under_way_within_a_second() -> None:
    async def act() -> tuple[int, int]:
        desks = [BudgetDesk(), BudgetDesk()]
        said = [status(named, fresh(named, NOW), Spent(), NOW) for named in POLICY.all_budgets]

        async def call(method: str, holder: str, *arguments: Any) -> Any:
            at = desks[0]
            if method == "budget_admit":
                return at.admit(holder, arguments[0], NOW)
            return at.hold(holder, arguments[0], NOW, arguments[1], arguments[2])

        for desk in desks:
            desk.update(said, TokenCosts(), 10.0**7, NOW)
        gate = BudgetGate(call, lambda: NOW)
        await gate.admit(POLICY, ask())
        before = desks.pop(0)
        await gate.hold()
        return before.reserved("code"), desks[0].reserved("code")

    before, after = run(act)
    assert before == after > 0
