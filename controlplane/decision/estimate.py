"""What the control plane believes of a cohort's drafts: conditional acceptance by position.

The hazard at position j is h_j = P(token j kept | tokens before j kept, a token was drafted at j). A step that drafted
`drafted` tokens and kept `accepted` examined position j iff j < drafted, accepted >= j, and it did not end at j. So K
censors from the right and silence (drafted = 0) says nothing: neither is a rejection. That is the Kaplan-Meier
estimator; accepted / drafted and accepted_j / steps are biased as soon as K varies.

Evidence fades with the evidence that follows it at the same position, never with time: a quiet hour forgets nothing.
Positions are 0-based here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

from controlplane.policy import MAX_K
from controlplane.telemetry import StepCount

HALF_LIFE = 300.0
"""Examined drafts after which evidence at a position counts half; the sum is bounded by about 433."""

SPREAD_LEAST, SPREAD_MOST = 1.0, 16.0
"""Bounds of the spread: 1 where every step is its own draw, more where requests differ and steps of one are alike."""

ENOUGH = 20.0
"""Discounted examined drafts with which a position speaks for itself (standard deviation about 0.1)."""

POOLED_WEIGHT = 4.0
"""Pseudo-samples with which a position is drawn to the hazard of all positions of the cohort."""

PRIOR_WEIGHT, PRIOR_HAZARD = 2.0, 0.5
"""The same for the cohort as a whole before it was seen."""

_FADE = 0.5 ** (1.0 / HALF_LIFE)
_NOTHING = (0,) * MAX_K


class Hazard(NamedTuple):
    """Posterior mean and standard deviation of a conditional acceptance; examined: discounted number of drafts."""

    mean: float
    sd: float
    examined: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Plain counts by position: drafts that were examined there, and those of them that were kept."""

    examined: tuple[int, ...] = _NOTHING
    accepted: tuple[int, ...] = _NOTHING

    @property
    def is_empty(self) -> bool:
        return not self.examined[0]

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            tuple(a + b for a, b in zip(self.examined, other.examined, strict=True)),
            tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
        )


def tally(counts: Iterable[StepCount]) -> Tally:
    """Examined and kept drafts by position; positions from MAX_K on are left out."""
    examined, accepted = [0] * MAX_K, [0] * MAX_K
    for count in counts:
        kept = min(count.accepted, MAX_K)
        for j in range(kept):
            examined[j] += count.steps
            accepted[j] += count.steps
        if kept < min(count.drafted, MAX_K) and not count.ended:
            examined[kept] += count.steps
    return Tally(tuple(examined), tuple(accepted))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Discounted counts by position. A value: `absorb`, `renew` and `keep` return new ones.

    spread: variance of a tick's acceptance beside that of independent steps; n steps say as much as n / spread.
    """

    examined: tuple[float, ...] = (0.0,) * MAX_K
    accepted: tuple[float, ...] = (0.0,) * MAX_K
    spread: float = 2.0

    @property
    def samples(self) -> float:
        """Discounted number of drafts examined at the first position: all that had at least one token."""
        return self.examined[0]

    @property
    def pooled(self) -> float:
        """Hazard of the cohort over all positions, with its prior."""
        return (sum(self.accepted) + PRIOR_WEIGHT * PRIOR_HAZARD) / (sum(self.examined) + PRIOR_WEIGHT)

    def at(self, position: int) -> Hazard:
        """Hazard at one position, drawn to the cohort's own by POOLED_WEIGHT samples."""
        return self.over(position, position + 1)

    def over(self, first: int, end: int) -> Hazard:
        """Hazard of positions [first, end) taken together."""
        examined, accepted = sum(self.examined[first:end]), sum(self.accepted[first:end])
        mean = (accepted + POOLED_WEIGHT * self.pooled) / (examined + POOLED_WEIGHT)
        worth = (examined + POOLED_WEIGHT) / self.spread + 1.0
        return Hazard(mean, sqrt(mean * (1.0 - mean) / worth), examined)

    def accept_at(self) -> tuple[float, ...]:
        """Conditional acceptance of the positions that were ever examined, from the first on."""
        seen = next((j for j in range(MAX_K) if not self.examined[j]), MAX_K)
        return tuple(self.at(j).mean for j in range(seen))

    def absorb(self, new: Tally) -> Estimate:
        """With newer counts added and the older ones faded by as many.

        The order within `new` is unknown, so its own n counts enter at the mean of their fading, 1 + f + ... + f^(n-1).
        """
        examined, accepted = list(self.examined), list(self.accepted)
        for j, n in enumerate(new.examined):
            if n:
                fade = _FADE**n
                weight = (1.0 - fade) / (1.0 - _FADE) / n
                examined[j] = examined[j] * fade + n * weight
                accepted[j] = accepted[j] * fade + new.accepted[j] * weight
        return replace(self, examined=tuple(examined), accepted=tuple(accepted))

    def renew(self, first: int, fresh: Tally) -> Estimate:
        """With all that was believed of positions from `first` on replaced by `fresh`."""
        renewed = Estimate().absorb(fresh)
        return replace(
            self,
            examined=self.examined[:first] + renewed.examined[first:],
            accepted=self.accepted[:first] + renewed.accepted[first:],
        )

    def keep(self, share: float) -> Estimate:
        """With every count scaled: the same hazards, believed less."""
        return replace(
            self,
            examined=tuple(share * n for n in self.examined),
            accepted=tuple(share * a for a in self.accepted),
        )
