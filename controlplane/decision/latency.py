"""How long a step takes, by running sequences and draft tokens: profiled at a worker's start, corrected by every step.

    seconds(n, K) = verify[n, K] + draft[n, K] + context_s x tokens of context

on a grid of PRICE_LOADS sequences by 0 ... MAX_K draft tokens a sequence, times what that size was measured to take
over its profile, times the pace of the machine of late. A drafter may be silent: then a step is one without drafts, or
one with more of them than the mean says, and never one with half a token a sequence. An argmax over K does not see an
error that scales every K alike; it sees offsets, such as the step from K = 0 to K = 1, so these are measured, not
extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.observation import RUNGS, Floats, Ints
from controlplane.telemetry import LOAD_BUCKETS, MAX_K, PRICE_LOADS, ProfileCell

LOADS: Floats = np.array(PRICE_LOADS, np.float64)
"""[loads]: the sequences at which step times are kept."""
AT_BUCKETS: Ints = np.array([PRICE_LOADS.index(bound) for bound in LOAD_BUCKETS])
"""Which of LOADS are the bounds of the load buckets."""
_EDGES = np.sqrt(LOADS[1:] * LOADS[:-1])

LEARNING = 0.003
"""Weight of one step in the correction of its cell."""
COMMON_LEARNING = 0.01
"""Weight of one step in the correction of sizes of which none was measured."""
PACE_LEARNING = 0.05
"""Weight of one step in what the machine takes of late (a clock that throttles, a neighbour, a longer context).

