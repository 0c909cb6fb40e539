"""What a tuner is: a function from what is believed to the rungs it would like. Limits on moving are the guard's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from controlplane.decision.estimate import Estimate, Hazards, Outlook
from controlplane.decision.latency import StepTimes
from controlplane.decision.observation import Flags, Floats, Ints
from controlplane.decision.policy_table import PolicyTable
from controlplane.decision.power import Power
from controlplane.decision.tree_rungs import CHAINS, Shapes


@dataclass(frozen=True, slots=True)
class Rates:
    """What busy time costs: money per second of one worker's accelerator, and per joule beyond that. None: unknown.

    dialled: cohorts that pursue cost whatever their policy's objective is, because a budget of theirs is exceeded.
    """

    per_second: float | None = None
    per_joule: float = 0.0
    dialled: tuple[str, ...] = ()

    @classmethod
    def told(cls, value: Mapping[str, Any]) -> Rates:
        """As the journal has them."""
        return cls(**{**value, "dialled": tuple(value.get("dialled", ()))})


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """All that a tuner may look at. k: [cohorts, loads] i64, where each cell rests. is_unpaid: [cohorts, loads] whether
    nothing is drafted there though it rests above K = 0.

    share: [cohorts, loads] f64, part of the sequences at a load that are the cohort's. tail: [cohorts] f64, TPOT at the
    95th percentile over the mean. times: None before any worker was profiled; seconds: what they come to for each
    cohort up to the deepest rung of any, latency.uniform_seconds, where that was worked out already. shapes: which
    rungs are token trees.
    """

    table: PolicyTable
    estimate: Estimate
    hazards: Hazards
    outlook: Outlook
    k: Ints
    is_unpaid: Flags
    share: Floats
    tail: Floats
    times: StepTimes | None
    power: Power
    rates: Rates
    seconds: Floats | None = None
    shapes: Shapes = CHAINS


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """The rungs that a tuner would like, [cohorts, loads] each, and what they rest on.

    k: a rung of the ladder. gain: how much better it is than where the cell rests, as a share (infinite where it is
    tried for knowledge, not for gain). is_unexplored: the rung was never measured. is_blocked: the cell rests below a
    rung that is given up on evidence and would be taken were more accepted, so that only a probe can tell. position:
    0-based draft position whose conditional acceptance decided, -1 when none did; accepted, examined: that acceptance,
    and the discounted drafts behind it.
    """

    k: Ints
    gain: Floats
    is_unexplored: Flags
    is_blocked: Flags
    position: Ints
    accepted: Floats
    examined: Floats


Tuner = Callable[[Situation], Wish]
"""Pure, over all cohorts; the guard takes from it the cells of the cohorts that use it."""


def at_k(values: npt.NDArray[Any], k: Ints) -> npt.NDArray[Any]:
    """[cohorts, loads]: `values` [cohorts, loads, MAX_K + 1] at each cell's K (>= 0)."""
    return np.take_along_axis(values, k[:, :, None], axis=2)[:, :, 0]
