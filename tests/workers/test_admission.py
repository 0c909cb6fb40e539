"""Who is taken in, who has to make room, and what the others are told."""

from __future__ import annotations

from collections import Counter

import pytest

from workers.admission import RETRY_MOST_S, Admission
from workers.backend import Overloaded
from workers.sequence import EngineRequest, SamplingParams


class Watch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


def request(name: str, tenant: str | None = "a", tier: str | None = None) -> EngineRequest:
    return EngineRequest(name, (1, 2), SamplingParams(5), "default", tenant, service_tier=tier)


def full(watch: Watch, *requests: EngineRequest) -> Admission:
    admission = Admission(len(requests), watch)
    for each in requests:
        assert admission.admit(each) is None
    return admission


def flood(n: int, tenant: str = "flood") -> list[EngineRequest]:
    return [request(f"{tenant}{i}", tenant) for i in range(n)]


def test_a_tenants_own_flood_is_refused_at_the_limit(watch: Watch) -> None:
    admission = full(watch, *flood(4))
    with pytest.raises(Overloaded):
        admission.admit(request("more", "flood"))
    assert (len(admission), admission.refused) == (4, {"full": 1})


def test_a_flood_makes_room_for_another_tenant_by_its_newest_request(watch: Watch) -> None:
    admission = full(watch, *flood(4))
    displaced = admission.admit(request("x", "quiet"))
    assert displaced is not None
    assert (displaced.request_id, len(admission), admission.refused) == ("flood3", 4, {"displaced": 1})


def test_room_is_made_until_shares_are_even_and_no_further(watch: Watch) -> None:
    admission = full(watch, *flood(6))
    for i in range(3):
        assert admission.admit(request(f"x{i}", "quiet")) is not None
    with pytest.raises(Overloaded):
        admission.admit(request("x3", "quiet"))


def test_a_request_that_has_begun_is_never_displaced(watch: Watch) -> None:
    admission = full(watch, *flood(3))
    for i in range(3):
        admission.begin(f"flood{i}")
    with pytest.raises(Overloaded):
        admission.admit(request("x", "quiet"))


def test_a_choice_of_an_answer_with_several_is_never_displaced(watch: Watch) -> None:
    admission = full(watch, *(request(f"cmpl-1-{i}", "flood") for i in range(3)))
    with pytest.raises(Overloaded):
        admission.admit(request("cmpl-2", "quiet"))


def test_flex_makes_room_for_whoever_else_comes(watch: Watch) -> None:
    admission = full(watch, request("a0"), request("cheap", "b", "flex"), request("a1"))
    displaced = admission.admit(request("a2"))
    assert displaced is not None
    assert displaced.request_id == "cheap"


def test_flex_displaces_nobody_of_its_own_tenant(watch: Watch) -> None:
    admission = full(watch, *flood(2))
    with pytest.raises(Overloaded):
        admission.admit(request("cheap", "flood", "flex"))


def test_priority_takes_the_place_of_its_tenants_newest_other_request(watch: Watch) -> None:
    admission = full(watch, *flood(3))
    displaced = admission.admit(request("urgent", "flood", "priority"))
    assert displaced is not None
    assert displaced.request_id == "flood2"


def test_one_that_ended_makes_room(watch: Watch) -> None:
    admission = full(watch, *flood(2))
    admission.end("flood0")
    admission.end("never there")
    assert admission.admit(request("more", "flood")) is None


def test_every_tenant_gets_its_share_of_a_full_queue_whatever_the_order(watch: Watch) -> None:
    admission = full(watch, *flood(30))
    taken: Counter[str] = Counter({"flood": 30})
    for i in range(60):
        tenant = ("b", "c", "flood")[i % 3]
        try:
            displaced = admission.admit(request(f"{tenant}-{i}", tenant))
        except Overloaded:
            continue
        taken[tenant] += 1
        if displaced is not None:
            taken[str(displaced.tenant)] -= 1
    assert taken.total() == 30
    assert max(taken.values()) - min(taken.values()) <= 1


def test_the_wait_that_a_client_is_told_is_that_of_the_queues_real_pace(watch: Watch) -> None:
    admission = full(watch, *flood(40))
    for i in range(20):  # one begins every half second: the 20 that are left, in 10 s
        watch.now = i / 2
        admission.begin(f"flood{i}")
    watch.now = 10.0
    assert admission.retry_after_s() == pytest.approx(5.0)


def test_where_nothing_gets_on_any_more_the_wait_grows_up_to_a_minute(watch: Watch) -> None:
    admission = full(watch, *flood(40))
    admission.begin("flood0")
    waits = []
    for watch.now in (0.5, 2.0, 500.0):
        waits.append(admission.retry_after_s())
    assert waits == [9.75, 39.0, RETRY_MOST_S]


def test_before_anything_has_begun_a_client_may_come_back_in_a_second(watch: Watch) -> None:
    assert full(watch, *flood(9)).retry_after_s() == 1.0