Far quicker than a cell's own: sizes are measured at different times, and a machine that was slow meanwhile must not
make one of them dear. Where its speed swings by 20 % within ten seconds, that is 1 to 1.5 % of the goodput.
"""
MOST_RATIO = 100.0
"""What steps are measured to take over what was profiled counts as at most this, and as at least one over it."""
LEAST_STEPS = 8.0
"""Steps of a grid cell without which the common correction speaks for it."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The belief. verify, draft: [loads, MAX_K + 1] f64 seconds at LOADS sequences, as profiled.

    verify[l, k]: one forward of k + 1 positions for each of the sequences; its column 0 is a step without a drafter's
    work. draft[l, k]: drafting k tokens for each. pace: what the machine takes of late over what it did. ratio, weight:
    [loads, MAX_K + 1], what a size was measured to take over its profile, and the discounted steps behind it;
    common_ratio the same of a size that was not measured, common_weight the steps behind that. context_s: seconds that
    a token of context costs in a step; context: tokens of it a sequence had while profiling, context_now: has of late.
    """

    verify: Floats
    draft: Floats
    ratio: Floats
    weight: Floats
    pace: float = 1.0
    common_ratio: float = 1.0
    common_weight: float = 0.0
    context_s: float = 0.0
    context: float = 0.0
    context_now: float = 0.0

    @classmethod
    def of(cls, profile: Sequence[ProfileCell]) -> StepTimes | None:
        """From a profile; None where it does not tell what a second position costs (fewer than two K measured).

        A load at which it does not (the time to measure was over, the drafter had too little to say) is left out.
        """
        profile = [cell for cell in profile if cell.seconds > 0.0]
        least = min((cell.context for cell in profile), default=0)
        cells = [cell for cell in profile if cell.context == least]
        ks_at: dict[int, set[int]] = {}
        for cell in cells:
            ks_at.setdefault(cell.sequences, set()).add(cell.k)
        loads = sorted(load for load, ks in ks_at.items() if len(ks) > 1)
        if not loads:
            return None
        verify, draft = np.empty((len(loads), RUNGS)), np.empty((len(loads), RUNGS))
        for i, load in enumerate(loads):
            at_load = sorted((c for c in cells if c.sequences == load), key=lambda c: c.k)
            ks = sorted({c.k for c in at_load})
            seconds = np.array([np.median([c.seconds for c in at_load if c.k == k]) for k in ks])
            drafting = np.array([np.median([c.draft_seconds for c in at_load if c.k == k]) for k in ks])
            verify[i] = _spread_over_k(ks, np.maximum(seconds - drafting, 1e-9))
            draft[i] = _through_zero(ks, drafting)
        grid = np.ones((len(LOADS), RUNGS))
        return cls(
            verify=rising(_over_loads(loads, verify)),
            draft=np.maximum(_over_loads(loads, draft), 0.0),
            ratio=grid,
            weight=np.zeros_like(grid),
            context_s=_context_s(profile),
            context=float(least),
            context_now=float(least),
        )

    def correct(self, cells: Floats) -> StepTimes:
        """With a tick's engine steps (telemetry.LatencyCell rows [cells, 6]) taken in."""
        cells = cells[(cells[:, 2] > 0) & (cells[:, 0] > 0)]
        if not len(cells):
            return self
        sequences, positions, steps, seconds, context = cells[:, :5].T
        k = np.maximum(positions / sequences - 1.0, 0.0)
        beyond = np.where(context > 0, context / steps - self.context * sequences, 0.0)
        measured = seconds / steps / (self.profiled(sequences, k) + self.context_s * np.maximum(beyond, 0.0))
        # A machine that slept through a step, or a clock that stood still, is not how long steps take.
        measured = np.clip(measured, 1.0 / MOST_RATIO, MOST_RATIO)
        # A step in which few sequences had drafts is nearer to one draft token each than to none at all.
        column = np.where(k > 0.0, np.rint(k).astype(np.int64).clip(1, MAX_K), 0)
        flat = np.searchsorted(_EDGES, sequences) * RUNGS + column
        grid = len(LOADS) * RUNGS
        n = np.bincount(flat, steps, grid).reshape(len(LOADS), RUNGS)
        total = np.bincount(flat, measured * steps, grid).reshape(len(LOADS), RUNGS)
        mean = total / np.maximum(n, 1e-12)
        keep = (1.0 - LEARNING) ** n
        heard = n > 0
        weight = np.where(heard, self.weight * keep + (1.0 - keep) / LEARNING, self.weight)
        share = np.where(heard, ((1.0 - keep) / LEARNING) / np.maximum(weight, 1e-12), 0.0)
        many = float(steps.sum())
        common_keep, pace_keep = (1.0 - COMMON_LEARNING) ** many, (1.0 - PACE_LEARNING) ** many
        trust, own = self._trust, self._relative
        # At a size that is known, what surprises is the machine's pace of late; at one that is not, it is the profile
        # of that size, but for the first sizes of all, which tell what the machine takes over its profile.
        surprise = n * trust * (mean / own - self.pace)
        pace = max(self.pace + (1.0 - pace_keep) * float(surprise[heard].sum()) / many, 1.0 / MOST_RATIO)
        mean = np.clip(mean / pace, 1.0 / MOST_RATIO, MOST_RATIO)
        first = LEAST_STEPS / (LEAST_STEPS + self.common_weight)
        surprise = n * (trust + (1.0 - trust) * first) * (mean - own)
        common_share = max(1.0 - common_keep, many / (many + self.common_weight + LEAST_STEPS))
        common = max(self.common_ratio + common_share * float(surprise[heard].sum()) / many, 1.0 / MOST_RATIO)
        told = float((sequences * steps)[context > 0].sum())
        context_now = float(context.sum()) / told if told else self.context_now
        return replace(
            self,
            ratio=self.ratio + share * (mean - self.ratio),
            weight=weight,
            pace=pace,
            common_ratio=common,
            common_weight=self.common_weight + many,
            context_now=self.context_now * common_keep + context_now * (1.0 - common_keep),
        )

    def profiled(self, sequences: Floats, k: Floats) -> Floats:
        """Seconds of a step before corrections, at any number of sequences and mean draft tokens [n] f64."""
        plain = _between(self.verify, sequences, np.zeros_like(k))
        verify = np.where(k > 0.0, _between(going(self.verify), sequences, k), plain)
        total: Floats = verify + _between(self.draft, sequences, k)
        return total

    @property
    def correction(self) -> Floats:
        """[loads, MAX_K + 1]: measured over profiled; where little was measured, what was measured elsewhere."""
        out: Floats = self.pace * self._relative
        return out

    @property
    def _relative(self) -> Floats:
        """[loads, MAX_K + 1]: the part of `correction` that has nothing to do with the pace of late."""
        trust = self._trust
        out: Floats = trust * self.ratio + (1.0 - trust) * self.common_ratio
        return out

    @property
    def _trust(self) -> Floats:
        """[loads, MAX_K + 1]: how far a size speaks for itself."""
        out: Floats = self.weight / (self.weight + LEAST_STEPS)
        return out

    @property
    def verifying(self) -> Floats:
        """[loads, MAX_K + 1] seconds of the forward, corrected, never falling with more positions.

        Where they would fall, what steps were measured to take outweighs what was only profiled or interpolated.
        """
        return rising((self.verify + self._reading[:, None]) * self.correction, 1.0 + self.weight)

    @property
    def going(self) -> Floats:
        """[loads, MAX_K + 1]: `verifying` where some sequence has drafts, see `going`.

        What was measured of steps with few drafts corrects K = 1, so the line's end at K = 0 has that correction too:
        led on through the corrected columns it would swing with every error of theirs.
        """
        table = self.verifying
        out = table.copy()
        led_on = (going(self.verify)[:, 0] + self._reading) * self.correction[:, 1]
        out[:, 0] = np.clip(led_on, table[:, 0], table[:, 1])
        return out

    @property
    def _reading(self) -> Floats:
        """[loads] seconds that the context beyond that of the profile costs."""
        return self.context_s * max(self.context_now - self.context, 0.0) * LOADS

    @property
    def starting(self) -> Floats:
        """[loads] seconds that drafting costs before its first pass: where the line through K meets K = 0."""
        late = (self.drafting[:, -1] - self.drafting[:, 1]) / (MAX_K - 1)
        out: Floats = np.clip(self.drafting[:, 1] - late, 0.0, self.drafting[:, 1])
        return out

    @property
    def drafting(self) -> Floats:
        """[loads, MAX_K + 1] seconds of drafting, corrected."""
        out: Floats = self.draft * self.correction
        return out


