"""How fast an arm or an estimator follows a change, and how often it moves when nothing changes.

All of it at constant load, so that K has no other reason to move. A K is *right* when its true goodput is within 1 % of
the best rung's: rungs that are worth the same are equally right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.control.arms.base import ArmFactory, Setting, drive
from benchmarks.control.cost import Cost, Floats, Ints
from benchmarks.control.estimators import TrackerFactory
from benchmarks.control.profile import Profile
from benchmarks.control.score import changes
from benchmarks.control.world import World, split, stream, survival_of
from controlplane.telemetry import LOAD_BUCKETS

HIGH, LOW, HOPELESS = 0.9, 0.35, 0.03
NEAR_BEST = 0.99
SETTLED_WINDOWS = 3
SETTLED_SHARE = 0.9
"""A window counts as right when this share of its steps is: a probe of a step does not undo it."""

WINDOWS_BEFORE, WINDOWS_AFTER, WINDOWS_OFF, WINDOWS_TO_RECOVER = 60, 60, 150, 300
WINDOWS_UNCOUNTED, WINDOWS_COUNTED, STATIONARY_LOADS = 60, 120, (4, 32, 128)
STEPS_BEFORE, STEPS_AFTER, SETTLED_STEPS = 600, 600, 10


@dataclass(frozen=True, slots=True)
class Adaptation:
    """One arm on one profile and seed.

    windows_down, windows_up: windows of a second with a wrong K after acceptance jumped from 0.9 to 0.35, and back.
    windows_to_recover: windows until a K is in use that beats K = 0, after a drafter that was hopeless works again.
    changes_per_minute: of a cohort's K when nothing changes. None where the profile gives no load at which it can be
    told; a change that was never followed counts as all the windows there were.
    """

    windows_down: int | None
    windows_up: int | None
    windows_to_recover: int | None
    changes_per_minute: float


def adaptation(factory: ArmFactory, profile: Profile, seed: int) -> Adaptation:
    """`factory`'s arm through every change."""
    load = switch_load(profile, HIGH, LOW)
    hopeless_load = off_load(profile)
    return Adaptation(
        windows_down=None if load is None else _windows(factory, profile, seed, load, HIGH, LOW),
        windows_up=None if load is None else _windows(factory, profile, seed, load, LOW, HIGH),
        windows_to_recover=None if hopeless_load is None else _recovery(factory, profile, seed, hopeless_load),
        changes_per_minute=stationary_changes(factory, profile, seed),
    )


def goodput_by_rung(profile: Profile, level: float, load: int) -> Floats:
    """[rung] true tokens per second of `load` sequences of the first cohort at this level."""
    survival = survival_of(profile.cohorts[0], np.array([level]), profile.depth)[0]
    ladder = np.array(profile.ladder)
    return load * np.cumsum(survival)[ladder] / Cost(profile).seconds(np.array([[load]]), ladder[:, None])


def right_rungs(profile: Profile, level: float, load: int) -> Ints:
    """The K that are right."""
    goodput = goodput_by_rung(profile, level, load)
    return np.array(profile.ladder)[goodput >= NEAR_BEST * goodput.max()]


def switch_load(profile: Profile, before: float, after: float) -> int | None:
    """The load bucket nearest to the profile's median at which no K is right both before and after."""
    apart = [n for n in LOAD_BUCKETS if not set(right_rungs(profile, before, n)) & set(right_rungs(profile, after, n))]
    return min(apart, key=lambda n: abs(np.log(n / profile.load.median)), default=None)


def off_load(profile: Profile) -> int | None:
    """The same for a hopeless drafter, at whose level K = 0 alone is right."""
    off = [
        n
        for n in LOAD_BUCKETS
        if right_rungs(profile, HOPELESS, n).tolist() == [0] and 0 not in right_rungs(profile, HIGH, n)
    ]
    return min(off, key=lambda n: abs(np.log(n / profile.load.median)), default=None)


def one_cohort(profile: Profile, levels: Floats, load: int, seed: int) -> World:
    """A world of the first cohort alone, at these levels by step and constant load."""
    alone = profile.model_copy(update={"cohorts": profile.cohorts[:1], "steps": len(levels)})
    survival = survival_of(alone.cohorts[0], levels, alone.depth)[:, None, :]
    return World.of(alone, seed, np.full((len(levels), 1), load), survival)


