"""Inputs that nobody plans for and everybody gets: profiles with holes, clocks that stand, drafters side by side."""

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest

from controlplane.decision.cells import NEVER, CellStates, Probes
from controlplane.decision.decide import Observation, Rates, decide
from controlplane.decision.estimate import Estimate
from controlplane.decision.guard import Circumstances, Rulings, judge_probes, rule
from controlplane.decision.latency import MOST_RATIO, StepTimes
from controlplane.decision.observation import BUCKETS, Evidence
from controlplane.decision.policy_table import PolicyTable
from controlplane.decision.tuners.base import Wish
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import MAX_K, LatencyCell, ProfileCell

SHAPE = (1, BUCKETS)
PROFILE = [ProfileCell(n, k, 64, 0.02 + 0.001 * k, 0.001 * k) for n in (1, 4) for k in (0, 2, 4)]
GOOD = [(2, 2, False, 60)]


def times_of(*cells: ProfileCell) -> StepTimes:
    times = StepTimes.of(cells)
    assert times is not None
    return times


def test_a_load_at_which_only_one_k_was_measured_is_left_out_of_a_profile() -> None:
    """The time to measure was over, or the n-gram drafter had too little to say there."""
    with_hole = times_of(*PROFILE, ProfileCell(8, 0, 64, 0.9, 0.0))
    assert with_hole.verifying.tolist() == times_of(*PROFILE).verifying.tolist()


def test_a_profile_in_which_no_load_has_two_k_tells_nothing() -> None:
    assert StepTimes.of([ProfileCell(1, 0, 64, 0.02, 0.0), ProfileCell(2, 4, 64, 0.03, 0.0)]) is None


@pytest.mark.parametrize("seconds", [0.0, 1e7])
def test_a_clock_that_stood_still_or_slept_corrects_step_times_within_bounds(seconds: float) -> None:
    times = times_of(*PROFILE)
    for _ in range(50):
        times = times.correct(np.array([LatencyCell(1, 5, 100, 100 * seconds)], np.float64))
    assert 1 / MOST_RATIO - 1e-12 <= times.correction.min() <= times.correction.max() <= MOST_RATIO + 1e-9
    assert (times.verifying > 0).all()


@pytest.mark.parametrize("per_second", [0.0, None])
def test_a_machine_that_costs_nothing_has_no_price_to_weigh(
    cohort_policy: Any, window: Any, loop: Any, per_second: float | None
) -> None:
    control = loop(cohort_policy(tuner="goodput", objective="cost"))
    with np.errstate(all="raise", under="ignore"):
        decisions = control.tick(0.0, window(GOOD), profile=PROFILE, rates=Rates(per_second))
    assert "cost is not pursued: no price is known" in decisions[0].sentence


def test_two_drafters_whose_windows_come_in_turns_are_doubted_once(cohort_policy: Any, window: Any, loop: Any) -> None:
    """While one replaces the other, a tick may have windows of either alone."""
    control = loop(cohort_policy())
    for second in range(20):
        control.drafter = f"ngram@{second % 2}"
        control.tick(float(second), window(GOOD), profile=PROFILE if second == 1 else ())
    assert control.state.estimate.samples[0] > 100
    assert control.state.times is not None


