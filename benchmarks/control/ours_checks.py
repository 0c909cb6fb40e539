"""What only the production controller is asked: its estimator's bias, its pace, and what a tick and a look-up take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.control import ours
from benchmarks.control.adapt import steps_to_adapt
from benchmarks.control.estimator_checks import EstimatorCheck, check
from benchmarks.control.profile import Profile


@dataclass(frozen=True, slots=True)
class OursChecks:
    """steps_to_adapt: of every profile and seed, down and up together; evidence steps of one sequence.

    None (or empty) where `ours` does not offer what would be asked: `fit` (estimators.Fit), `tracker`
    (estimators.TrackerFactory), `tick_ms()` and `lookup_us()`.
    """

    estimator: EstimatorCheck | None
    steps_to_adapt: tuple[int, ...]
    tick_ms: float | None
    lookup_us: float | None


def ours_checks(profiles: Sequence[Profile], seeds: Sequence[int]) -> OursChecks:
    """All of them; jumps of acceptance on these profiles and seeds, which may be none."""
    fit, tracker, tick_ms, lookup_us = (_offered(name) for name in ("fit", "tracker", "tick_ms", "lookup_us"))
    pairs = [steps_to_adapt(tracker, profile, seed) for profile in profiles for seed in seeds] if tracker else []
    return OursChecks(
        estimator=check(fit) if fit else None,
        steps_to_adapt=tuple(step for pair in pairs if pair is not None for step in pair),
        tick_ms=float(tick_ms()) if tick_ms else None,
        lookup_us=float(lookup_us()) if lookup_us else None,
    )


def _offered(name: str) -> Callable[..., Any] | None:
    return getattr(ours, name, None)
