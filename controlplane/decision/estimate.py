"""What the control plane believes of the cohorts' drafts, by position, as arrays over all cohorts.

The hazard at position j is h_j = P(token j kept | tokens before j kept, a token was drafted at j): the Kaplan-Meier
estimator, right-censored by K, by a silent drafter and by the end of the text. accepted / drafted and
accepted_j / steps are biased as soon as K varies. Beside it stands how often the drafter has a token at all.

Evidence fades with the evidence that follows it, never with time: a quiet hour forgets nothing. What follows at the
first position fades the deeper ones too, at a share of the rate: text that changed there has changed deeper as well,
where a small K may not look for long. A hazard is drawn to its cohort's (all positions together), and that to the
model's (all cohorts together), by a few pseudo-samples: that decides where little was seen, and nothing where much was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.observation import Evidence, Floats
from controlplane.telemetry import MAX_K

HALF_LIFE = 300.0
"""Examined drafts after which evidence at a position counts half; the sum is bounded by about 433."""

SPREAD_LEAST, SPREAD_MOST = 1.0, 16.0
"""Bounds of the spread: 1 where every step is its own draw, more where requests differ and steps of one are alike."""

ENOUGH = 20.0
"""Discounted examined drafts with which a position speaks for itself (standard deviation about 0.1)."""

POOLED_WEIGHT = 4.0
"""Pseudo-samples with which a position is drawn to the hazard of all positions of the cohort."""

MODEL_WEIGHT = 20.0
"""The same for a cohort as a whole, towards all cohorts of the model."""

PRIOR_WEIGHT, PRIOR_HAZARD = 2.0, 0.5
"""The same for the model before anything was seen."""

FIRST_SHARE = 0.1
"""A draft examined at the first position fades every deeper one as so many examined there."""

_FADE = 0.5 ** (1.0 / HALF_LIFE)


@dataclass(frozen=True, slots=True, eq=False)
class Hazards:
    """Posterior of the conditional acceptance: mean, sd and examined (discounted drafts), each [cohorts, MAX_K]."""

    mean: Floats
    sd: Floats
    examined: Floats

    def accept_at(self, cohort: int) -> tuple[float, ...]:
        """Conditional acceptance of the positions that were ever examined, from the first on."""
        unseen = np.flatnonzero(self.examined[cohort] <= 0.0)
        seen = int(unseen[0]) if len(unseen) else MAX_K
        return tuple(round(mean, 4) for mean in self.mean[cohort, :seen].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What a K would bring each cohort, from the hazards and the drafter's silence.

    survival: [cohorts, MAX_K], P(token j is kept) in a step that is planned that deep. drafted: [cohorts, MAX_K],
    P(there is a token at j). emitted: [cohorts, MAX_K + 1], expected tokens of a step with K = 0 ... MAX_K, the extra
    token included: 1 + the sum of survival. positions: the same of positions computed. relative: [cohorts, MAX_K],
    variance of the hazards over their squares. chain: the outlook of chains, where some rungs are token trees
    (`tree_rungs`), survival then being what each rung brings beyond the one before.
    """

    survival: Floats
    drafted: Floats
    emitted: Floats
    positions: Floats
    relative: Floats
    chain: Outlook | None = None

    @property
    def of_chains(self) -> Outlook:
        return self.chain or self

    @property
    def emitted_sd(self) -> Floats:
        """[cohorts, MAX_K + 1]: standard deviation of emitted, by the delta method (Greenwood's for a survival
        function)."""  # noqa: D209
        return _emitted_sd(self.survival, self.relative)


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Discounted counts, f64 [cohorts, MAX_K]. A value: `absorb`, `renew` and `keep` return new ones.

    evidence: as in Evidence. squares: sum of the squared weights of examined, so that examined**2 / squares is the
    number of drafts that the estimate is worth. spread [cohorts]: variance of a tick's acceptance beside that of
    independent steps; n steps say as much as n / spread.
    """

    evidence: Evidence
    squares: Floats
    spread: Floats

    @classmethod
    def of_nothing(cls, cohorts: int) -> Estimate:
        return cls(Evidence.nothing(cohorts), np.zeros((cohorts, MAX_K)), np.full(cohorts, 2.0))

    @property
    def samples(self) -> Floats:
        """[cohorts]: discounted drafts examined at the first position, all that had at least one token."""
        return self.evidence.examined[:, 0]

    @property
    def pooled(self) -> Floats:
        """[cohorts]: hazard of a cohort over all positions, drawn to the model's."""
        accepted, examined = self.evidence.accepted.sum(axis=1), self.evidence.examined.sum(axis=1)
        model = (accepted.sum() + PRIOR_WEIGHT * PRIOR_HAZARD) / (examined.sum() + PRIOR_WEIGHT)
        pooled: Floats = (accepted + MODEL_WEIGHT * model) / (examined + MODEL_WEIGHT)
        return pooled

    def hazards(self) -> Hazards:
        """The conditional acceptance of every cohort and position."""
        examined = self.evidence.examined
        mean = (self.evidence.accepted + POOLED_WEIGHT * self.pooled[:, None]) / (examined + POOLED_WEIGHT)
        worth = examined**2 / np.maximum(self.squares, 1e-12)
        sd = np.sqrt(mean * (1.0 - mean) / ((worth + POOLED_WEIGHT) / self.spread[:, None] + 1.0))
        return Hazards(mean, sd, examined)

    def outlook(self) -> Outlook:
        """Expected tokens and positions of a step for every K."""
        e, hazards = self.evidence, self.hazards()
        offered = (e.examined + POOLED_WEIGHT) / (e.reached + POOLED_WEIGHT)
        survival = np.cumprod(hazards.mean * offered, axis=1)
        drafted, before = np.empty_like(survival), np.ones(len(survival))
        for j in range(MAX_K):  # a position that was never planned is as silent as the one before it
            before = np.minimum((e.drafted[:, j] + POOLED_WEIGHT * before) / (e.planned[:, j] + POOLED_WEIGHT), before)
            drafted[:, j] = before
        survival = np.minimum(survival, drafted)
        zero = np.zeros((len(survival), 1))
        emitted = 1.0 + np.concatenate([zero, survival.cumsum(axis=1)], axis=1)
        positions = 1.0 + np.concatenate([zero, drafted.cumsum(axis=1)], axis=1)
        relative = (hazards.sd / np.maximum(hazards.mean, 1e-9)) ** 2
        return Outlook(survival, drafted, emitted, positions, relative)

    def absorb(self, new: Evidence) -> Estimate:
        """With newer counts [cohorts, MAX_K] added and the older ones faded by as many.

        The order within `new` is unknown, so its own counts enter at the mean of their fading, 1 + f + ... + f^(n-1).
        """
        e = self.evidence
        passed = np.maximum(new.examined, FIRST_SHARE * new.examined[:, :1])
        fade, weight = _fading(passed)
        plan_fade, plan_weight = _fading(new.planned)
        return replace(
            self,
            evidence=Evidence(
                planned=e.planned * plan_fade + new.planned * plan_weight,
                drafted=e.drafted * plan_fade + new.drafted * plan_weight,
                reached=e.reached * fade + new.reached * weight,
                examined=e.examined * fade + new.examined * weight,
                accepted=e.accepted * fade + new.accepted * weight,
            ),
            squares=self.squares * fade**2 + new.examined * weight**2,
        )

    def renew(self, cohort: int, first: int, fresh: Evidence) -> Estimate:
        """With all that was believed of one cohort's positions from `first` on replaced by `fresh` [MAX_K]."""
        alone = Estimate.of_nothing(1).absorb(fresh.alone())
        arrays = []
        for old, new in zip(self._arrays(), alone._arrays(), strict=True):
            changed = old.copy()
            changed[cohort, first:] = new[0, first:]
            arrays.append(changed)
        return Estimate(Evidence(*arrays[:5]), arrays[5], self.spread)

    def keep(self, share: Floats) -> Estimate:
        """With every count of each cohort scaled by `share` [cohorts]: the same hazards, believed less."""
        scale = share[:, None]
        return Estimate(Evidence(*(a * scale for a in self._arrays()[:5])), self.squares * scale, self.spread)

    def _arrays(self) -> tuple[Floats, ...]:
        e = self.evidence
        return (e.planned, e.drafted, e.reached, e.examined, e.accepted, self.squares)


def _fading(n: Floats) -> tuple[Floats, Floats]:
    """What n newer counts leave of the older ones, and the mean weight of the newer."""
    fade = _FADE**n
    return fade, np.where(n > 0, (1.0 - fade) / (1.0 - _FADE) / np.maximum(n, 1e-12), 1.0)


def _emitted_sd(survival: Floats, relative: Floats) -> Floats:
    """[cohorts, MAX_K + 1]: sd of 1 + S_1 + ... + S_K where S_j is a product of hazards of `relative` variance.

    dE/dh_j = (S_j + ... + S_K) / h_j, so the variance is sum_j (S_j + ... + S_K)^2 relative_j.
    """
    total = survival.cumsum(axis=1)
    before = total - survival
    sd = np.zeros((len(survival), MAX_K + 1))
    for k in range(1, MAX_K + 1):
        tails = total[:, k - 1 : k] - before[:, :k]
        sd[:, k] = np.sqrt((tails**2 * relative[:, :k]).sum(axis=1))
    return sd
