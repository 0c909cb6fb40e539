"""The simulated worker: who runs at each step, what each cohort would keep, and how noisy the clock is.

The law, declared once:

1. Load n(t): ln n is an Ornstein-Uhlenbeck process around ln(median), rounded and cut off at 1 and 256. Cohorts' shares
   are the normalised exponentials of one such process each. n(t) is rounded to whole sequences by cutting the unit
   interval of shares at (i + phase) / n with a phase that moves slowly, so each cohort has its share on average.
2. Acceptance: a cohort is in one of its levels; regimes last exponentially long and are followed by another level, at
   once or along a straight line in logit. Position j of a request with deviation u is kept, given that all before it
   were, with probability sigmoid(logit(level x (1 - decline)^(j-1)) + u), where u is -sqrt(3), 0 or sqrt(3) times
   spread with probability 1/6, 2/3, 1/6 (three-point Gauss-Hermite), drawn for every sequence and step anew.
3. A sequence's draw is A, the number of draft tokens it would keep if the deepest rung were drafted. With K tokens it
   keeps min(A, K): right-censoring. A does not depend on K, so all arms meet the same draws (common random numbers),
   and per cohort only the histogram of A is needed: one multinomial a step, the same law as a draw per sequence.
4. A step takes the time of `cost.py` x exp(N(0, timing_noise)); the factor of a step is the same for all arms.

The same profile and seed give the same world; an arm can see of it only what `outcome` returns.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.control.cost import Cost, Floats, Ints
from benchmarks.control.profile import Cohort, Profile

REQUEST_DEVIATION = np.array([-np.sqrt(3.0), 0.0, np.sqrt(3.0)])
REQUEST_WEIGHT = np.array([1 / 6, 2 / 3, 1 / 6])


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a worker sees of one step.

    sequences, k: by cohort. counts: [cohort, accepted] sequences of the cohort that kept so many of their k tokens; a
    row is 0 beyond k. seconds: measured, with noise; draft_seconds: the part spent drafting. drafted: [cohort, drafted,
    accepted] sequences, where the drafter may fall silent; None where every sequence drafted its k.
    """

    sequences: Ints
    k: Ints
    counts: Ints
    seconds: float
    draft_seconds: float
    drafted: Ints | None = None


@dataclass(frozen=True)
class World:
    """One trace.

    sequences: [step, cohort]. survival: [step, cohort, j] probability that at least j draft tokens are kept, j from 0.
    counts: [step, cohort, accepted] uncensored histogram. noise: [step] measured over true time.
    """

    profile: Profile
    seed: int
    cost: Cost
    sequences: Ints
    survival: Floats
    counts: Ints
    noise: Floats

    @classmethod
    def of(cls, profile: Profile, seed: int, sequences: Ints, survival: Floats) -> World:
        """A world with this load and this law of acceptance; outcomes and timing noise are drawn from the seed."""
        generator = stream(profile, seed, "outcomes")
        ended = -np.diff(survival, axis=-1, append=0.0)
        counts = generator.multinomial(sequences, np.clip(ended, 0.0, 1.0))
        noise = np.exp(generator.normal(0.0, profile.timing_noise, len(sequences)))
        return cls(profile, seed, Cost(profile), sequences, survival, counts, noise)

    @property
    def steps(self) -> int:
        return len(self.sequences)

    @cached_property
    def expected_tokens(self) -> Floats:
        """[step, cohort, K] tokens that one sequence is expected to emit, the extra one included: 1 + sum of S_j."""
        return np.cumsum(self.survival, axis=-1)

    def step_seconds(self, k: Ints) -> Floats:
        """[step] seconds that steps are expected to take with these K, [step, cohort]."""
        return self.cost.seconds(self.sequences, k)

    def drawn_seconds(self, k: Ints) -> Floats:
        """[step] seconds that they took, as measured."""
        return self.step_seconds(k) * self.noise

    def outcome(self, t: int, k: Ints) -> StepOutcome:
        """Step t with K by cohort."""
        sequences, counts = self.sequences[t], self.counts[t].copy()
        for cohort, depth in enumerate(k.tolist()):
            row = counts[cohort]
            row[depth] = row[depth:].sum()
            row[depth + 1 :] = 0
        seconds, drafting = self.cost.step(sequences.tolist(), k.tolist())
        noise = float(self.noise[t])
        return StepOutcome(sequences, k, counts, seconds * noise, drafting * noise)


