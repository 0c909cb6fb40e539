"""Replicas without a drafter, and requests shared out by chance alone. No Ray is started."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.experiment import ExperimentError
from controlplane.policy import parse_policy
from controlplane.settings import SettingsError, load_settings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve complains about pydantic as it is imported
    from ray.serve.request_router import PendingRequest, RequestRouter

    from workers.holdout import ROUTER, HashRouter, chosen, role, router_options

TEXT = """
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}
"""
BY_REPLICA = parse_policy(TEXT + "experiment: {holdout: 5%, unit: replica, window: 15m}\n")
NAMES = ["a", "b", "c", "d"]


def replica(name: str, queue: int = 0) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), queue=queue)


def pending(request_id: str | None, internal: str = "i") -> PendingRequest:
    args = [] if request_id is None else [SimpleNamespace(request_id=request_id)]
    metadata: Any = SimpleNamespace(internal_request_id=internal)
    future: Any = None
    return PendingRequest(args=args, kwargs={}, metadata=metadata, future=future)


def routed(request: PendingRequest | None, replicas: list[Any]) -> list[list[Any]]:
    router = HashRouter.__new__(HashRouter)  # its queue and its tasks are Serve's, not ours
    return asyncio.run(router.choose_replicas(replicas, request))


def test_the_last_rank_is_held_out_without_a_drafter() -> None:
    settings = load_settings(replicas=4, drafter="ngram")
    roles = [role(settings, BY_REPLICA, rank) for rank in range(4)]
    assert [name for name, _ in roles] == ["worker-", "worker-", "worker-", "holdout-"]
    assert [its.drafter for _, its in roles] == ["ngram", "ngram", "ngram", "none"]


def test_without_an_experiment_by_replica_nobody_is_held_out_and_serve_routes_itself() -> None:
    settings, policy = load_settings(replicas=2), parse_policy(TEXT)
    assert [role(settings, policy, rank)[0] for rank in range(2)] == ["worker-", "worker-"]
    assert router_options(settings, policy) == {}


def test_the_number_can_be_set() -> None:
    settings = load_settings(replicas=4, holdout_replicas=2)
    assert [role(settings, parse_policy(TEXT), rank)[0] for rank in range(4)] == ["worker-"] * 2 + ["holdout-"] * 2


def test_holding_out_every_replica_is_refused() -> None:
    with pytest.raises(ExperimentError, match="replicas: 1 are not enough"):
        role(load_settings(replicas=1), BY_REPLICA, 0)
    with pytest.raises(SettingsError, match=r"holdout_replicas \(2\) must be under replicas \(2\)"):
        load_settings(replicas=2, holdout_replicas=2)


def test_serve_accepts_the_router() -> None:
    options = router_options(load_settings(replicas=2), BY_REPLICA)
    assert options["request_router_config"].request_router_class == ROUTER
    assert options["request_router_config"].get_request_router_class() is HashRouter
    assert issubclass(HashRouter, RequestRouter)


def test_every_replica_gets_its_equal_share() -> None:
    counts = Counter(
        routed(pending(f"req-{i}"), [replica(n) for n in NAMES])[0][0].replica_id.unique_id for i in range(2000)
    )
    assert all(430 < counts[name] < 570 for name in NAMES)


def test_a_request_goes_where_its_id_says_whatever_the_queues() -> None:
    """Power of two choices would prefer the shorter queue, and so the faster arm."""
    idle, busy = ([replica(n, q) for n in NAMES] for q in (0, 50))
    for i in range(50):
        (ours,), (theirs,) = routed(pending(f"r{i}"), idle), routed(pending(f"r{i}"), busy[::-1])
        assert [r.replica_id.unique_id for r in ours] == [r.replica_id.unique_id for r in theirs]


def test_when_a_replica_goes_only_its_requests_move_and_evenly() -> None:
    before = {f"r{i}": chosen(f"r{i}", NAMES) for i in range(3000)}
    after = {key: chosen(key, NAMES[:3]) for key in before}
    assert all(after[key] == name for key, name in before.items() if name != "d")
    moved = Counter(after[key] for key, name in before.items() if name == "d")
    assert max(moved.values()) - min(moved.values()) < 80


def test_a_call_that_is_no_request_goes_by_serves_own_id() -> None:
    replicas = [replica(n) for n in NAMES]
    assert routed(pending(None, "x"), replicas) == routed(pending(None, "x"), replicas)
    assert routed(None, replicas) == [replicas]
    assert routed(pending("r"), []) == [[]]
