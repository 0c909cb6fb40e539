"""The change alarm."""

import random
from dataclasses import replace

from controlplane.decision.drift import Drift, spread
from controlplane.decision.estimate import Estimate, Tally, tally
from controlplane.telemetry import StepCount


def seen(accepted: int, examined: int) -> Tally:
    return tally([StepCount(1, 1, False, accepted), StepCount(1, 0, False, examined - accepted)])


BELIEVED = Estimate().absorb(seen(180, 200))


def ticks_to_alarm(accepted: int, examined: int) -> int | None:
    drift = Drift()
    for tick in range(20):
        drift, is_alarm = drift.watch(BELIEVED, seen(accepted, examined))
        if is_alarm:
            return tick + 1
    return None


def test_a_fall_from_90_to_36_percent_is_noticed_within_three_ticks() -> None:
    assert ticks_to_alarm(9, 25) in (2, 3)


def test_one_odd_tick_is_not_drift() -> None:
    assert ticks_to_alarm(0, 25) != 1


def test_the_usual_acceptance_raises_no_alarm() -> None:
    assert ticks_to_alarm(22, 25) is None


def test_a_rise_is_noticed_too() -> None:
    drift, alarms = Drift(), 0
    low = Estimate().absorb(seen(60, 200))
    for _ in range(4):
        drift, is_alarm = drift.watch(low, seen(24, 25))
        alarms += is_alarm
    assert alarms


def test_silence_changes_nothing() -> None:
    assert Drift(3.0, 2.0).watch(BELIEVED, Tally()) == (Drift(3.0, 2.0), False)


def test_nothing_drifts_from_a_belief_without_evidence() -> None:
    assert Drift().watch(Estimate(), seen(0, 500)) == (Drift(), False)


def test_an_hour_of_steady_noise_raises_hardly_any_alarm() -> None:
    rng, drift, estimate, alarms = random.Random(3), Drift(), BELIEVED, 0
    for _ in range(3600):
        new = seen(sum(rng.random() < 0.9 for _ in range(25)), 25)
        drift, is_alarm = drift.watch(estimate, new)
        alarms += is_alarm
        estimate = estimate.absorb(new)
    assert alarms <= 1


def learnt_spread(texts: list[float]) -> float:
    rng, estimate = random.Random(3), BELIEVED
    for hazard in texts:
        new = seen(sum(rng.random() < hazard for _ in range(25)), 25)
        estimate = replace(estimate, spread=spread(estimate, new)).absorb(new)
    return estimate.spread


def test_independent_steps_have_a_spread_near_one() -> None:
    assert learnt_spread([0.7] * 400) < 1.6


def test_requests_that_differ_have_a_large_spread() -> None:
    assert learnt_spread([0.95, 0.95, 0.45, 0.45] * 100) > 4


def test_a_large_spread_makes_the_alarm_patient() -> None:
    wide = replace(BELIEVED, spread=16.0)
    drift, _ = Drift().watch(wide, seen(14, 25))
    hasty, _ = Drift().watch(BELIEVED, seen(14, 25))
    assert drift.down < hasty.down
