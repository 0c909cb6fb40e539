"""One seed of one profile: every arm on its trace, and through every change."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.control.adapt import Adaptation, adaptation
from benchmarks.control.arms.base import Setting, drive
from benchmarks.control.profile import Profile
from benchmarks.control.recorded import RecordedProfile, build_recorded
from benchmarks.control.roster import BEST_FIXED, CLAIRVOYANT, PLANNED, REACTING
from benchmarks.control.score import Score, score
from benchmarks.control.world import build


@dataclass(frozen=True, slots=True)
class Trace:
    """scores: by arm. adaptations: by reacting arm; empty where not asked for, and for what was recorded, which has no
    jumps.
    """

    profile: str
    seed: int
    scores: dict[str, Score]
    adaptations: dict[str, Adaptation]


def run_trace(profile: Profile, seed: int, is_adaptation_wanted: bool) -> Trace:
    """All arms on one trace. The same profile and seed give the same trace."""
    is_recorded = isinstance(profile, RecordedProfile)
    world = build_recorded(profile, seed) if isinstance(profile, RecordedProfile) else build(profile, seed)
    chosen = {name: plan(world) for name, plan in PLANNED.items()}
    setting = Setting(profile, world.cost, seed)
    chosen |= {name: drive(factory(setting), world) for name, factory in REACTING.items()}
    clairvoyant, best_fixed = chosen[CLAIRVOYANT], chosen[BEST_FIXED]
    return Trace(
        profile.name,
        seed,
        {name: score(world, k, clairvoyant, best_fixed) for name, k in chosen.items()},
        {name: adaptation(factory, profile, seed) for name, factory in REACTING.items()}
        if is_adaptation_wanted and not is_recorded
        else {},
    )
