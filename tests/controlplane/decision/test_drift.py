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
    drift, alarm, _ = replace(NO_DRIFT, down=np.array([5.9])).watch(BELIEVED, seen(9, 25))
    assert (alarm[0], drift.down[0], drift.up[0]) == (True, 0.0, 0.0)


def test_silence_changes_nothing() -> None:
    before = replace(NO_DRIFT, up=np.array([3.0]), down=np.array([2.0]))
    drift, alarm, spread = before.watch(BELIEVED, Evidence.nothing(1))
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


def through(ticks: list[tuple[int, int]]) -> tuple[Estimate, list[bool]]:
    """The estimate after ticks of (accepted, examined), and in which of them the alarm was raised."""
    drift, estimate, alarms = NO_DRIFT, BELIEVED, []
    for accepted, examined in ticks:
        drift, alarm, estimate = drift.follow(estimate, seen(accepted, examined))
        alarms.append(bool(alarm[0]))
    return estimate, alarms


def test_after_an_alarm_what_was_seen_since_the_change_counts() -> None:
    estimate, alarms = through([(22, 25), (9, 25), (9, 25)])
    assert alarms == [False, False, True]
    assert 35 < estimate.samples[0] < 40  # the second tick, and half of the first
    assert estimate.hazards().mean[0, 0] == pytest.approx(0.36, abs=0.06)


def test_a_change_that_goes_on_is_known_by_its_newest_ticks() -> None:
    estimate, alarms = through([(190, 250), (130, 250), (70, 250)])
    assert any(alarms)
    assert estimate.samples[0] > 200
    assert estimate.hazards().mean[0, 0] < 0.5


def test_what_was_seen_before_an_earlier_alarm_is_not_of_the_next_change() -> None:
    estimate, alarms = through([*[(9, 25)] * 6, *[(24, 25)] * 3])
    assert [tick for tick, alarm in enumerate(alarms) if alarm] == [1, 8]
    assert 40 < estimate.samples[0] < 48
    assert estimate.hazards().mean[0, 0] > 0.9


def test_a_cohort_without_an_alarm_is_believed_as_ever_beside_one_with() -> None:
    rows = [(2, 25), (22, 25)]
    new = Evidence(*map(np.concatenate, zip(*(seen(*row)._all() for row in rows), strict=True)))
    old = Evidence(*map(np.concatenate, zip(*(seen(180, 200)._all() for _ in rows), strict=True)))
    estimate, drift, alarms = Estimate.of_nothing(2).absorb(old), Drift.none(2), np.zeros(2, bool)
    alone = Estimate.of_nothing(1).absorb(seen(180, 200))
    for _ in range(2):
        drift, alarm, estimate = drift.follow(estimate, new)
        alone = alone.absorb(seen(*rows[1]))
        alarms |= alarm
    assert alarms.tolist() == [True, False]
    assert estimate.evidence.accepted[1, 0] == pytest.approx(alone.evidence.accepted[0, 0])
