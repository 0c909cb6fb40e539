"""Whose turn it is: by tokens, tenant by tenant, and by tier within a tenant."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.detokenizer import Detokenizer
from workers.fair_queue import QUANTUM, FairQueue, cost_of
from workers.sequence import EngineRequest, SamplingParams, Sequence


@pytest.fixture(scope="module")
def make(tokenizer):
    def make(name, tenant="a", tokens=50, tier=None, cohort="default"):
        request = EngineRequest(name, (3,) * 10, SamplingParams(tokens), cohort, tenant, service_tier=tier)
        return Sequence(request, [3] * 10, 0, Detokenizer(tokenizer))

    return make


def names(queue: FairQueue) -> list[str]:
    return [queue.popleft().request.request_id for _ in range(len(queue))]


def fill(queue, sequences):
    for sequence in sequences:
        queue.append(sequence)
    return queue


def test_a_tenants_own_requests_come_in_the_order_of_arrival(make) -> None:
    assert names(fill(FairQueue(), [make(f"{i}", tokens=i % 3 * 90 + 1) for i in range(6)])) == list("012345")


def test_a_flood_waits_behind_itself(make) -> None:
    queue = fill(FairQueue(), [make(f"flood{i}", "flood") for i in range(100)])
    fill(queue, [make("x", "quiet"), make("y", "quiet")])
    assert names(queue)[:4] == ["flood0", "x", "flood1", "y"]


def test_shares_are_of_tokens_and_not_of_requests(make) -> None:
    queue = fill(FairQueue(), [make(f"long{i}", "long", 390) for i in range(20)])
    fill(queue, [make(f"short{i}", "short", 90) for i in range(80)])
    first = Counter(queue.popleft().request.tenant for _ in range(50))
    assert first == {"long": 10, "short": 40}


def test_a_tenant_that_was_away_has_saved_up_nothing(make) -> None:
    queue = fill(FairQueue(), [make("once", "b", 1000)])
    names(queue)
    queue.refund(make("once", "b", 1000).request, 990)
    fill(queue, [make(f"a{i}") for i in range(3)] + [make(f"b{i}", "b") for i in range(3)])
    assert names(queue) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_tokens_that_a_request_did_not_use_are_given_back(make) -> None:
    queue = fill(FairQueue(), [make(f"modest{i}", "modest", 500) for i in range(9)])
    fill(queue, [make(f"eager{i}", "eager", 100) for i in range(45)])
    order = []
    while queue:
        sequence = queue.popleft()
        order.append(sequence.request.tenant)
        if sequence.request.tenant == "modest":
            queue.refund(sequence.request, cost_of(sequence.request) - 110)
    assert order[:18].count("modest") >= 7


def test_priority_goes_first_within_its_tenants_share(make) -> None:
    queue = fill(
        FairQueue(), [make("a0"), make("a1"), make("b0", "b"), make("b1", "b"), make("urgent", tier="priority")]
    )
    assert names(queue) == ["urgent", "b0", "a0", "b1", "a1"]


def test_flex_waits_until_nobody_else_does(make) -> None:
    queue = fill(FairQueue(), [make("cheap", tier="flex"), make("a0"), make("b0", "b")])
    assert names(queue) == ["a0", "b0", "cheap"]


def test_requests_without_a_tenant_share_by_cohort(make) -> None:
    queue = fill(
        FairQueue(), [make(f"chat{i}", None, cohort="chat") for i in range(3)] + [make("code", None, cohort="code")]
    )
    assert names(queue) == ["chat0", "code", "chat1", "chat2"]


def test_one_that_left_is_skipped(make) -> None:
    waiting = [make("a0"), make("b0", "b"), make("a1"), make("c0", "c", tier="flex")]
    queue = fill(FairQueue(), waiting)
    queue.remove(waiting[1])
    queue.remove(waiting[3])
    assert (len(queue), names(queue)) == (2, ["a0", "a1"])
    with pytest.raises(ValueError, match="request 'b0' does not wait"):
        queue.remove(waiting[1])


def test_nothing_comes_out_of_an_empty_queue() -> None:
    with pytest.raises(IndexError, match="no sequence waits"):
        FairQueue().popleft()


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.sampled_from([None, "priority", "flex"])), max_size=40
    )
)
def test_every_request_comes_out_once_and_no_tenant_gets_far_ahead(make, asked) -> None:
    """Between two tenants that both wait all the time, served tokens differ by one request and a round at most."""
    sequences = [make(f"{i}", tenant, tokens, tier) for i, (tenant, tokens, tier) in enumerate(asked)]
    queue = fill(FairQueue(), sequences)
    assert {s.request.request_id for s in queue} == {s.request.request_id for s in sequences}
    served: Counter[str] = Counter()
    waiting = Counter(s.request.tenant for s in sequences if s.request.service_tier != "flex")
    out = []
    while queue:
        both = [tenant for tenant in waiting if waiting[tenant]]
        if both:
            ahead = max(served[t] for t in both) - min(served[t] for t in both)
            assert ahead <= 2 * (510 + QUANTUM) or len(both) < len(set(waiting))
        sequence = queue.popleft()
        out.append(sequence.request.request_id)
        served[sequence.request.tenant] += cost_of(sequence.request)
        if sequence.request.service_tier != "flex":
            waiting[sequence.request.tenant] -= 1
    assert sorted(out, key=int) == [s.request.request_id for s in sequences]


def test_the_head_is_the_one_that_is_taken_next(make) -> None:
    queue = fill(FairQueue(), [make(f"{i}", "abc"[i % 3], tokens=i % 4 * 70 + 1) for i in range(12)])
    while queue:
        head = queue.head
        assert queue.popleft() is head
    assert queue.head is None


def test_one_that_is_put_back_is_its_tenants_next_before_those_of_a_higher_tier(make) -> None:
    queue = fill(FairQueue(), [make("a"), make("b"), make("c", tier="priority")])
    taken = [queue.popleft() for _ in range(2)]
    assert [s.request.request_id for s in taken] == ["c", "a"]
    taken[1].preemptions = 1
    queue.put_back(taken[1])
    queue.append(make("d", tier="priority"))
    assert names(queue) == ["a", "d", "b"]


def test_one_that_is_put_back_costs_its_tenant_nothing_more(make) -> None:
    """Were it to pay again, another tenant's request would go before it at each preemption."""
    queue = fill(FairQueue(), [make(f"{tenant}{i}", tenant) for i in range(6) for tenant in "ab"])
    first, others = queue.popleft(), []
    for _ in range(4):
        first.preemptions += 1
        queue.put_back(first)
        while (taken := queue.popleft()) is not first:
            others.append(taken.request.request_id)
    assert others == ["b0"]


def test_one_that_was_put_back_can_be_removed(make) -> None:
    queue = FairQueue()
    sequence = make("a")
    sequence.preemptions = 1
    queue.put_back(sequence)
    queue.remove(sequence)
    assert (len(queue), list(queue)) == (0, [])


@pytest.mark.parametrize("tier", [None, "flex"])
def test_one_that_is_put_back_stays_in_its_tier(make, tier) -> None:
    queue = fill(FairQueue(), [make("other", "b")])
    sequence = make("a", tier=tier)
    sequence.preemptions = 1
    queue.put_back(sequence)
    assert names(queue) == (["other", "a"] if tier else ["a", "other"])
