"""What a tuner is: a function from what is believed to the rung it would like. Limits on moving are the guard's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.decision.estimate import Estimate
from controlplane.policy import Speculation


@dataclass(frozen=True, slots=True)
class Wish:
    """The rung a tuner would like, and what it rests on.

    k: a rung of the ladder. position: 0-based position whose conditional acceptance decided, None when none did;
    accepted: that acceptance; examined: discounted drafts behind it. strength: how far the evidence is beyond the rule,
    as a share of the floor (for the guard's dead band; infinite when evidence is not the reason). is_unexplored: the
    rung was never measured. is_blocked: the rung above the present one is given up on evidence while the present one
    is accepted well, so only a probe can tell whether that still holds.
    """

    k: int
    position: int | None = None
    accepted: float | None = None
    examined: float = 0.0
    strength: float = float("inf")
    is_unexplored: bool = False
    is_blocked: bool = False


Tuner = Callable[[Estimate, Speculation, int], Wish]
"""(estimate, speculation, present k) -> Wish. Pure."""
