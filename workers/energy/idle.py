"""What a device draws while nothing runs, learned from stretches in which nothing did."""

from __future__ import annotations

from collections import deque

KEPT = 64
LEAST = 5
SETTLE_S = 3.0
"""Idle for so long before a stretch counts: power is averaged over a second, and clocks come down after the work."""


class IdlePower:
    """Watts of an idle device: the lower quartile of the last KEPT idle stretches, or `known` ones, which stay.

    Low, because what disturbs an idle device (another process, a clock that is still up) only adds; a quartile and not
    the minimum, because one short reading must not set it.
    """

    def __init__(self, known: float | None = None) -> None:
        self._known = known
        self._learned: float | None = None
        self._seen: deque[float] = deque(maxlen=KEPT)

    @property
    def watts(self) -> float | None:
        """None until LEAST idle stretches were seen: an unknown idle power is not 0."""
        return self._learned if self._known is None else self._known

    def see(self, watts: float) -> None:
        """Mean power of a stretch of about a second in which nothing ran."""
        self._seen.append(watts)
        if len(self._seen) >= LEAST:
            self._learned = sorted(self._seen)[len(self._seen) // 4]
