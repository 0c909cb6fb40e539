"""Symptoms that other engines' users reported, as tests of the control loop.

The rows are those of the project's notes on the engines: 1 slower than without drafts as K goes to 0 under load; 2 a
pause at K = 0 that costs what was known; 3 a K that nobody prepared; 4 K that flips on noise; 5 drafting on at high
load because acceptance is high; 6 workers that choose K apart; 7 a drain under adaptive K that hangs; 8 slower with
speculation than without; 9 context length that nothing looks at; 32 a position curve that ends. All rows:
docs/symptoms.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from controlplane.controller import Controller
from controlplane.decision.decide import Decision
from controlplane.decision.guard import Reason
from controlplane.decision.plan import Plan
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import (
    LOAD_BUCKETS,
    CohortWindow,
    LatencyCell,
    ProfileCell,
    Report,
    StepCell,
    StepCount,
    load_bucket,
)

LADDER = (0, 1, 2, 4, 8)
Cost = Callable[[int, int], float]


def big_machine(n: int, k: int) -> float:
    """Positions are nearly free: 20 ms and 0.02 ms a position."""
    return 0.020 + 2e-5 * n * (k + 1)


def small_machine(n: int, k: int) -> float:
    """Positions are dear from a few sequences on: 20 ms and 1 ms a position."""
    return 0.020 + 1e-3 * n * (k + 1)


def busy_machine(n: int, k: int) -> float:
    """At 32 sequences there is no room left: 6 ms and 1 ms a position."""
    return 0.006 + 1e-3 * n * (k + 1)


def cheap_draft(n: int, k: int) -> float:
    return 2e-4 * k


@dataclass
class Served:
    """One cohort on a machine whose true step times are known: a second a tick, plans obeyed a second late.

    hazard: second -> acceptance of every position. load: second -> running sequences. told: what the profile says a
    step takes, the truth unless given. context: second -> tokens of context a sequence; each costs context_s.
    """

    loop_type: Any
    cohort: CohortPolicy
    hazard: Callable[[int], float]
    verify: Cost
    draft: Cost = cheap_draft
    told: Cost | None = None
    load: Callable[[int], int] = lambda second: 1
    context: Callable[[int], int] = lambda second: 0
    context_s: float = 0.0
    seed: int = 0
    ks: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = self.loop_type(self.cohort)
        self.rng = np.random.default_rng(self.seed)

    @property
    def profile(self) -> list[ProfileCell]:
        told = self.told or self.verify
        ladder = self.cohort.speculation.ladder
        return [
            ProfileCell(n, k, context, told(n, k) + self.draft(n, k) + self.context_s * n * context, self.draft(n, k))
            for n in (1, 2, 4, 8, 16, 32)
            for k in ladder
            for context in ((0,) if not self.context_s else (0, 1000))
        ]

    def seconds(self, now: int, k: int) -> float:
        n = self.load(now)
        return self.verify(n, k) + self.draft(n, k) + self.context_s * n * self.context(now)

    def rate(self, now: int, k: int) -> float:
        """Tokens a second that K would bring, expected."""
        hazard = self.hazard(now)
        return self.load(now) * sum(hazard**j for j in range(k + 1)) / self.seconds(now, k)

    def best_k(self, now: int) -> int:
        return max(self.cohort.speculation.ladder, key=lambda k: self.rate(now, k))

    def run(self, seconds: int) -> "Served":
        for now in range(len(self.ks), len(self.ks) + seconds):
            n = self.load(now)
            bucket = load_bucket(n)
            k = self.loop.k()[bucket]
            step_s = self.seconds(now, k)
            steps = max(int(1.0 / step_s), 1)
            hazard = self.hazard(now)
            chances = [*(hazard**j * (1.0 - hazard) for j in range(k)), hazard**k]
            accepted = self.rng.multinomial(n * steps, chances)
            counts = tuple(StepCount(k, j, False, int(m)) for j, m in enumerate(accepted) if m)
            window = CohortWindow("code", (StepCell(bucket, k, counts, n * steps * step_s),))
            timed = LatencyCell(
                n, n * (k + 1), steps, steps * step_s * self.rng.uniform(0.97, 1.03), n * steps * self.context(now),
                steps * self.draft(n, k),
            )  # fmt: skip
            profile = self.profile if now == 0 else ()
            self.decisions += self.loop.tick(float(now), window, profile=profile, latency=[timed])
            self.ks.append(k)
            self.steps.append(n * steps)
            self.rates.append(sum(c.steps * (c.accepted + 1) for c in counts) / (steps * step_s))
        return self


@pytest.fixture
def served(loop: Any, cohort_policy: Any) -> Any:
    def make(*args: Any, start: int = 2, slots: str = "uniform", **changes: Any) -> Served:
        cohort = cohort_policy(tuner="goodput", ladder=LADDER, start=start, fallback=0, slots=slots)
        return Served(loop, cohort, *args, **changes)

    return make


def after(second: int, then: Any, before: Any) -> Callable[[int], Any]:
    return lambda now: then if now >= second else before


# Row 1


@pytest.mark.parametrize("slots", ["uniform", "ragged"])
def test_row_1_going_to_zero_under_load_is_never_slower_than_never_having_drafted(served: Any, slots: str) -> None:
    run = served(lambda now: 0.7, busy_machine, load=after(40, 32, 1), slots=slots).run(100)
    assert run.ks[39] > 0
    assert run.best_k(99) == 0
    without = run.rate(99, 0)
    assert np.mean(run.rates[40:]) >= 0.99 * without
    assert np.median(run.rates[40:45]) >= 0.99 * without


# Row 2


def test_row_2_a_long_pause_at_zero_under_load_does_not_cost_what_was_known(served: Any) -> None:
    def load(now: int) -> int:
        return 32 if 60 <= now < 360 else 1

    run = served(lambda now: 0.7, busy_machine, load=load).run(370)
    assert set(run.ks[61:360]) <= {0, 1}
    assert run.ks[360] > 0
    assert run.rate(0, run.ks[360]) >= 0.98 * run.rate(0, run.best_k(0))


# Row 3


def test_row_3_every_k_that_is_planned_was_prepared(served: Any) -> None:
    hazards, loads = (0.95, 0.2, 0.6), (1, 8, 32, 3, 200)
    run = served(lambda now: hazards[now // 40 % 3], small_machine, load=lambda now: loads[now // 25 % 5]).run(150)
    assert set(run.ks) <= set(LADDER)
    assert {0, 8} <= set(run.ks)


# Row 4


@pytest.mark.parametrize("seed", range(2))
def test_row_4_noise_at_a_pivot_changes_k_at_most_six_times_a_minute(served: Any, seed: int) -> None:
    """Two rungs are worth the same to a percent."""
    run = served(lambda now: 0.59, small_machine, load=lambda now: 2, seed=seed).run(300)
    ranked = sorted((run.rate(0, k) for k in LADDER), reverse=True)
    assert ranked[1] > 0.99 * ranked[0]
    for start in range(0, 240, 60):
        window = run.ks[start : start + 61]
        assert sum(a != b for a, b in pairwise(window)) <= 6


# Row 5


@pytest.mark.parametrize("slots", ["uniform", "ragged"])
def test_row_5_drafting_stops_at_high_load_although_nearly_all_is_accepted(served: Any, slots: str) -> None:

    def dear_draft(n: int, k: int) -> float:
        return 2e-4 * k * n

    run = served(lambda now: 0.87, busy_machine, dear_draft, load=after(60, 32, 1), slots=slots).run(120)
    assert run.rate(30, 4) > 1.2 * run.rate(30, 0)
    assert run.rate(100, 1) < 0.95 * run.rate(100, 0)
    assert (run.ks[59] > 0, set(run.ks[70:])) == (True, {0})
    assert run.loop.state.estimate.hazards().mean[0, 0] > 0.8


# Row 6


class NoJournal:
    """Keeps nothing."""

    def record(self, *args: Any) -> None: ...

    def policy_applied(self, *args: Any) -> None: ...

    def rollout_changed(self, *args: Any) -> None: ...

    def told(self, *args: Any, **named: Any) -> None: ...

    def alert(self, *args: Any) -> None: ...


def test_row_6_k_is_decided_once_and_every_worker_gets_the_same_plan(
    loop: Any, cohort_policy: Any, window: Any
) -> None:
    control = Controller(Policy(1, (cohort_policy(),), None, "abc", ""), NoJournal(), epoch=7)
    reports = loop(cohort_policy())
    plans: list[Plan] = []
    for second, accepted in enumerate((2, 0, 2)):
        for worker in ("w1", "w2", "w3"):
            seen = reports.window(second + 1.0, [window([(2, accepted, False, 60)])], worker=worker)
            plans.append(control.observe(Report(seen)))
        control.tick(second + 1.0)
    assert [plan.version for plan in plans[0::3]] == [plan.version for plan in plans[1::3]]
    assert all(a is b is c for a, b, c in zip(plans[0::3], plans[1::3], plans[2::3], strict=True))
    assert {plan.epoch for plan in plans} == {7}
    newest = control.plan
    assert len({newest.k_for("code", 3, 3.0, worker=worker) for worker in ("w1", "w2", "w3")}) == 1


# Row 7


def test_row_7_a_drain_from_256_sequences_to_none_goes_on_to_its_end(served: Any) -> None:
    run = served(lambda now: 0.9, small_machine, load=lambda now: max(256 >> (now // 10), 1)).run(100)
    assert run.ks[-1] == run.best_k(99)
    for second in range(100, 105):
        assert run.loop.tick(float(second)) == ()
    assert set(run.loop.k()) <= set(LADDER)
    assert len(run.loop.k()) == len(LOAD_BUCKETS)


# Row 8


def test_row_8_a_net_loss_is_turned_off_within_a_few_hundred_steps_and_says_why(served: Any) -> None:
    run = served(lambda now: 0.5, big_machine, lambda n, k: 0.03 * k, start=4).run(30)
    assert run.rate(0, 4) < run.rate(0, 0)
    off_at = run.ks.index(0)
    assert sum(run.steps[:off_at]) <= 200
    first = next(d for d in run.decisions if d.new_k < d.old_k)
    assert first.reason is Reason.LOWERED
    assert "expected +" in first.sentence
    assert "tokens/s" in first.sentence


def test_row_8_a_net_loss_that_the_profile_did_not_show_is_turned_off_too(served: Any) -> None:
    """Drafting looked free while the worker was idle, and is not."""
    run = served(lambda now: 0.5, lambda n, k: 0.02 + (0.04 if k else 0.0), told=big_machine, start=0).run(300)
    assert run.rate(0, 1) < 0.6 * run.rate(0, 0)
    assert 1 in run.ks  # it was tried
    assert np.mean(run.rates) >= 0.97 * run.rate(0, 0)


def test_row_8_a_raise_after_which_less_was_measured_is_taken_back_at_once_and_says_so(served: Any) -> None:
    """The second draft token costs three steps, and the profile says that it is free."""
    run = served(
        lambda now: 0.5, lambda n, k: 0.002 + (0.006 if k > 1 else 0.0), told=lambda n, k: 0.002 + 1e-6 * n * (k + 1),
        start=0,
    ).run(45)  # fmt: skip
    taken_back = next(d for d in run.decisions if d.reason is Reason.REVERTED)
    assert (taken_back.old_k, taken_back.new_k) == (2, 1)
    assert "fewer tokens/s were measured after it than before" in taken_back.sentence
    raised = next(d for d in run.decisions if d.new_k == 2)
    assert taken_back.at - raised.at <= 5.0
    assert run.ks[-1] == run.best_k(0) == 1


# Row 9


def test_row_9_longer_contexts_reach_the_step_times(served: Any) -> None:
    run = served(
        lambda now: 0.8, small_machine, load=lambda now: 4, context=after(60, 50_000, 100), context_s=1e-6
    ).run(180)
    times = run.loop.state.times
    assert times.context_s == pytest.approx(1e-6, rel=0.05)
    assert times.context_now == pytest.approx(50_000, rel=0.1)
    at_four = times.verifying[3]
    assert at_four[0] + times.drafting[3, 0] == pytest.approx(run.seconds(179, 0), rel=0.1)


def test_row_9_k_follows_what_longer_contexts_make_worth_it(served: Any) -> None:
    """Reading the context costs the same for every K, so that a deeper draft pays."""
    run = served(
        lambda now: 0.6, small_machine, load=lambda now: 4, context=after(60, 100_000, 100), context_s=1e-6
    ).run(200)
    assert run.best_k(0) < run.best_k(199)
    assert run.rate(199, run.ks[-1]) >= 0.95 * run.rate(199, run.best_k(199))
    assert run.ks[-1] > run.ks[59]


def test_row_9_a_cohort_of_long_prompts_is_judged_by_itself(loop: Any, cohort_policy: Any, window: Any) -> None:
    control = loop(cohort_policy("short"), cohort_policy("long"))
    for second in range(0, 60, 2):
        k = control.k("short")[0], control.k("long")[0]
        control.tick(
            float(second),
            window([(k[0], k[0], False, 50)], cohort="short"),
            window([(k[1], 0, False, 50)], cohort="long"),
        )
    assert (control.k("short")[0], control.k("long")[0]) == (8, 0)


# Row 32


def test_row_32_positions_that_are_never_kept_go_on_being_drafted(world: Any, cohort_policy: Any) -> None:
    """From the fifth on, as where a window was computed as the whole context: the shape of the curve says so."""
    cohort = cohort_policy(ladder=LADDER, start=8, fallback=0)
    broken = world(cohort, lambda now: (0.9,) * 4 + (0.0,) * 4).run(120).ks[10:]
    assert set(broken) <= {4, 8}
    assert broken.count(8) <= 0.1 * len(broken)  # a short probe now and then
    assert set(world(cohort, lambda now: (0.9,) * 8).run(120).ks) == {8}