def test_a_drafter_that_comes_back_after_a_minute_is_a_swap(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    for now, drafter in ((0.0, "a@1"), (1.0, "a@2"), (30.0, "a@2"), (100.0, "a@1")):
        control.drafter = drafter
        control.tick(now, window(GOOD))
    assert control.state.drift_at.tolist() == [100.0]


def test_a_probe_of_the_old_drafter_says_nothing_of_the_new_one(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy(start=0))
    control.tick(0.0, window(GOOD))
    probes = Probes(np.array([1]), np.array([0]), np.array([0.0]), np.array([True]), _seen(19.0, 19.0))
    control.state = replace(control.state, probes=probes)
    control.drafter = "ngram@2"
    control.tick(1.0, window([(1, 0, False, 5)], k=1))
    assert control.state.probes.k.tolist() == [-1]


SLOWER = [cell._replace(seconds=10 * cell.seconds) for cell in PROFILE]


def machines(loop: Any, cohort_policy: Any, window: Any, reports: dict[float, dict[str, Any]]) -> Any:
    """The state after a profile of a cpu at second 0, and what machines report later: device -> profile, by second."""
    control = loop(cohort_policy())
    control.tick(0.0, window(GOOD), profile=PROFILE)
    for now, by_device in reports.items():
        seen = [
            replace(control.window(now, [window(GOOD)], profile), device=device)
            for device, profile in by_device.items()
        ]
        control.state = decide(control.state, Observation.of(seen, control.names), now).state
    return control.state


def first_step_s(state: Any) -> float:
    assert state.times is not None
    return float(state.times.verify[0, 0])


def test_another_machine_in_the_place_of_the_first_is_profiled_anew(loop: Any, cohort_policy: Any, window: Any) -> None:
    state = machines(loop, cohort_policy, window, {30.0: {"cuda": SLOWER}, 61.0: {"cuda": ()}, 95.0: {"cuda": SLOWER}})
    assert first_step_s(state) == pytest.approx(0.2)
    assert state.estimate.samples[0] > 100  # text is as it was


def test_another_machine_beside_the_first_takes_no_step_times_away(loop: Any, cohort_policy: Any, window: Any) -> None:
    both = {"cpu": (), "cuda": SLOWER}
    state = machines(loop, cohort_policy, window, {30.0: both, 61.0: both, 95.0: both})
    assert first_step_s(state) == pytest.approx(0.02)


def test_a_late_profile_of_the_old_drafter_gives_way_to_the_new_ones(
    loop: Any, cohort_policy: Any, window: Any
) -> None:
    control = loop(cohort_policy())
    for now, drafter, profile in ((0.0, "a@1", ()), (1.0, "a@2", ()), (2.0, "a@1", SLOWER)):
        control.drafter = drafter
        control.tick(now, window(GOOD), profile=profile)
    assert first_step_s(control.state) == pytest.approx(0.2)
    control.drafter = "a@2"
    for now in (30.0, 61.0, 70.0):
        control.tick(now, window(GOOD), profile=PROFILE)
    assert first_step_s(control.state) == pytest.approx(0.02)


def _seen(accepted: float, steps: float, upto: int = 1) -> Evidence:
    here = (np.arange(MAX_K) < upto)[None].astype(float)
    return Evidence(*(steps * here,) * 4, accepted * here)


def _ended_probe(k: int, evidence: Evidence) -> Probes:
    return Probes(np.array([k]), np.array([0]), np.array([0.0]), np.array([False]), evidence)


def _ruled(cohort: CohortPolicy, wish_k: int, k: int, probes: Probes, judged: bool, is_active: bool) -> Rulings:
    active = np.zeros(SHAPE, np.bool_)
    active[0, 0] = is_active
    cells = replace(
        CellStates.fresh(1), k=np.full(SHAPE, k), changed_at=np.zeros(SHAPE), waits_from=np.zeros(SHAPE),
        decided_at=np.zeros(SHAPE),
    )  # fmt: skip
    no, zero = np.zeros(SHAPE, np.bool_), np.zeros(SHAPE)
    wish = Wish(np.full(SHAPE, wish_k), np.full(SHAPE, np.inf), no, no, zero.astype(np.int64), zero, zero)
    seen = Circumstances(
        active, np.array([True]), no, np.array([NEVER]), np.full((1, MAX_K), NEVER), np.array([nan]), no, zero,
        np.full(SHAPE, 1e6), True, np.full(SHAPE, nan),
    )  # fmt: skip
    table = PolicyTable.of(Policy(1, (cohort,), None, "", ""))
    return rule(table, wish, cells, probes, np.array([judged]), seen, np.array([90.0]), 50.0)


def test_what_a_probe_saw_over_another_k_is_gone_when_its_cell_moves(cohort_policy: Any) -> None:
    """Left behind, it would pass at once as a probe of the rung that was just given up."""
    rulings = _ruled(cohort_policy(), 0, 2, _ended_probe(4, _seen(40.0, 60.0, 3)), judged=False, is_active=True)
    assert (rulings.cells.k[0, 0], rulings.probes.k.tolist()) == (0, [-1])


def test_a_probe_is_judged_only_over_the_rung_below_it(cohort_policy: Any) -> None:
    """Its cell may have followed another load meanwhile."""
    table = PolicyTable.of(Policy(1, (cohort_policy(),), None, "", ""))
    for rests_at, expected in ((2, True), (0, False)):
        cells = replace(CellStates.fresh(1), k=np.full(SHAPE, rests_at))
        judged, _ = judge_probes(table, cells, _ended_probe(4, _seen(60.0, 60.0, 4)), Estimate.of_nothing(1))
        assert judged.tolist() == [expected]


def test_a_probe_that_has_its_samples_is_believed_once_even_where_nothing_runs(cohort_policy: Any) -> None:
    """Believed anew at every tick, it would hide whatever other loads saw since."""
    rulings = _ruled(cohort_policy(), 0, 0, _ended_probe(1, _seen(60.0, 60.0)), judged=True, is_active=False)
    assert rulings.probes.k.tolist() == [-1]


@pytest.mark.parametrize("planned", [-1, 3, 17, 99])
def test_a_k_on_record_that_is_no_rung_is_not_resumed(cohort_policy: Any, loop: Any, planned: int) -> None:
    control = loop(cohort_policy(ladder=(0, 2, 16), start=2))
    resumed = control.state.resumed({"code": (planned,) * BUCKETS, "gone": (0,)}, 1.0)
    assert resumed.k_by_load() == {"code": (2,) * BUCKETS}
    assert (resumed.cells.decided_at == NEVER).all()
