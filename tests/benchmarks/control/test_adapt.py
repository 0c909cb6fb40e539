"""How fast an arm follows: measured on made-up arms and trackers whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.control import adapt
from benchmarks.control.adapt import HIGH, HOPELESS, LOW
from benchmarks.control.arms.base import Setting
from benchmarks.control.cost import Floats, Ints
from benchmarks.control.estimators import Emitted
from benchmarks.control.ours import Ours
from benchmarks.control.profile import Profile, shipped_profiles
from benchmarks.control.world import StepOutcome, survival_of

PACE = 10


class Scripted:
    """Chooses what `k` says for each window."""

    def __init__(self, setting: Setting, k) -> None:
        self._k, self._cohorts = k, len(setting.profile.cohorts)

    def choose(self, t: int, running: Ints) -> Ints:
        return np.full(self._cohorts, self._k(t))

    def observe(self, t: int, outcome: StepOutcome) -> None:
        pass


def right(profile: Profile, level: float, load: int) -> int:
    return int(adapt.right_rungs(profile, level, load)[0])


def followed(profile: Profile, late: int):
    """An arm that has HIGH's right K until `late` windows after the jump, then LOW's."""
    load = adapt.switch_load(profile, HIGH, LOW)
    ends = (adapt.WINDOWS_BEFORE + late) * PACE
    high, low = (right(profile, level, load) for level in (HIGH, LOW))
    return lambda setting: Scripted(setting, lambda t: high if t < ends else low)


def test_windows_until_the_right_k_are_counted_from_the_jump(small) -> None:
    assert adapt.adaptation(followed(small, 4), small, 0).windows_down == 4


def test_a_change_that_is_never_followed_counts_as_all_windows(small) -> None:
    # On the way up it leaves what is right just when that becomes right.
    assert adapt.adaptation(followed(small, 0), small, 0).windows_up == adapt.WINDOWS_AFTER


def test_ours_is_back_within_two_probe_periods_where_only_a_probe_leads_out_of_k_0() -> None:
    (profile,) = (p for p in shipped_profiles() if p.name == "early-knee")
    load = adapt.switch_load(profile, HIGH, LOW)
    assert adapt.right_rungs(profile, LOW, load).tolist() == [0]
    up = np.repeat([LOW, HIGH], [30 * profile.steps_per_second, 120 * profile.steps_per_second])
    chosen = adapt._drive_alone(Ours, profile, up, load, seed=3)
    is_right = np.isin(chosen[30 * profile.steps_per_second :], adapt.right_rungs(profile, HIGH, load))
    assert adapt.first_settled(adapt._by_window(is_right, profile.steps_per_second), 3) < 120


def test_windows_to_recover_are_counted_from_the_drafters_return(small) -> None:
    off = adapt.WINDOWS_OFF * PACE
    arm = adapt.adaptation(lambda setting: Scripted(setting, lambda t: 0 if t < off + 70 else 2), small, 0)
    assert arm.windows_to_recover == 7


def test_changes_at_rest_are_per_minute_and_cohort(small) -> None:
    # One change every ten windows of a second: six a minute, for each of the two cohorts.
    changing = adapt.stationary_changes(lambda s: Scripted(s, lambda t: 1 + t // (10 * PACE) % 2), small, 0)
    assert changing == pytest.approx(6.0, abs=0.5)


def test_an_arm_at_rest_makes_no_changes(small) -> None:
    assert adapt.stationary_changes(lambda setting: Scripted(setting, lambda t: 2), small, 0) == 0.0


def test_a_window_with_one_probe_in_it_is_still_right(small) -> None:
    load = adapt.switch_load(small, HIGH, LOW)
    k = right(small, LOW, load)
    probing = adapt.adaptation(lambda s: Scripted(s, lambda t: 4 if t % PACE == 0 and k != 4 else k), small, 0)
    assert probing.windows_down == 0


@pytest.mark.parametrize("profile", shipped_profiles(), ids=lambda profile: profile.name)
def test_every_shipped_profile_has_a_load_at_which_changes_can_be_told(profile) -> None:
    load, off = adapt.switch_load(profile, HIGH, LOW), adapt.off_load(profile)
    assert load is not None
    assert off is not None
    assert not set(adapt.right_rungs(profile, HIGH, load)) & set(adapt.right_rungs(profile, LOW, load))
    assert adapt.right_rungs(profile, HOPELESS, off).tolist() == [0]


def test_settled_means_so_many_in_a_row() -> None:
    assert adapt.first_settled([False, True, False, True, True, True], 3) == 3
    assert adapt.first_settled([True, True], 3) == 0
    assert adapt.first_settled([True, False], 1) == 0
    assert adapt.first_settled([False, False], 3) == 2


class Delayed:
    """A tracker that believes HIGH's law for so many steps, then LOW's."""

    def __init__(self, profile: Profile, high_steps: int) -> None:
        self._laws = [self._emitted(profile, level) for level in (HIGH, LOW)]
        self._high_steps, self.seen = high_steps, []

    @staticmethod
    def _emitted(profile: Profile, level: float) -> Floats:
        return np.cumsum(survival_of(profile.cohorts[0], np.array([level]), profile.depth)[0])

    def absorb(self, counts: Ints) -> None:
        self.seen.append(counts)

    def emitted(self) -> Emitted:
        mean = self._laws[len(self.seen) >= self._high_steps]
        return Emitted(mean, mean, mean)


def test_steps_of_evidence_are_counted_from_the_jump(small) -> None:
    assert adapt.steps_to_adapt(lambda depth: Delayed(small, adapt.STEPS_BEFORE + 25), small, 0)[0] == 25


def test_an_estimator_that_never_follows_counts_as_all_steps(small) -> None:
    assert adapt.steps_to_adapt(lambda depth: Delayed(small, adapt.STEPS_BEFORE), small, 0)[1] == adapt.STEPS_AFTER


def test_every_evidence_step_is_one_sequence_that_drafted_and_follows_the_law(small) -> None:
    trackers = []

    def factory(depth: int) -> Delayed:
        trackers.append(Delayed(small, adapt.STEPS_BEFORE))
        return trackers[-1]

    assert adapt.steps_to_adapt(factory, small, 0) is not None
    seen = np.array(trackers[0].seen)
    assert (seen.sum(axis=(1, 2)) == 1).all()
    assert not seen[:, 0].any()
    assert not np.triu(seen, 1).any()
    before, after = seen[: adapt.STEPS_BEFORE].sum(axis=0), seen[adapt.STEPS_BEFORE :].sum(axis=0)
    for counts, level in ((before, HIGH), (after, LOW)):
        expected = survival_of(small.cohorts[0], np.array([level]), 1)[0, 1]
        assert counts[:, 1:].sum() / counts.sum() == pytest.approx(expected, abs=0.06)


def test_every_step_is_evidence_on_every_depth_where_the_right_k_is_zero_too() -> None:
    knee = next(profile for profile in shipped_profiles() if profile.name == "early-knee")
    assert adapt.right_rungs(knee, LOW, adapt.switch_load(knee, HIGH, LOW)).tolist() == [0]
    trackers = []

    def factory(depth: int) -> Delayed:
        trackers.append(Delayed(knee, adapt.STEPS_BEFORE))
        return trackers[-1]

    adapt.steps_to_adapt(factory, knee, 0)
    assert (np.array(trackers[0].seen)[:, knee.depth].sum(axis=1) == 1).all()
