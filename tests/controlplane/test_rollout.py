"""Trying a policy on a part: who is in it, and what makes it promoted, rolled back, waited for or given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy import parse_policy
from controlplane.rollout import BURN_IN_S, Rollout, RolloutError, StageOrder, begin, judge, observe, part_of
from controlplane.telemetry import CohortWindow, LatencyHistogram, StepCell, StepCount, WindowId, WorkerWindow

T0 = 1_790_000_000.0
WORKERS = {f"worker-{i}": T0 for i in range(4)}
TEXT = """\
version: 1
cohorts:
  - {name: code, match: {api_key: [a]}, speculation: {tuner: threshold, ladder: [0, 2, 4], start: 2, fallback: 0}}
  - {name: chat, match: {api_key: [b]}, speculation: {tuner: threshold, ladder: [0, 2, 4], start: 2, fallback: 0}}
  - {name: rest, match: {}, speculation: {tuner: threshold, ladder: [0, 2, 4], start: 2, fallback: 0}}
"""
OLD = parse_policy(TEXT)
NEW = parse_policy(TEXT.replace("start: 2", "start: 4", 2))
FAST, SLOW = 6, 9
"""Indices of latency buckets: 40 and 100 ms."""


def cohort_window(name: str, speed: float, slow: float, failed: int = 0) -> CohortWindow:
    """A second of two sequences: `speed` tokens/s each, 1 of 2 requests finished, a share of `slow` of them slow."""
    steps = round(40 * speed)
    counts = [0] * 21
    counts[SLOW if slow else FAST] = 1
    tpot = LatencyHistogram(tuple(counts), 0.05)
    cell = StepCell(1, 2, (StepCount(0, 0, False, steps),), 2.0)
    return CohortWindow(name, (cell,), requests_finished=1, requests_failed=failed, tpot=tpot)


def tick(rng: np.random.Generator, i: int, speed: Callable[[str, str], float], **fields: Any) -> list[WorkerWindow]:
    slow = fields.pop("slow", lambda worker, cohort: 0.04)
    failed = fields.pop("failed", lambda worker, cohort: 0)
    windows = []
    for worker in WORKERS:
        cohorts = []
        for cohort in ("code", "chat", "rest"):
            noise = float(np.exp(rng.normal(0, 0.08)))
            is_slow = bool(rng.random() < slow(worker, cohort))
            cohorts.append(cohort_window(cohort, speed(worker, cohort) * noise, is_slow, failed(worker, cohort)))
        identity = WindowId(worker, 1, i)
        windows.append(
            WorkerWindow(
                identity, "m", "ngram@1", "cpu", T0 + i - 1, T0 + i, busy_s=0.9, energy_uj=None, energy_source="none",
                plan_version=1, plan_expired=False, plan_age_s=0.0, running=6, waiting=0, kv_used=0, kv_total=0,
                cohorts=tuple(cohorts),
            )
        )  # fmt: skip
    return windows


def run(
    order: StageOrder, effect: float = 1.0, seed: int = 0, ticks: int = 1000, trend: float = 0.0, **fields: Any
) -> Rollout:
    """A rollout whose candidate multiplies the speed of what obeys it, until it is over."""
    rng = np.random.default_rng(seed)
    rollout = begin(NEW, OLD, order, workers=WORKERS, by="ann", why="deeper", now=T0)
    for i in range(1, ticks):

        def speed(worker: str, cohort: str, rollout: Rollout = rollout, i: int = i) -> float:
            part = worker if order.unit == "replicas" else cohort
            is_tried = part in rollout.members and rollout.begins_at is not None
            base = {"code": 3.0, "chat": 2.0, "rest": 1.5}[cohort] * float(np.exp(trend * i))
            return base * (effect if is_tried else 1.0)

        given = {name: (lambda w, c, f=f, r=rollout: f(w in r.members or c in r.members)) for name, f in fields.items()}
        rollout = judge(observe(rollout, tick(rng, i, speed, **given), T0 + i), T0 + i)
        if rollout.is_over:
            break
    return rollout


REPLICAS = StageOrder(0.5, "replicas", min_windows=60, max_s=900)
COHORTS = StageOrder(0.5, "cohorts", min_windows=60, max_s=900)


@pytest.mark.parametrize("order", [REPLICAS, COHORTS])
def test_a_better_policy_is_promoted(order: StageOrder) -> None:
    rollout = run(order, 1.1)
    assert (rollout.stage, rollout.policy) == ("promoted", NEW)
    assert rollout.sentence.startswith("promoted: no slower")


@pytest.mark.parametrize("order", [REPLICAS, COHORTS])
def test_a_slower_policy_is_rolled_back_and_the_reason_has_figures(order: StageOrder) -> None:
    rollout = run(order, 0.85)
    assert (rollout.stage, rollout.policy) == ("rolled_back", OLD)
    assert "slower; tokens/s per sequence -1" in rollout.sentence


def test_a_policy_that_changes_nothing_is_promoted() -> None:
    assert [run(REPLICAS, 1.0, seed).stage for seed in range(5)] == ["promoted"] * 5


def test_where_noise_hides_it_a_policy_that_changes_nothing_is_given_up_but_not_called_worse() -> None:
    stages = [run(COHORTS, 1.0, seed).stage for seed in range(4)]
    assert "promoted" in stages
    assert "rolled_back" not in stages


def test_a_trend_that_all_cohorts_share_is_not_taken_for_an_effect() -> None:
    assert run(COHORTS, 1.0, trend=-0.004).stage == "promoted"


def test_a_policy_that_makes_requests_slow_is_rolled_back_whatever_its_mean_speed() -> None:
    rollout = run(REPLICAS, 1.1, slow=lambda is_tried: 0.3 if is_tried else 0.04)
    assert (rollout.stage, rollout.sentence.split(";")[0]) == ("rolled_back", "rolled back: TPOT got worse")


def test_a_policy_under_which_requests_fail_is_rolled_back_before_its_minimum_of_windows() -> None:
    rollout = run(REPLICAS, 1.1, failed=lambda is_tried: int(is_tried))
    assert rollout.stage == "rolled_back"
    assert rollout.evidence.ticks < 60
    assert "requests failed where it was tried, 0 of" in rollout.sentence


def test_without_a_second_part_to_compare_it_times_out_and_is_rolled_back() -> None:
    rollout = begin(NEW, OLD, REPLICAS, workers=WORKERS, by="ann", why="", now=T0)
    for i in (1, 500, 901):
        rollout = judge(observe(rollout, [], T0 + i), T0 + i)
    assert (rollout.stage, rollout.policy, rollout.ended_at) == ("timed_out", OLD, T0 + 901)
    assert "0 of 60 windows with both parts" in rollout.sentence


def test_nothing_is_measured_while_the_candidate_settles() -> None:
    rng = np.random.default_rng(0)
    rollout = begin(NEW, OLD, REPLICAS, workers=WORKERS, by="ann", why="", now=T0)
    rollout = observe(rollout, tick(rng, 1, lambda w, c: 1.0), T0 + BURN_IN_S - 1)
    assert rollout.evidence.ticks == 0
    assert observe(rollout, tick(rng, 2, lambda w, c: 1.0), T0 + BURN_IN_S).evidence.ticks == 1


def test_cohorts_are_measured_as_they_are_before_any_obeys_the_candidate() -> None:
    rng = np.random.default_rng(0)
    rollout = begin(NEW, OLD, COHORTS, workers=WORKERS, by="ann", why="", now=T0)
    assert rollout.policy == OLD
    for i in range(1, 121):
        assert rollout.begins_at is None
        rollout = observe(rollout, tick(rng, i, lambda w, c: 1.0), T0 + i)
    assert rollout.begins_at == T0 + 120
    tried = {c.name: c.speculation.start for c in rollout.policy.cohorts}
    assert sorted(tried.values()) == [2, 2, 4]
    assert [name for name, start in tried.items() if start == 4] == list(rollout.members)


def test_a_cohort_that_tries_the_candidate_keeps_its_own_requests() -> None:
    wider = parse_policy(NEW.text.replace("[a]", "[a, c]"))
    rollout = replace(begin(wider, OLD, COHORTS, workers=WORKERS, by="", why="", now=T0), begins_at=T0)
    assert [c.match for c in rollout.policy.cohorts] == [c.match for c in OLD.cohorts]


def test_only_workers_of_the_part_obey_the_candidate() -> None:
    rollout = begin(NEW, OLD, REPLICAS, workers=WORKERS, by="ann", why="", now=T0)
    assert 0 < len(rollout.member_workers) < 4
    assert rollout.policy == OLD


def test_the_part_is_chosen_anew_among_the_workers_that_are_there() -> None:
    rng = np.random.default_rng(0)
    rollout = begin(NEW, OLD, REPLICAS, workers=WORKERS, by="ann", why="", now=T0)
    left = [w for w in tick(rng, 1, lambda w, c: 1.0) if w.id.worker not in rollout.members][:2]
    for at in (1.0, 61.0):
        rollout = observe(rollout, left, T0 + at)
    assert len(rollout.members) == 1
    assert rollout.members < {w.id.worker for w in left}


@settings(max_examples=60, deadline=None)
@given(st.sets(st.text(max_size=8), min_size=2, max_size=30), st.text(max_size=12), st.floats(0.01, 0.99))
def test_a_part_is_some_but_not_all_and_always_the_same(names: set[str], revision: str, share: float) -> None:
    part = part_of(names, revision, share)
    assert 0 < len(part) < len(names)
    assert part == part_of(sorted(names, reverse=True), revision, share)


def test_a_part_is_about_as_large_as_asked() -> None:
    assert 60 <= len(part_of([f"worker-{i}" for i in range(1000)], NEW.revision, 0.1)) <= 140


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({"share": 0.0}, "between 0 and 1"),
        ({"share": 1.0}, "between 0 and 1"),
        ({"share": float("nan")}, "between 0 and 1"),
        ({"share": 0.1, "unit": "workers"}, "cohorts, replicas"),
        ({"share": 0.1, "min_windows": 3}, "not within"),
        ({"share": 0.1, "min_windows": 100, "max_s": 50}, "not over min_windows"),
    ],
)
def test_an_order_that_cannot_be_is_refused(order: dict[str, Any], says: str) -> None:
    with pytest.raises(RolloutError, match=says):
        StageOrder(**order)


def test_policies_with_the_same_settings_cannot_be_compared() -> None:
    with pytest.raises(RolloutError, match="no cohort of both policies has other settings"):
        begin(parse_policy(TEXT + "# comment\n"), OLD, REPLICAS, workers=WORKERS, by="", why="", now=T0)


def test_one_replica_cannot_be_a_part() -> None:
    with pytest.raises(RolloutError, match="takes two of them, and there is 1: choose unit cohorts"):
        begin(NEW, OLD, REPLICAS, workers={"a": T0, "gone": T0 - 100}, by="", why="", now=T0)