def going(verify: Floats) -> Floats:
    """[loads, MAX_K + 1]: `verify` where some sequence has drafts: at K = 0, where the line from K = 1 leads.

    The jump from a plain step to that is paid once, however few the drafts.
    """
    out = verify.copy()
    out[:, 0] = np.clip(2.0 * verify[:, 1] - verify[:, 2], verify[:, 0], verify[:, 1])
    return out


def forward_seconds(plain: Floats, table: Floats, deep: Floats, spoken: Floats) -> Floats:
    """Seconds of a forward whose sequences have `deep` draft tokens in the mean, some of them in `spoken` of the steps.

    plain: [loads] of a step without drafts; table: [loads, MAX_K + 1] with some, StepTimes.going. deep, spoken:
    [loads, n] f64; spoken is P(any sequence of the step has a draft). Returns [loads, n].
    """
    spoken = np.clip(spoken, 0.0, 1.0)
    then = np.clip(deep / np.maximum(spoken, 1e-9), 0.0, MAX_K)
    left = np.minimum(then.astype(np.int64), MAX_K - 1)
    along = then - left
    rows = np.arange(len(table))[:, None]
    with_drafts = table[rows, left] * (1 - along) + table[rows, left + 1] * along
    seconds: Floats = (1.0 - spoken) * plain[:, None] + spoken * with_drafts
    return seconds


def uniform_seconds(times: StepTimes, positions: Floats) -> Floats:
    """[cohorts, load buckets, rungs]: seconds of a step in which every sequence drafts this K.

    positions: [cohorts, rungs] expected positions a sequence with K = 0, 1, ..., MAX_K at most; fewer than K + 1 where
    the drafter is often silent.
    """
    cohorts, rungs = positions.shape
    silence = np.clip(2.0 - positions[:, 1], 0.0, 1.0)  # P(a sequence has no draft): a first position is there or not
    spoken = 1.0 - silence[None, :] ** LOADS[AT_BUCKETS][:, None]
    everywhere = np.where(np.arange(rungs) > 0, spoken[:, :, None], 0.0)
    deep = np.broadcast_to(positions[None, :, :] - 1.0, everywhere.shape)
    plain, table = times.verifying[AT_BUCKETS, 0], times.going[AT_BUCKETS]
    forward = forward_seconds(plain, table, deep.reshape(len(plain), -1), everywhere.reshape(len(plain), -1))
    by_cohort = forward.reshape(len(plain), cohorts, rungs).transpose(1, 0, 2)
    seconds: Floats = by_cohort + times.drafting[AT_BUCKETS][None, :, :rungs]
    return seconds


def rising(table: Floats, weight: Floats | None = None) -> Floats:
    """The nearest table (least squares, row by row) that does not fall along K: pool adjacent violators.

    weight: of each entry, same shape; alike for None.
    """
    weights = np.ones_like(table) if weight is None else weight
    return np.array([_isotonic(row, of) for row, of in zip(table, weights, strict=True)])


