"""The definition of a row's threshold; see the package for the rule."""

from __future__ import annotations

import torch

from kernels.filters.weights import integer_weights

FIRST_LOOK = 1024
"""Scores that are ranked at first: nearly every nucleus ends there, and ranking a whole vocabulary takes a CPU 5 ms."""


def row_threshold(scores: torch.Tensor, top_k: int, top_p: float, log_min_p: float) -> float:
    """The smallest score that stays of one row of logits / temperature [V] f32; -inf if nothing is cut off.

    log_min_p: log(min_p), -inf for off.
    """
    largest = scores.max()
    threshold = -torch.inf
    kept = scores
    if 0 < top_k < len(scores):
        threshold = float(scores.topk(top_k).values[-1])
        kept = scores[scores >= threshold]
    if top_p < 1:
        # Comparing doubles, because a sum of weights may have 60 bits.
        wanted = top_p * float(integer_weights(kept - largest).sum())
        threshold = _nucleus_end(kept, largest, wanted)
    return max(threshold, float(largest + torch.tensor(log_min_p, device=scores.device)))


def _nucleus_end(scores: torch.Tensor, largest: torch.Tensor, wanted: float) -> float:
    """The largest score that, with all above it, has the mass `wanted`."""
    for width in (min(FIRST_LOOK, len(scores)), len(scores)):
        ranked = scores.topk(width).values
        is_reached = integer_weights(ranked - largest).cumsum(0).double() >= wanted
        if bool(is_reached.any()):
            break
    return float(ranked[int(is_reached.int().argmax())])


def restricted(scores: torch.Tensor, top_k: int, top_p: float, log_min_p: float) -> torch.Tensor:
    """`scores` [V] f32 with -inf for whatever does not stay."""
    if top_k == 0 and top_p >= 1 and log_min_p == -torch.inf:
        return scores
    return scores.masked_fill(scores < row_threshold(scores, top_k, top_p, log_min_p), -torch.inf)
