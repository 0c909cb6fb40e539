"""What an estimator answers, so that any can be checked against worlds whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from benchmarks.control.cost import Floats, Ints


@dataclass(frozen=True, slots=True)
class Emitted:
    """Expected emitted tokens of a step by K = 0..depth, the extra one included, with the ends of a 95 % interval."""

    mean: Floats
    low: Floats
    high: Floats


Fit = Callable[[Ints], Emitted]
"""What is believed after counts[k, accepted] of a law that does not drift, [depth + 1, depth + 1]."""


class Tracker(Protocol):
    """An estimator that follows a law as it drifts."""

    def absorb(self, counts: Ints) -> None:
        """One step more: counts[k, accepted], [depth + 1, depth + 1]."""
        ...

    def emitted(self) -> Emitted:
        """What is believed now."""
        ...


TrackerFactory = Callable[[int], Tracker]
"""A fresh tracker for rungs of at most so many tokens."""
