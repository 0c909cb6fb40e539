"""What an arm is: it chooses K for each cohort before a step and sees what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.control.cost import Cost, Ints
from benchmarks.control.profile import Profile
from benchmarks.control.world import StepOutcome, World, stream


@dataclass(frozen=True, slots=True)
class Setting:
    """What an arm is told before the first step: the profile's ladder, cohorts and pace, and the cost of a step.

    An arm must not read the profile's load, levels or regimes. `cost` is exact; an arm that wants what a real worker
    has measures it with `cost.measured`. seed: of the trace; `generator` gives the arm random numbers of its own.
    """

    profile: Profile
    cost: Cost
    seed: int

    def generator(self, purpose: str) -> np.random.Generator:
        return stream(self.profile, self.seed, f"arm {purpose}")


class Arm(Protocol):
    """One way to choose K, over one trace."""

    def choose(self, t: int, running: Ints) -> Ints:
        """K by cohort for step t; running: sequences by cohort."""
        ...

    def observe(self, t: int, outcome: StepOutcome) -> None:
        """What step t brought; called once after every `choose`."""
        ...


ArmFactory = Callable[[Setting], Arm]
Planner = Callable[[World], Ints]
"""K by [step, cohort], from the whole trace."""


def drive(arm: Arm, world: World) -> Ints:
    """K that `arm` chose, [step, cohort]."""
    chosen = np.empty_like(world.sequences)
    for t in range(world.steps):
        k = arm.choose(t, world.sequences[t])
        chosen[t] = k
        arm.observe(t, world.outcome(t, chosen[t]))
    return chosen


def rung_index(ladder: tuple[int, ...], k: float) -> int:
    """Index of the deepest rung that is not above k (0 where all are)."""
    return max(sum(rung <= k for rung in ladder) - 1, 0)
