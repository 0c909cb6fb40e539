"""What only the production controller is asked: its estimator's bias, its pace, and what a tick and a look-up take."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.control.adapt import steps_to_adapt
from benchmarks.control.arms import OURS_MODULE
from benchmarks.control.estimator_checks import EstimatorCheck, check
from benchmarks.control.profile import Profile


@dataclass(frozen=True, slots=True)
class OursChecks:
    """steps_to_adapt: of every profile and seed, down and up together; evidence steps of one sequence."""

    estimator: EstimatorCheck
    steps_to_adapt: tuple[int, ...]
    tick_ms: float
    lookup_us: float


def ours_checks(profiles: Sequence[Profile], seeds: Sequence[int]) -> OursChecks | None:
    """None where the production controller is not part of this benchmark."""
    if importlib.util.find_spec(OURS_MODULE) is None:
        return None
    ours = importlib.import_module(OURS_MODULE)
    steps = [steps_to_adapt(ours.tracker, profile, seed) for profile in profiles for seed in seeds]
    return OursChecks(
        estimator=check(ours.fit, seeds[0]),
        steps_to_adapt=tuple(step for pair in steps if pair is not None for step in pair),
        tick_ms=float(ours.tick_ms()),
        lookup_us=float(ours.lookup_us()),
    )
