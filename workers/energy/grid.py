"""When to sample, so that a stretch ends shortly before each window closes."""

from __future__ import annotations

import math

LEAD_S = 0.1
"""A sample is taken so long before a window is expected to close: NVML's counter moves every 0.1 s anyway."""
SHORTEST = 0.75
"""Of a period: a stretch may be shortened so far to meet the grid."""


class WindowGrid:
    """Windows close every `window_s` seconds, and late by up to a step of the engine; the grid is what is remembered.

    Written by the engine's thread and read by the sampling one: a single number, so either sees a whole one.
    """

    def __init__(self, window_s: float, at: float) -> None:
        self._window_s = window_s
        self._close_at = at + window_s
        self.period_s = window_s / int(window_s) if window_s >= 1 else 1.0
        """Between two samples: a second or a little more, a whole number of them a window."""

    def closed(self, at: float) -> None:
        """A window has closed at `at`, monotonic seconds."""
        is_on_grid = self._close_at <= at <= self._close_at + self._window_s / 2
        self._close_at = (self._close_at if is_on_grid else at) + self._window_s

    def next_sample(self, last: float) -> float:
        """When to sample after a sample at `last`. Windows under a second share a stretch, wherever it lies."""
        if self._window_s < 1:
            return last + self.period_s
        earliest, on_grid = last + SHORTEST * self.period_s, self._close_at - LEAD_S
        return on_grid + math.ceil((earliest - on_grid) / self.period_s) * self.period_s
