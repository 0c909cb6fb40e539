"""What a step costs in joules: idle power, power while busy, and joules a position, fitted to what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.observation import Floats

LEARNING = 0.01
"""Weight of one window in the fit."""
LEAST_WINDOWS = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Power:
    """Discounted normal equations of joules = idle_w (seconds - busy) + busy_w busy + position_j positions.

    moments: [3, 3], products: [3], windows: discounted number of windows behind them.
    """

    moments: Floats
    products: Floats
    windows: float = 0.0

    @classmethod
    def unknown(cls) -> Power:
        return cls(np.zeros((3, 3)), np.zeros(3))

    def learn(self, readings: Floats) -> Power:
        """With a tick's windows [windows, 4]: seconds, busy seconds, positions, joules."""
        if not len(readings):
            return self
        causes = np.stack([readings[:, 0] - readings[:, 1], readings[:, 1], readings[:, 2]], axis=1)
        keep = (1.0 - LEARNING) ** len(readings)
        return Power(
            self.moments * keep + causes.T @ causes,
            self.products * keep + causes.T @ readings[:, 3],
            self.windows * keep + len(readings),
        )

    def rates(self) -> tuple[float, float] | None:
        """Watts while busy, and joules a position; None while too little was measured, or where both are nothing."""
        if self.windows < LEAST_WINDOWS:
            return None
        _, busy_w, position_j = _least_squares(self.moments, self.products)
        return (float(busy_w), float(position_j)) if busy_w + position_j > 0.0 else None

    def joules(self, seconds: Floats, positions: Floats) -> Floats | None:
        """Of busy steps of so many seconds and positions; None while too little was measured."""
        if self.windows < LEAST_WINDOWS:
            return None
        _, busy_w, position_j = _least_squares(self.moments, self.products)
        joules: Floats = busy_w * seconds + position_j * positions
        return joules if bool((joules > 0).all()) else None


def _least_squares(moments: Floats, products: Floats) -> Floats:
    """[3]: watts and joules that are not negative; causes that would be are left out and the rest fitted again."""
    # To a common scale, for there are thousands of positions to a second.
    scale = np.sqrt(np.diag(moments))
    scale = np.where(scale > 0.0, scale, 1.0)
    # A little ridge: windows that all look alike do not tell a busy second from its positions.
    system = moments / np.outer(scale, scale) + 1e-6 * np.eye(len(scale))
    kept, out = np.arange(len(scale)), np.zeros(len(scale))
    while len(kept):
        fitted = np.linalg.solve(system[np.ix_(kept, kept)], (products / scale)[kept])
        if (fitted >= 0.0).all():
            out[kept] = fitted
            break
        kept = kept[fitted >= 0.0]
    solution: Floats = out / scale
    return solution
