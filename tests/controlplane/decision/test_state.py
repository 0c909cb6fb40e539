"""What outlives a change of policy, a restart, a kill switch, a swapped drafter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from controlplane.decision.cells import NEVER
from controlplane.decision.decide import observe
from controlplane.decision.drift import KEPT
from controlplane.decision.guard import Reason
from controlplane.decision.observation import BUCKETS
from controlplane.policy import CohortPolicy, Policy
from controlplane.telemetry import ProfileCell

GOOD = [(2, 2, False, 60)]
BAD = [(2, 0, False, 60)]
PROFILE = [ProfileCell(n, k, 64, 0.02 + 0.001 * k, 0.001 * k) for n in (1, 4) for k in (0, 2, 4)]


def policy_of(*cohorts: CohortPolicy) -> Policy:
    return Policy(1, cohorts, None, "new", "")


@pytest.fixture
def learnt(cohort_policy: Any, window: Any, loop: Any) -> Any:
    """Two cohorts that were measured for a while: `code` well accepted, `chat` badly and off."""
    control = loop(cohort_policy(), cohort_policy("chat"))
    for second in range(3):
        control.tick(20.0 * second, window(GOOD), window(BAD, cohort="chat"), profile=PROFILE)
    return control


def samples(state: Any, cohort: int = 0) -> float:
    return float(state.estimate.samples[cohort])


def test_a_cohort_that_keeps_name_and_ladder_keeps_what_was_learnt(learnt: Any, cohort_policy: Any) -> None:
    carried = learnt.state.carried(policy_of(cohort_policy(hold_s=30.0), cohort_policy("chat")))
    assert samples(carried) == samples(learnt.state) > 50
    assert carried.k_by_load() == learnt.state.k_by_load()
    assert carried.table.revision == "new"


def test_cohorts_in_another_order_keep_their_own(learnt: Any, cohort_policy: Any) -> None:
    carried = learnt.state.carried(policy_of(cohort_policy("chat"), cohort_policy()))
    assert carried.k_by_load() == learnt.state.k_by_load()
    assert carried.estimate.pooled.tolist() == learnt.state.estimate.pooled[::-1].tolist()


def test_another_ladder_starts_anew(learnt: Any, cohort_policy: Any) -> None:
    carried = learnt.state.carried(policy_of(cohort_policy(ladder=(0, 2, 4)), cohort_policy("chat")))
    assert (samples(carried), carried.k_by_load()["code"]) == (0.0, (2,) * BUCKETS)
    assert samples(carried, 1) > 50


def test_another_tuner_keeps_the_beliefs_and_not_the_cells(learnt: Any, cohort_policy: Any) -> None:
    carried = learnt.state.carried(policy_of(cohort_policy(tuner="goodput"), cohort_policy("chat")))
    assert samples(carried) > 50
    assert (carried.cells.k[0] == -1).all()


def test_a_new_cohort_knows_nothing(learnt: Any, cohort_policy: Any) -> None:
    carried = learnt.state.carried(policy_of(cohort_policy("new"), cohort_policy()))
    assert (samples(carried, 0), samples(carried, 1) > 50) == (0.0, True)


def test_step_times_and_power_belong_to_the_machine_and_stay(learnt: Any, cohort_policy: Any) -> None:
    carried = learnt.state.carried(policy_of(cohort_policy("new")))
    assert carried.times is learnt.state.times
    assert carried.times is not None
    assert carried.power is learnt.state.power


def test_a_running_probe_is_carried(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(0.0, window(BAD))
    control.tick(60.0, window([(0, 0, False, 25)]))
    assert control.state.probing() == {"code": 0}
    assert control.state.carried(policy_of(cohort_policy(hold_s=1.0))).probing() == {"code": 0}


# Resumed after a restart


def test_a_restarted_controller_goes_on_from_the_plan_on_record(cohort_policy: Any, loop: Any) -> None:
    planned = (8, 4, 4, 2, 2, 1, 1, 0, 0)
    assert loop(cohort_policy()).state.resumed({"code": planned}, 100.0).k_by_load()["code"] == planned


def test_a_k_on_record_that_is_no_rung_any_more_is_not_taken(cohort_policy: Any, loop: Any) -> None:
    state = loop(cohort_policy()).state.resumed({"code": (3,) * BUCKETS, "gone": (4,) * BUCKETS}, 100.0)
    assert state.k_by_load() == {"code": (2,) * BUCKETS}


def test_holds_and_waits_begin_anew_after_a_restart(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.state = control.state.resumed({"code": (8,) * BUCKETS}, 100.0)
    (early,) = control.tick(105.0, window([(8, 0, False, 200)]))
    assert (early.reason, control.k()[0]) == (Reason.HOLDING, 8)
    (later,) = control.tick(110.0, window([(8, 0, False, 200)]))
    assert (later.reason, control.k()[0]) == (Reason.LOWERED, 0)


# At rest under a kill switch


def test_a_kill_switch_drops_probes_and_begins_every_wait_anew(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(0.0, window(BAD))
    control.tick(60.0, window([(0, 0, False, 25)]))
    rested = control.state.resting(61.0)
    assert rested.probing() == {}
    assert rested.k_by_load()["code"] == (0,) * BUCKETS
    assert (rested.cells.changed_at[0, 0], rested.cells.waits_from[0, 0]) == (61.0, 61.0)
    assert rested.cells.changed_at[0, 1] == NEVER  # never decided, so nothing to hold


def test_a_kill_switch_forgives_a_raise_that_it_interrupted(learnt: Any) -> None:
    assert (learnt.state.resting(60.0).cells.before_k == -1).all()


# Another drafter


def test_a_swapped_drafter_is_hardly_believed(learnt: Any, window: Any) -> None:
    believed, sd = samples(learnt.state), learnt.state.estimate.hazards().sd[0, 0]
    learnt.drafter = "ngram@2"
    learnt.tick(61.0, window([(2, 2, False, 1)]))
    assert samples(learnt.state) == pytest.approx(KEPT * believed + 1.0, rel=0.05)
    assert learnt.state.estimate.hazards().sd[0, 0] > sd


def test_its_step_times_are_unknown_until_it_was_profiled(learnt: Any, window: Any) -> None:
    learnt.drafter = "ngram@2"
    learnt.tick(61.0, window(GOOD))
    assert learnt.state.times is None
    learnt.tick(62.0, window(GOOD), profile=PROFILE)
    assert learnt.state.times is not None


def test_a_swap_counts_as_drift_so_that_k_may_move_at_once(learnt: Any, window: Any) -> None:
    learnt.drafter = "ngram@2"
    learnt.tick(41.0, window(GOOD))
    assert (learnt.state.drift_at == 41.0).all()


def test_the_same_drafter_is_not_doubted(learnt: Any, window: Any) -> None:
    times = learnt.state.times
    learnt.tick(61.0, window(GOOD))
    assert (samples(learnt.state) > 50, learnt.state.times is None, times is None) == (True, False, False)


def test_the_first_drafter_is_not_a_swap(cohort_policy: Any, window: Any, loop: Any) -> None:
    control = loop(cohort_policy())
    control.tick(1.0, window(GOOD))
    assert (control.state.drift_at == NEVER).all()


def test_a_tick_without_windows_forgets_no_drafter(learnt: Any, window: Any) -> None:
    learnt.tick(61.0)
    learnt.tick(62.0, window(GOOD))
    assert (learnt.state.drift_at == NEVER).all()
    assert learnt.state.times is not None


def test_observing_decides_nothing(learnt: Any, observed: Any, window: Any) -> None:
    """Under a kill switch evidence is taken in and K stays."""
    before = learnt.state
    after = observe(before, observed(window([(8, 0, False, 500)]), names=("code", "chat")), 100.0)
    assert after.k_by_load() == before.k_by_load()
    assert after.estimate.hazards().mean[0, 0] < before.estimate.hazards().mean[0, 0]


def test_a_state_is_a_value(learnt: Any, window: Any) -> None:
    """An earlier one can be kept and gone on from."""
    kept = learnt.state
    copies = [a.copy() for a in (kept.cells.k, kept.estimate.evidence.examined, kept.told, kept.running)]
    learnt.tick(100.0, window([(8, 0, False, 500)]))
    for copy, now in zip(copies, (kept.cells.k, kept.estimate.evidence.examined, kept.told, kept.running), strict=True):
        assert np.array_equal(copy, now)
    assert replace(kept).k_by_load() == kept.k_by_load()