def _isotonic(values: Floats, weights: Floats) -> Floats:
    if (np.diff(values) >= 0).all():
        return values
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, size = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, of, many = blocks.pop()
            mean, total, size = (before * of + mean * total) / (of + total), of + total, many + size
        blocks.append((mean, total, size))
    return np.concatenate([np.full(size, mean) for mean, _, size in blocks])


def _context_s(profile: Sequence[ProfileCell]) -> float:
    """Median extra seconds per token of context, over the sizes that were measured at two contexts; 0 without."""
    by_size: dict[tuple[int, int], dict[int, list[float]]] = {}
    for cell in profile:
        by_size.setdefault((cell.sequences, cell.k), {}).setdefault(cell.context, []).append(cell.seconds)
    slopes = [
        (np.median(at[max(at)]) - np.median(at[min(at)])) / (sequences * (max(at) - min(at)))
        for (sequences, _), at in by_size.items()
        if len(at) > 1
    ]
    return max(float(np.median(slopes)), 0.0) if slopes else 0.0


def _spread_over_k(ks: Sequence[int], seconds: Floats) -> Floats:
    """[MAX_K + 1] from the measured K: linear between them and on beyond the last.

    Out of K = 0 only where no more than one other K was measured: taken for level, every K up to the deepest would cost
    the same, and the deepest would always be best.
    """
    above = [(k, s) for k, s in zip(ks, seconds, strict=True) if k > 0 or len(ks) == 2]
    out = np.empty(RUNGS)
    out[1:] = _linear(np.arange(1, RUNGS), [k for k, _ in above], [s for _, s in above])
    out[0] = seconds[0] if ks[0] == 0 else out[1]
    spread: Floats = np.maximum(out, seconds.min() * 0.5)
    return spread


def _through_zero(ks: Sequence[int], seconds: Floats) -> Floats:
    """[MAX_K + 1] of drafting: nothing for K = 0; linear between and beyond what was measured, also below it."""
    known = [(k, s) for k, s in zip(ks, seconds, strict=True) if k > 0]
    out = np.zeros(RUNGS)
    out[1:] = _linear(np.arange(1, RUNGS), [k for k, _ in known], [s for _, s in known])
    if len(known) > 1:
        (low, least), (high, more) = known[:2]
        below = np.arange(1, low)
        out[1:low] = least - max(more - least, 0.0) / (high - low) * (low - below)
    return np.maximum(out, 0.0)


def _over_loads(loads: Sequence[int], table: Floats) -> Floats:
    """[measured loads, MAX_K + 1] brought to LOADS: linear in the number of sequences, and on beyond the ends."""
    if len(loads) == 1:
        return np.repeat(table, len(LOADS), axis=0)
    columns = [_linear(LOADS, loads, table[:, k]) for k in range(table.shape[1])]
    everywhere: Floats = np.maximum(np.stack(columns, axis=1), table.min(axis=0) * 0.5)
    return everywhere


def _linear(
    x: Floats | np.ndarray[tuple[int], np.dtype[np.int64]], xs: Sequence[float], ys: Sequence[float] | Floats
) -> Floats:
    """Linear interpolation that goes on with the last slope beyond the last point (np.interp stops there)."""
    if len(xs) == 1:
        return np.full(len(x), float(ys[0]))
    inside = np.interp(x, xs, ys)
    slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    beyond: Floats = np.where(x > xs[-1], ys[-1] + max(slope, 0.0) * (x - xs[-1]), inside)
    return beyond


def _between(table: Floats, sequences: Floats, k: Floats) -> Floats:
    """The table at any point: linear in the number of sequences and in k; held at its edges."""
    n = np.clip(sequences, LOADS[0], LOADS[-1])
    high = np.searchsorted(LOADS, n).clip(1, len(LOADS) - 1)
    low = high - 1
    across = (n - LOADS[low]) / (LOADS[high] - LOADS[low])
    k = np.clip(k, 0.0, MAX_K)
    left = np.minimum(k.astype(np.int64), MAX_K - 1)
    along = k - left
    at_low = table[low, left] * (1 - along) + table[low, left + 1] * along
    at_high = table[high, left] * (1 - along) + table[high, left + 1] * along
    out: Floats = at_low * (1 - across) + at_high * across
    return out
