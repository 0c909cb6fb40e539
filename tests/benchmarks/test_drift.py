"""The parts of the drift benchmark that need no model: its requests, its turns, and what it makes of runs."""

from __future__ import annotations

import threading
import time

import pytest

from benchmarks.drift_arms import TurnClock, Turnstile
from benchmarks.drift_figures import WHOLE, PhaseRun, Turn, aims, differences, rows_of
from benchmarks.drift_policy import policy_of
from benchmarks.drift_trace import Phase, phases, requests_of

PROMPTS = [(1, 2, 3), (4, 5)]


def run(seconds: float, tokens: int = 10, k: dict[int, int] | None = None, token: int = 1) -> PhaseRun:
    return PhaseRun(seconds, {"r": (token,) * tokens}, {"r": "word"}, k or {}, 8, 4, 16, 6)


def turns(adaptive_s: float = 2.0) -> list[Turn]:
    """Two phases, one round: K=0 is best in the first, K=8 in the second."""
    seconds = {"K=0": (2.0, 4.0), "K=8": (3.0, 2.0), "adaptive": (adaptive_s, 2.0)}
    return [Turn(arm, at, f"phase {at}", 0, run(s)) for arm, both in seconds.items() for at, s in enumerate(both)]


def test_arms_get_the_same_requests_and_rounds_get_others() -> None:
    phase = Phase("code", 8, 3)
    first = requests_of(0, phase, 0, PROMPTS, 16, "code")
    assert first == requests_of(0, phase, 0, PROMPTS, 16, "code")
    later = requests_of(0, phase, 1, PROMPTS, 16, "code")
    assert not {r.sampling.seed for r in first} & {r.sampling.seed for r in later}


def test_all_requests_of_a_trace_have_seeds_of_their_own() -> None:
    every = [
        r.sampling.seed
        for round in range(3)
        for at, phase in enumerate(phases(8, 1.0))
        for r in requests_of(at, phase, round, PROMPTS, 16, "mix")
    ]
    assert None not in every
    assert len(set(every)) == len(every)


def test_a_small_scale_still_asks_something_in_every_phase() -> None:
    assert all(phase.requests >= 1 for phase in phases(8, 0.01))


def test_the_best_fixed_k_is_found_phase_by_phase() -> None:
    best = {row["phase"]: row["best_fixed"] for row in rows_of(turns(), ["K=0", "K=8"])}
    assert best == {"phase 0": "K=0", "phase 1": "K=8", WHOLE: "K=8"}


def test_the_whole_trace_is_all_tokens_over_all_seconds() -> None:
    whole = [row for row in rows_of(turns(), ["K=0", "K=8"]) if row["phase"] == WHOLE]
    assert {row["arm"]: row["tokens_per_s"] for row in whole} == {"K=0": 3.33, "K=8": 4.0, "adaptive": 5.0}


def test_aims_are_reached_by_an_arm_that_is_best_everywhere() -> None:
    found = aims(rows_of(turns(), ["K=0", "K=8"]), "adaptive")
    assert found["is_within_each_phase"]
    assert found["is_above_best_single_k"]


def test_aims_name_the_phase_that_fell_short() -> None:
    found = aims(rows_of(turns(adaptive_s=2.2), ["K=0", "K=8"]), "adaptive")
    assert (found["is_within_each_phase"], found["worst_phase"]) == (False, "phase 0")


def test_k_is_weighed_by_steps() -> None:
    row = rows_of([Turn("K=8", 0, "phase", 0, run(1.0, k={0: 30, 8: 10}))], ["K=8"])[0]
    assert (row["mean_k"], row["k_shares"]) == (2.0, "0:0.75 8:0.25")


def test_texts_that_depend_on_k_are_told() -> None:
    unequal = [Turn("K=0", 0, "phase", 0, run(1.0)), Turn("K=8", 0, "phase", 0, run(1.0, token=2))]
    assert differences(unequal) == ["phase, request r: K=8 differs from K=0 at token 0"]


def test_a_clock_stands_between_turns() -> None:
    clock = TurnClock()
    clock.go()
    clock.stand()
    passed = clock.seconds
    time.sleep(0.01)
    assert clock.seconds == passed


def test_a_turnstile_holds_a_thread_until_it_is_opened() -> None:
    turnstile, passed = Turnstile(), threading.Event()

    def walk() -> None:
        turnstile.pass_through()
        passed.set()

    thread = threading.Thread(target=walk, daemon=True)
    thread.start()
    turnstile.wait_until_parked(10.0)
    assert not passed.is_set()
    turnstile.open()
    assert passed.wait(10.0)


def test_waiting_for_a_thread_that_does_not_park_ends() -> None:
    with pytest.raises(TimeoutError):
        Turnstile().wait_until_parked(0.01)


@pytest.mark.parametrize("cohorts", [["mix"], ["code", "json", "fiction"]])
def test_the_arms_policies_are_legal(cohorts: list[str]) -> None:
    policy = policy_of(cohorts, "tuner: goodput, slots: ragged")
    assert [c.name for c in policy.cohorts] == cohorts
