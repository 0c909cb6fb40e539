"""What speculation saves, from pairs of windows with and without it.

Two estimands, never merged. *Capacity*: busy machine seconds per emitted token, what speculation changes directly.
*Cash*: billed machine time per emitted token, idle time included: on a fleet of fixed size nothing is saved there,
however large the speedup, until the fleet shrinks. Energy is joules per emitted token. Tokens are those delivered to
users, never drafted ones.

Each pair gives one number, d = log(G/N) with speculation - log(G/N) without, and the saving is 1 - exp(mean d). The
interval is a confidence sequence, so that looking at every pair is allowed; the mean is adjusted for the load that was
offered, never for what the treatment changes. Formula and checks: docs/savings.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from controlplane.finops.confidence_sequence import (
    MIN_PAIRS,
    TARGET_PAIRS,
    half_width,
    p_values,
    pairs_to_exclude_zero,
)
from controlplane.finops.cuped import adjusted
from controlplane.telemetry import LatencyHistogram

Floats = npt.NDArray[np.float64]
Measure = Literal["capacity", "cash", "energy"]
MEASURES: tuple[Measure, ...] = get_args(Measure)

WHAT: Mapping[Measure, str] = {
    "capacity": "busy machine seconds per emitted token",
    "cash": "billed machine time per emitted token, idle time included",
    "energy": "joules per emitted token",
}
ALPHA = 0.05
EXPECTED = 0.05
"""Size of a log-ratio for which the sequential test is tuned: 5 %."""
MOVED = 0.05
"""P below which the arms were not offered the same: a covariate that the treatment moves is none."""
LENGTH_BOUNDS: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Upper bounds of the histogram of completion tokens; one overflow bucket follows."""

NO_LATENCIES = LatencyHistogram()


@dataclass(frozen=True, slots=True)
class Sums:
    """The measured part of one arm's window, all workers of the arm together; sums, never averages.

    billed_nano: what its machine time costs, None where a price is missing. busy_ns of seconds_ns. energy_uj of the
    windows in which measured_tokens were emitted; None where none was measured. early_*: of its first half, by which a
    carry-over from the window before shows. Requests are counted where they arrived, whenever they ended: arrivals,
    with their prompt_tokens, are offered load; failed, completion_tokens, lengths (by LENGTH_BOUNDS), ttft and tpot are
    what became of them.
    """

    seconds_ns: int = 0
    busy_ns: int = 0
    tokens: int = 0
    billed_nano: int | None = None
    energy_uj: int | None = None
    measured_tokens: int = 0
    early_busy_ns: int = 0
    early_tokens: int = 0
    draft_tokens: int = 0
    arrivals: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    lengths: tuple[int, ...] = (0,) * (len(LENGTH_BOUNDS) + 1)
    ttft: LatencyHistogram = NO_LATENCIES
    tpot: LatencyHistogram = NO_LATENCIES


@dataclass(frozen=True, slots=True)
class Pair:
    """One pair of windows. started_at: unix seconds. treatment_first: the order that chance gave; None: at once."""

    index: int
    started_at: float
    treatment_first: bool | None
    treatment: Sums
    control: Sums

    def log_ratio(self, measure: Measure) -> float | None:
        """The pair's d; None where one of the arms has nothing to divide."""
        ours, theirs = self.treatment, self.control
        if measure == "energy":
            return _log_of(ours.energy_uj, ours.measured_tokens, theirs.energy_uj, theirs.measured_tokens)
        if measure == "capacity":
            return _log_of(ours.busy_ns, ours.tokens, theirs.busy_ns, theirs.tokens)
        billed = ours.billed_nano, theirs.billed_nano
        # Where a price is missing, time says the same as long as the machines are.
        spent = (ours.seconds_ns, theirs.seconds_ns) if None in billed else billed
        return _log_of(spent[0], ours.tokens, spent[1], theirs.tokens)


@dataclass(frozen=True, slots=True)
class Saving:
    """A saving as it stands after `pairs` pairs.

    share: 1 - exp(mean d), negative for a loss. low, high: of the confidence sequence, valid at every look; None before
    MIN_PAIRS. fixed_low, fixed_high: of the t interval, valid for one look that was planned beforehand. is_clear: low
    and high leave 0 out. p: always valid. removed: share of the variance that offered load explained. spread: standard
    deviation of d in a pair. pairs_needed, seconds_needed: more of them until 0 is left out, if all goes on like this;
    None where that is not in sight. covariates: what was adjusted for; left_out: what was not, because it differs
    between the arms by more than chance, as arrivals do where clients wait for an answer before they ask again.
    """

    measure: Measure
    pairs: int
    share: float | None
    low: float | None
    high: float | None
    fixed_low: float | None
    fixed_high: float | None
    p: float
    removed: float
    spread: float | None
    pairs_needed: int | None
    seconds_needed: float | None
    covariates: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


