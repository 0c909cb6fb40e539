"""At which acceptance speculation pays: 1 + S_1 + ... + S_K > T(n, K) / T(n, 0) (after Leviathan et al. 2023).

The left side is what a step of K draft tokens is expected to bring, the right side what it costs beside one without
drafts; both are the controller's own. For a person, the two sides are also put into one figure each: the conditional
acceptance that, alike at every position, would bring just as many tokens. The one is over the other if and only if
speculation pays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.decision.believed import Believed, offered
from controlplane.decision.observation import RUNGS, Flags, Floats, Ints
from controlplane.decision.tuners.base import at_k

Z95 = 1.96
"""Standard deviations on either side that a 95 % interval has."""
_HALVINGS = 50


@dataclass(frozen=True, slots=True, eq=False)
class BreakEven:
    """[cohorts, loads] each.

    rung: the rung over 0 that brings most tokens per second, -1 where the ladder has none. needed: tokens a step must
    bring there for speculation to pay. expected, sd: what it is believed to bring. accept_needed: the acceptance, alike
    at every position, that brings `needed`; NaN where even 1 does not. accept_now: the one that brings `expected`.
    best: the best rung of all, 0 included. speed: [cohorts, loads, MAX_K + 1] tokens per second of one sequence.
    """

    rung: Ints
    needed: Floats
    expected: Floats
    sd: Floats
    accept_needed: Floats
    accept_now: Floats
    best: Ints
    speed: Floats

    @property
    def pays(self) -> Flags:
        """Whether some rung over 0 brings more tokens per second than none."""
        out: Flags = (self.rung > 0) & (self.expected > self.needed)
        return out


def break_even(believed: Believed) -> BreakEven | None:
    """For every cohort and load; None where no step times are known."""
    outlook, table = believed.outlook, believed.state.table
    seconds = believed.step_seconds(outlook)
    if seconds is None:
        return None
    speed = outlook.emitted[:, None, :] / seconds
    allowed = np.where(table.is_rung[:, None, :], speed, -np.inf)
    over = allowed.copy()
    over[:, :, 0] = -np.inf
    has_rung = np.isfinite(over).any(axis=2)
    rung = np.where(has_rung, over.argmax(axis=2), -1)
    at = np.maximum(rung, 0)
    cohorts = np.arange(len(at))[:, None]
    needed = at_k(seconds, at) / seconds[:, :, 0]
    expected, sd = outlook.emitted[cohorts, at], outlook.emitted_sd[cohorts, at]
    share = offered(outlook, believed.hazards)[:, None, :]
    return BreakEven(
        rung=rung,
        needed=needed,
        expected=expected,
        sd=sd,
        accept_needed=np.where(has_rung, even_acceptance(needed, at, share), np.nan),
        accept_now=np.where(has_rung, even_acceptance(expected, at, share), np.nan),
        best=allowed.argmax(axis=2),
        speed=speed,
    )


def even_acceptance(tokens: Floats, k: Ints, share: Floats) -> Floats:
    """The acceptance a with 1 + sum over j <= K of a^j share_j = `tokens`, by bisection; NaN where 1 is too little.

    tokens, k: of one shape; share: [..., MAX_K], broadcast against it, see believed.offered.
    """
    depth = np.arange(1, RUNGS)
    within = np.where(depth <= k[..., None], share, 0.0)
    low, high = np.zeros(tokens.shape), np.ones(tokens.shape)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        is_little = 1.0 + (middle[..., None] ** depth * within).sum(axis=-1) < tokens
        low, high = np.where(is_little, middle, low), np.where(is_little, high, middle)
    most = 1.0 + within.sum(axis=-1)
    return np.where(tokens > most * (1.0 + 1e-12), np.nan, np.where(tokens <= 1.0, 0.0, high))


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """What the rungs that were used leave on the table, [cohorts, loads] each; NaN where nothing ran.

    speed_used, speed_best: tokens per second of one sequence as expected of the K that was used, and of the best rung.
    share: of the time, 1 - used / best, at least 0.
    """

    speed_used: Floats
    speed_best: Floats
    share: Floats


def left_on_the_table(believed: Believed, even: BreakEven) -> Left:
    """Both sides are expected from the same beliefs, so that luck on one of them is not taken for a better rung."""
    outlook, seconds = believed.outlook, believed.step_seconds()
    if seconds is None:
        raise ValueError("break-even needs step times: no worker has been profiled yet")
    tokens = (believed.steps * outlook.emitted[:, None, :]).sum(axis=2)
    time = (believed.steps * seconds).sum(axis=2)
    used = np.where(time > 0, tokens / np.maximum(time, 1e-300), np.nan)
    best = at_k(even.speed, even.best)
    return Left(used, best, np.maximum(1.0 - used / best, 0.0))
