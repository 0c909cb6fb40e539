"""The mean of paired differences, less what the load explains: CUPED with covariates whose mean is known to be 0.

A covariate must be settled before the treatment can act: offered arrivals and the mix of prompts, never tokens produced
or batch sizes, which the treatment changes (adjusting by those explains the effect itself away). As the order of a
pair's windows is random, the expected difference of such a covariate between the arms is exactly 0; so the regression's
value at 0 is an estimate of the mean that does not move the estimand, with the variance of what is left.

Sources: Deng, Xu, Kohavi and Walker, "Improving the sensitivity of online controlled experiments by utilizing
pre-experiment data", WSDM 2013 (variance falls by the factor 1 - R^2); Lin, "Agnostic notes on regression adjustments",
2013 (why the regression need not be true).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RANK_TOLERANCE = 1e-9
PAIRS_PER_COVARIATE = 5
"""A covariate counts from so many pairs on: with fewer it would explain noise."""


@dataclass(frozen=True, slots=True)
class Adjusted:
    """After 1, 2, ... pairs, along the last axis of each.

    estimate: the mean at covariates of 0. spread: standard deviation of a pair such that estimate has the standard
    error spread / sqrt(pairs); NaN before there are pairs enough. removed: share of the variance that the covariates
    took away, 0 without any. free: degrees of freedom.
    """

    estimate: Floats
    spread: Floats
    removed: Floats
    free: Floats


def adjusted(differences: npt.ArrayLike, covariates: npt.ArrayLike | None = None) -> Adjusted:
    """Least squares on 1 and the covariates, again after every pair.

    differences: [..., pairs]. covariates: [..., pairs, kinds], each with expectation 0; one that does not vary, or says
    the same as others, is left out. Raises ValueError where shapes differ.
    """
    d = np.asarray(differences, dtype=np.float64)
    x = np.zeros((*d.shape, 0)) if covariates is None else np.asarray(covariates, dtype=np.float64)
    if x.shape[:-1] != d.shape:
        raise ValueError(f"covariates of shape {x.shape} do not belong to differences of shape {d.shape}")
    kinds, n = x.shape[-1], np.arange(1, d.shape[-1] + 1)
    # Scaled, so that "does not vary" is the same for requests per second and for tokens.
    x = x / np.maximum(np.sqrt(np.mean(x * x, axis=-2, keepdims=True)), 1e-12) if kinds else x
    design = np.concatenate([np.ones((*d.shape, 1)), x], axis=-1)
    gram = np.cumsum(design[..., :, None] * design[..., None, :], axis=-3)
    moment = np.cumsum(design * d[..., None], axis=-2)
    squares = np.cumsum(d * d, axis=-1)
    is_early = n < PAIRS_PER_COVARIATE * (kinds + 1)
    if kinds:
        gram[..., is_early, 1:, :] = 0.0
        gram[..., is_early, :, 1:] = 0.0
    values, vectors = np.linalg.eigh(gram)
    is_kept = values > RANK_TOLERANCE * n[:, None]
    inverse = np.einsum("...ik,...k,...jk->...ij", vectors, is_kept / np.where(is_kept, values, 1.0), vectors)
    rank = is_kept.sum(axis=-1)
    slopes = np.einsum("...ij,...j->...i", inverse, moment)
    left = np.maximum(squares - np.einsum("...i,...i->...", slopes, moment), 0.0)
    mean = np.cumsum(d, axis=-1) / n
    whole = np.maximum(squares - n * mean * mean, 0.0)
    free = (n - rank).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.where(free > 0, left / free, np.nan) * inverse[..., 0, 0] * n
        removed = np.where(whole > 0, 1.0 - left / whole, 0.0)
    return Adjusted(slopes[..., 0], np.sqrt(variance), np.clip(removed, 0.0, 1.0), free)