COVARIATES = ("arrivals", "prompt tokens")


def saving(
    pairs: Sequence[Pair],
    measure: Measure = "capacity",
    *,
    alpha: float = ALPHA,
    target: int = TARGET_PAIRS,
    pair_every_s: float = 0.0,
    adjust: bool = True,
) -> Saving:
    """The saving of these pairs, in the order in which they were made.

    target: pairs at which the interval is tightest. pair_every_s: seconds from one pair to the next. adjust: for what
    was offered (arrivals, tokens of prompts); pairs in which either is 0 are used unadjusted.
    """
    used = [(pair, d) for pair in pairs if (d := pair.log_ratio(measure)) is not None]
    if not used:
        return Saving(measure, 0, None, None, None, None, None, 1.0, 0.0, None, None, None)
    differences = np.array([d for _, d in used])
    x = np.array([offered(pair) for pair, _ in used])
    is_moved = [bool(shift_p(x[:, i]) < MOVED) for i in range(len(COVARIATES))]
    kept = [i for i, moved in enumerate(is_moved) if adjust and not moved]
    found, n = adjusted(differences, x[:, kept] if kept else None), len(used)
    mean, spread, free = (float(each[-1]) for each in (found.estimate, found.spread, found.free))
    if n < 3 or not free > 0:
        return Saving(measure, n, 1 - exp(mean), None, None, None, None, 1.0, 0.0, None, None, None)
    t_half = float(stdtrit(free, 1 - alpha / 2)) * spread / n**0.5
    half = float(half_width(n, spread, alpha, target, free)) if n >= MIN_PAIRS else None
    in_all = pairs_to_exclude_zero(mean, spread, alpha, target, n - 1 - round(free))
    missing = None if in_all is None else max(in_all - n, 0)
    return Saving(
        measure=measure,
        pairs=n,
        share=1 - exp(mean),
        low=None if half is None else 1 - exp(mean + half),
        high=None if half is None else 1 - exp(mean - half),
        fixed_low=1 - exp(mean + t_half),
        fixed_high=1 - exp(mean - t_half),
        p=float(p_values(found.estimate, found.spread, EXPECTED, found.free)[-1]),
        removed=float(found.removed[-1]),
        spread=spread,
        pairs_needed=missing,
        seconds_needed=None if missing is None else ceil(missing * pair_every_s),
        covariates=tuple(COVARIATES[i] for i in kept) if found.removed[-1] > 0 else (),
        left_out=tuple(COVARIATES[i] for i, moved in enumerate(is_moved) if adjust and moved),
    )


def offered(pair: Pair) -> tuple[float, float]:
    """Log-ratios of what was offered in the two windows: requests a worker-second, and prompt tokens a request."""
    ours, theirs = pair.treatment, pair.control
    arrivals = _log_ratio(ours.arrivals, ours.seconds_ns) - _log_ratio(theirs.arrivals, theirs.seconds_ns)
    prompts = _log_ratio(ours.prompt_tokens, ours.arrivals) - _log_ratio(theirs.prompt_tokens, theirs.arrivals)
    usable = all(s.arrivals and s.prompt_tokens and s.seconds_ns for s in (ours, theirs))
    return (arrivals, prompts) if usable else (0.0, 0.0)


def shift_p(values: npt.ArrayLike) -> float:
    """Two-sided p of the t test that these have mean 0; 1 where they do not vary or are too few."""
    x = np.asarray(values, dtype=np.float64)
    spread = float(x.std(ddof=1)) if len(x) > 2 else 0.0
    return 2 * float(stdtr(len(x) - 1, -abs(float(x.mean())) * len(x) ** 0.5 / spread)) if spread > 0 else 1.0


def _log_ratio(a: float, b: float) -> float:
    return log(a / b) if a > 0 and b > 0 else 0.0


def _log_of(ours: int | None, our_tokens: int, theirs: int | None, their_tokens: int) -> float | None:
    """Log of one ratio over another; None where a part of it is 0 or unknown."""
    parts = (ours or 0, our_tokens, theirs or 0, their_tokens)
    return log(parts[0] / parts[1]) - log(parts[2] / parts[3]) if min(parts) > 0 else None
