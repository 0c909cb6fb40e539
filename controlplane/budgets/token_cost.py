"""What a token of a cohort costs, measured: for reserving money before a request has used any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.finops.attribution import Direction

DIRECTIONS: tuple[Direction, Direction] = ("input", "output")
KEPT = 0.97
"""What a tick leaves of the older measurements."""
PEAK_KEPT = 0.9988
"""What a tick leaves of the dearest recent mean: half in ten minutes, at a tick a second."""
ENOUGH_TOKENS = 20.0
UNMEASURED_INPUT_S = 0.05
UNMEASURED_OUTPUT_S = 0.5
"""Seconds of a whole machine that a token is taken to need before any was measured: more than it should."""


class TokenCost(NamedTuple):
    """Nano-dollars for one token of a prompt and for one completion token."""

    input_nano: float
    output_nano: float

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return self.input_nano * input_tokens + self.output_nano * output_tokens


class Measured(NamedTuple):
    """Discounted nano-dollars and tokens, and the dearest that their quotient was lately; None before enough tokens."""

    nano: float = 0.0
    tokens: float = 0.0
    peak: float | None = None

    def plus(self, nano: float, tokens: int) -> Measured:
        total, count = self.nano * KEPT + nano, self.tokens * KEPT + tokens
        known = [] if self.peak is None else [self.peak * PEAK_KEPT]
        known += [total / count] if count >= ENOUGH_TOKENS else []
        return Measured(total, count, max(known, default=None))


Spending = tuple[str, Direction, float, int]
"""Cohort, direction, nano-dollars, tokens."""


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """By cohort and direction. A token is dearer beside few others: what counts is the dearest of the last minutes."""

    measured: Mapping[tuple[str, Direction], Measured] = field(default_factory=dict)

    def learn(self, spending: Iterable[Spending]) -> TokenCosts:
        """With what one tick's windows cost; money and tokens of one cohort and direction may come in parts."""
        sums: dict[tuple[str, Direction], tuple[float, int]] = {}
        for cohort, direction, nano, tokens in spending:
            was = sums.get((cohort, direction), (0.0, 0))
            sums[cohort, direction] = (was[0] + nano, was[1] + tokens)
        if not sums:
            return self
        new = {key: self.measured.get(key, Measured()).plus(*each) for key, each in sums.items()}
        return TokenCosts({**self.measured, **new})

    def of(self, cohort: str, per_second_nano: float) -> TokenCost:
        """For a token of that cohort; where none was measured, a bound from what a second of a machine costs."""
        into, out = (self.measured.get((cohort, direction), Measured()).peak for direction in DIRECTIONS)
        return TokenCost(
            UNMEASURED_INPUT_S * per_second_nano if into is None else into,
            UNMEASURED_OUTPUT_S * per_second_nano if out is None else out,
        )
