"""How many workers: by what they run and hold, not at once, and never beyond the bounds."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from workers.autoscaling import DOWN_AFTER_S, UP_AFTER_S, WorkerLoad, decide, replica_count


def loads(*requests: float, kv: float = 0.1) -> list[WorkerLoad]:
    return [WorkerLoad(n, 8, kv) for n in requests]


@pytest.mark.parametrize(
    ("running", "queued", "wanted"),
    [
        (loads(6), 0, 1),
        (loads(7), 0, 2),
        (loads(30), 0, 5),
        (loads(6), 4, 2),
        (loads(5, 6), 0, 2),
        (loads(4, 4, 4), 0, 3),  # two would do at 0.75: too near to the point where a third is wanted again
        (loads(3, 3, 3), 0, 2),
        (loads(0, 0, 0), 0, 1),
        (loads(100), 0, 6),
        ([], 0, 1),
    ],
)
def test_workers_follow_their_requests_within_the_bounds(running, queued, wanted) -> None:
    assert replica_count(running, queued, 1, 6) == wanted


def test_kv_that_is_nearly_full_wants_another_worker_however_few_requests_there_are() -> None:
    assert replica_count(loads(2, 2, kv=0.9), 0, 1, 6) == 3


def test_nobody_is_needed_for_nothing_where_that_is_allowed() -> None:
    assert [replica_count(loads(0, kv=0.0), 0, 0, 4), replica_count([], 0, 0, 4), replica_count([], 3, 0, 4)] == [
        0,
        0,
        1,
    ]


def context(requests: dict[str, float], replicas: int = 1, queued: float = 0.0) -> Any:
    """As Serve gives it."""
    return SimpleNamespace(
        aggregated_metrics={
            "requests": requests,
            "slots": dict.fromkeys(requests, 8.0),
            "kv_share": dict.fromkeys(requests, 0.1),
        },
        current_num_replicas=replicas,
        target_num_replicas=replicas,
        total_queued_requests=queued,
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=4,
        policy_state={},
        current_time=0.0,
    )


def test_serves_hook_says_what_is_wanted_now_as_serve_does_the_waiting() -> None:
    assert decide(context({"r": 20.0})) == (4, {})


def test_serves_hook_waits_until_every_worker_has_said_something() -> None:
    assert decide(context({"r": 0.0}, replicas=3)) == (3, {})


def test_serves_hook_starts_from_nothing_at_once() -> None:
    assert decide(context({}, replicas=0, queued=1.0)) == (1, {})


@pytest.fixture(scope="module")
def scaling() -> dict[str, Any]:
    """Serve's options of a worker that may be one of four."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray Serve complains about pydantic as it is imported
        from controlplane.settings import load_settings
        from workers.deployment import scaling_options

        assert scaling_options(load_settings(replicas=2)) == {"num_replicas": 2}
        return scaling_options(load_settings(replicas=2, max_replicas=4))


def test_serve_accepts_the_hook_and_takes_it_to_its_controller(scaling: dict[str, Any]) -> None:
    policy = scaling["autoscaling_config"].policy.get_policy()
    assert policy(context({}, replicas=0, queued=1.0)) == (1, {})


def test_serve_waits_as_long_as_this_says(scaling: dict[str, Any]) -> None:
    config = scaling["autoscaling_config"]
    assert (config.upscale_delay_s, config.downscale_delay_s) == (UP_AFTER_S, DOWN_AFTER_S)
