"""What the decode benchmark holds Kadence to beside plain decoding: that what does not pay costs nearly nothing. Pure.

A drafter that is attached and never drafts may cost DRAFTER_MOST, and an adaptive K may nowhere lose ADAPTIVE_MOST,
both of PLAIN's tokens per second, in the median pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.decode_figures import PLAIN, Run, Spread, paired

ADAPTIVE = "adaptive"
DRAFTER_MOST = 0.02
ADAPTIVE_MOST = 0.01


@dataclass(frozen=True, slots=True)
class Check:
    """One arm against PLAIN. ratio: of paired tokens/s. cohort: the domain, None for all. least: for the median."""

    arm: str
    temperature: float
    cohort: str | None
    ratio: Spread
    least: float
    holds: bool

    @classmethod
    def of(cls, runs: Sequence[Run], plain: Iterable[Run], cohort: str | None, most: float) -> Check:
        """most: the share of PLAIN's speed that may be lost."""
        ratio = Spread.of(paired(runs, {r.pair: r for r in plain}))
        return cls(runs[0].arm, runs[0].temperature, cohort, ratio, 1 - most, ratio.median >= 1 - most)


def checks_of(runs: Sequence[Run], arms: Iterable[str]) -> list[Check]:
    """For each temperature: K = 0 with a drafter over all domains, then each adaptive arm by domain."""
    return [
        check for temperature in dict.fromkeys(r.temperature for r in runs) for check in _at(runs, arms, temperature)
    ]


def _at(runs: Sequence[Run], arms: Iterable[str], temperature: float) -> Iterator[Check]:
    here = [r for r in runs if r.temperature == temperature]
    plain = [r for r in here if r.arm == PLAIN]
    for arm in arms:
        own = [r for r in here if r.arm == arm]
        k = arm.split("/")[2:3]
        if arm != PLAIN and k == ["0"]:
            yield Check.of(own, plain, None, DRAFTER_MOST)
        if k == [ADAPTIVE]:
            for domain in dict.fromkeys(r.domain for r in own):
                yield Check.of([r for r in own if r.domain == domain], plain, domain, ADAPTIVE_MOST)