def stationary_changes(factory: ArmFactory, profile: Profile, seed: int) -> float:
    """Changes of K per minute and running cohort, nothing drifting, in the worst of a few constant loads."""
    still = profile.model_copy(update={"steps": (WINDOWS_UNCOUNTED + WINDOWS_COUNTED) * profile.steps_per_second})
    shares = np.array([cohort.share for cohort in still.cohorts])
    levels = [cohort.levels[(seed + i) % len(cohort.levels)] for i, cohort in enumerate(still.cohorts)]
    survival = np.stack(
        [
            survival_of(cohort, np.full(still.steps, level), still.depth)
            for cohort, level in zip(still.cohorts, levels, strict=True)
        ],
        axis=1,
    )
    counted = slice(WINDOWS_UNCOUNTED * profile.steps_per_second, None)
    worst = 0.0
    for load in STATIONARY_LOADS:
        running = np.full(still.steps, load)
        sequences = split(running, np.tile(shares / shares.sum(), (still.steps, 1)), np.full(still.steps, 0.5))
        world = World.of(still, seed, sequences, survival)
        chosen = drive(factory(Setting(still, world.cost, seed)), world)
        cohorts = int((sequences[0] > 0).sum())
        worst = max(worst, changes(sequences[counted], chosen[counted]) / cohorts / (WINDOWS_COUNTED / 60.0))
    return worst


def steps_to_adapt(trackers: TrackerFactory, profile: Profile, seed: int) -> tuple[int, int] | None:
    """(down, up) steps of one sequence until the estimator alone names a right K, from the jump on, and keeps to it.

    The deepest rung is drafted, so that every step is evidence on every depth. (Were it the K that is named, none could
    be told apart from deeper ones that it keeps unseen: looking there is for the guard to order.) The cost is of the
    load at which the two levels have no right K in common.
    """
    load = switch_load(profile, HIGH, LOW)
    if load is None:
        return None
    return (
        _tracked(trackers, profile, seed, load, HIGH, LOW),
        _tracked(trackers, profile, seed, load, LOW, HIGH),
    )


def _tracked(trackers: TrackerFactory, profile: Profile, seed: int, load: int, before: float, after: float) -> int:
    ladder, tracker = np.array(profile.ladder), trackers(profile.depth)
    seconds = Cost(profile).uniform_s[load]
    levels = np.repeat([before, after], [STEPS_BEFORE, STEPS_AFTER])
    survival = survival_of(profile.cohorts[0], levels, profile.depth)
    uniforms = stream(profile, seed, f"tracked {before}").uniform(size=len(levels))
    right, is_right = set(right_rungs(profile, after, load).tolist()), []
    for t in range(len(levels)):
        named = int(ladder[np.argmax(tracker.emitted().mean[ladder] / seconds)])
        is_right.append(named in right)
        # One uniform number below S_j says that at least j are kept: inversion of the survival function.
        accepted = int((uniforms[t] < survival[t, 1:]).sum())
        counts = np.zeros((profile.depth + 1, profile.depth + 1), dtype=np.int64)
        counts[profile.depth, accepted] = 1
        tracker.absorb(counts)
    return first_settled(is_right[STEPS_BEFORE:], SETTLED_STEPS)


def _windows(factory: ArmFactory, profile: Profile, seed: int, load: int, before: float, after: float) -> int:
    pace = profile.steps_per_second
    levels = np.repeat([before, after], [WINDOWS_BEFORE * pace, WINDOWS_AFTER * pace])
    chosen = _drive_alone(factory, profile, levels, load, seed)
    is_right = np.isin(chosen[WINDOWS_BEFORE * pace :], right_rungs(profile, after, load))
    return first_settled(_by_window(is_right, pace), SETTLED_WINDOWS)


def _recovery(factory: ArmFactory, profile: Profile, seed: int, load: int) -> int:
    pace = profile.steps_per_second
    levels = np.repeat([HOPELESS, HIGH], [WINDOWS_OFF * pace, WINDOWS_TO_RECOVER * pace])
    chosen = _drive_alone(factory, profile, levels, load, seed)
    goodput = goodput_by_rung(profile, HIGH, load)
    useful = np.array(profile.ladder)[goodput > goodput[0]]
    return first_settled(_by_window(np.isin(chosen[WINDOWS_OFF * pace :], useful), pace), SETTLED_WINDOWS)


def _drive_alone(factory: ArmFactory, profile: Profile, levels: Floats, load: int, seed: int) -> Ints:
    world = one_cohort(profile, levels, load, seed)
    return drive(factory(Setting(world.profile, world.cost, seed)), world)[:, 0]


def _by_window(is_right: np.ndarray, pace: int) -> list[bool]:
    shares = is_right.reshape(-1, pace).mean(axis=1)
    return [bool(share >= SETTLED_SHARE) for share in shares]


def first_settled(is_right: Sequence[bool], settled: int) -> int:
    """Index of the first of `settled` right ones in a row (fewer at the end); the length where there is none."""
    for i in range(len(is_right)):
        if all(is_right[i : i + settled]):
            return i
    return len(is_right)