def build(profile: Profile, seed: int) -> World:
    """The world of a profile and seed."""
    generator = stream(profile, seed, "law")
    sequences = sequences_of(profile, generator)
    survival = np.stack(
        [survival_of(cohort, _levels(cohort, profile.steps, generator), profile.depth) for cohort in profile.cohorts],
        axis=1,
    )
    return World.of(profile, seed, sequences, survival)


def stream(profile: Profile, seed: int, purpose: str) -> np.random.Generator:
    """Independent random numbers for each purpose."""
    return np.random.default_rng([zlib.crc32(profile.name.encode()), seed, zlib.crc32(purpose.encode())])


def survival_of(cohort: Cohort, levels: Floats, depth: int) -> Floats:
    """[step, j] probability that a request of the cohort keeps at least j = 0..depth tokens, at these levels [step]."""
    base = levels[:, None] * (1.0 - cohort.decline) ** np.arange(depth)
    logit = np.log(base / (1.0 - base))[:, None, :] + cohort.spread * REQUEST_DEVIATION[None, :, None]
    kept = np.cumprod(1.0 / (1.0 + np.exp(-logit)), axis=-1)
    return np.concatenate([np.ones((len(levels), 1)), np.einsum("r,trj->tj", REQUEST_WEIGHT, kept)], axis=1)


def ornstein_uhlenbeck(
    steps: int, deviation: float, correlation_steps: float, generator: np.random.Generator
) -> Floats:
    """[step] zero-mean stationary process."""
    kept = float(np.exp(-1.0 / correlation_steps))
    fresh = generator.normal(0.0, 1.0, steps)
    values, value = np.empty(steps), float(fresh[0])
    for t, shock in enumerate((fresh * np.sqrt(1.0 - kept * kept)).tolist()):
        value = value * kept + shock if t else value
        values[t] = value
    return deviation * values


def sequences_of(profile: Profile, generator: np.random.Generator) -> Ints:
    """[step, cohort] running sequences."""
    load, steps = profile.load, profile.steps
    around = ornstein_uhlenbeck(steps, load.spread, load.correlation_steps, generator)
    running = np.clip(np.rint(load.median * np.exp(around)), 1, load.most).astype(np.int64)
    mix = [ornstein_uhlenbeck(steps, load.mix_spread, load.mix_correlation_steps, generator) for _ in profile.cohorts]
    weights = np.array([cohort.share for cohort in profile.cohorts]) * np.exp(np.stack(mix, axis=1))
    phase = generator.uniform() + np.arange(steps) / load.request_steps
    return split(running, weights / weights.sum(axis=1, keepdims=True), phase)


def split(running: Ints, shares: Floats, phase: Floats) -> Ints:
    """[step, cohort] whole sequences that sum to `running`, each within 1 of its share and equal to it on average."""
    bounds = np.cumsum(shares, axis=1) * running[:, None]
    bounds[:, -1] = running
    cut = np.floor(bounds + (phase % 1.0)[:, None]).astype(np.int64)
    return np.diff(cut, axis=1, prepend=0)


def _levels(cohort: Cohort, steps: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """[step] the acceptance level of the median request at the first position."""
    logits = np.log(np.array(cohort.levels) / (1.0 - np.array(cohort.levels)))
    at, regime = 0, int(generator.integers(len(logits)))
    values = np.full(steps, logits[regime])
    while len(logits) > 1:
        at += 1 + int(generator.exponential(cohort.regime_steps))
        if at >= steps:
            break
        others = [i for i in range(len(logits)) if i != regime]
        before, regime = values[at], others[int(generator.integers(len(others)))]
        values[at:] = logits[regime]
        if generator.uniform() < cohort.gradual:
            ramp = min(cohort.ramp_steps, steps - at)
            values[at : at + ramp] = before + (logits[regime] - before) * np.arange(1, ramp + 1) / cohort.ramp_steps
    return 1.0 / (1.0 + np.exp(-values))
