"""The change alarm."""

from dataclasses import replace

import numpy as np
import pytest

from controlplane.decision.drift import Drift
from controlplane.decision.estimate import Estimate
from controlplane.decision.observation import Evidence
from controlplane.telemetry import MAX_K


def seen(accepted: float, examined: float) -> Evidence:
    """Drafts of one token."""
    first = np.eye(1, MAX_K)
    return Evidence(*(examined * first,) * 4, accepted * first)


def believed(accepted: float, examined: float, spread: float = 2.0) -> Estimate:
    return replace(Estimate.of_nothing(1).absorb(seen(accepted, examined)), spread=np.array([spread]))


BELIEVED = believed(180, 200)
NO_DRIFT = Drift.none(1)


def ticks_to_alarm(accepted: int, examined: int, before: Estimate = BELIEVED) -> int | None:
    drift = NO_DRIFT
    for tick in range(20):
        drift, alarm, _ = drift.watch(before, seen(accepted, examined))
        if alarm[0]:
            return tick + 1
    return None


def test_a_fall_from_90_to_36_percent_is_noticed_within_three_ticks() -> None:
    assert ticks_to_alarm(9, 25) in (2, 3)


def test_one_odd_tick_is_not_drift() -> None:
    assert ticks_to_alarm(0, 25) != 1


def test_the_usual_acceptance_raises_no_alarm() -> None:
    assert ticks_to_alarm(22, 25) is None


def test_a_rise_is_noticed_too() -> None:
    alarm = ticks_to_alarm(24, 25, believed(60, 200))
    assert alarm is not None
    assert alarm <= 4


def test_an_alarm_starts_the_sums_anew() -> None:
    drift, alarm, _ = Drift(np.zeros(1), np.array([5.9])).watch(BELIEVED, seen(9, 25))
    assert (alarm[0], drift.down[0], drift.up[0]) == (True, 0.0, 0.0)


def test_silence_changes_nothing() -> None:
    drift, alarm, spread = Drift(np.array([3.0]), np.array([2.0])).watch(BELIEVED, Evidence.nothing(1))
    assert (drift.up[0], drift.down[0], alarm[0], spread[0]) == (3.0, 2.0, False, BELIEVED.spread[0])


def test_nothing_drifts_from_a_belief_without_evidence() -> None:
    drift, alarm, _ = NO_DRIFT.watch(Estimate.of_nothing(1), seen(0, 500))
    assert (drift.up[0], drift.down[0], alarm[0]) == (0.0, 0.0, False)


def test_the_drift_of_one_cohort_is_not_that_of_another() -> None:
    both = Evidence(*(np.concatenate([a, a]) for a in seen(180, 200)._all()))
    mixed = Evidence(*(np.concatenate([a, b]) for a, b in zip(seen(2, 25)._all(), seen(22, 25)._all(), strict=True)))
    drift, alarms = Drift.none(2), np.zeros(2, bool)
    for _ in range(3):
        drift, alarm, _ = drift.watch(Estimate.of_nothing(2).absorb(both), mixed)
        alarms |= alarm
    assert alarms.tolist() == [True, False]


def test_an_hour_of_steady_noise_raises_hardly_any_alarm() -> None:
    rng, drift, estimate, alarms = np.random.default_rng(3), NO_DRIFT, BELIEVED, 0
    for accepted in rng.binomial(25, 0.9, 3600):
        new = seen(float(accepted), 25)
        drift, alarm, spread = drift.watch(estimate, new)
        alarms += int(alarm[0])
        estimate = replace(estimate, spread=spread).absorb(new)
    assert alarms <= 1


def learnt_spread(texts: list[float]) -> float:
    rng, estimate = np.random.default_rng(3), BELIEVED
    for hazard in texts:
        new = seen(float(rng.binomial(25, hazard)), 25)
        _, _, spread = NO_DRIFT.watch(estimate, new)
        estimate = replace(estimate, spread=spread).absorb(new)
    return float(estimate.spread[0])


def test_independent_steps_have_a_spread_near_one() -> None:
    assert learnt_spread([0.7] * 400) < 1.6


def test_requests_that_differ_have_a_large_spread() -> None:
    assert learnt_spread([0.95, 0.95, 0.45, 0.45] * 100) > 4


@pytest.mark.parametrize("spread", [9.0, 16.0])
def test_a_large_spread_makes_the_alarm_patient(spread: float) -> None:
    drift, _, _ = NO_DRIFT.watch(replace(BELIEVED, spread=np.array([spread])), seen(14, 25))
    hasty, _, _ = NO_DRIFT.watch(BELIEVED, seen(14, 25))
    assert drift.down[0] < hasty.down[0]
