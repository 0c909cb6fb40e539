"""The rule of recursive rejection without replacement, as functions of two distributions: the definition of exactness.

Chen et al. 2024, "Sequoia" (arXiv 2402.12374), algorithm 2. The residual starts as target_probs. A child x drawn from
draft_probs stands with min(1, residual[x] / draft_probs[x]). If it falls, the residual becomes the normalised
(residual - draft_probs)+, and the next child was drawn from draft_probs without x. When all fall, the residual is
sampled. Every step keeps the invariant of Leviathan et al. (2023): whatever is emitted has the residual's law.
"""

from __future__ import annotations

import torch


def draft_probs_of(scores: torch.Tensor, tried: list[int]) -> torch.Tensor:
    """What the next child was drawn from: softmax over tokens not yet tried, uniform if the drafter has no more.

    scores: [V], logits over temperature, -inf where the drafter gives nothing.
    """
    untried = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    untried[tried] = False
    if bool((untried & (scores > -torch.inf)).any()):
        return torch.softmax(scores.masked_fill(~untried, -torch.inf), -1)
    return untried.to(scores.dtype) / max(1, int(untried.sum()))


def one_hot(residual: torch.Tensor, token: int) -> torch.Tensor:
    """The draft distribution of a child that was chosen, not drawn."""
    return torch.zeros_like(residual).index_fill_(0, torch.tensor([token], device=residual.device), 1.0)


def acceptance(residual: torch.Tensor, draft_probs: torch.Tensor, token: int) -> float:
    """residual[x] / draft_probs[x]: a child stands if its uniform is below that; 0 where the residual is 0."""
    wanted, offered = float(residual[token]), float(draft_probs[token])
    if wanted <= 0.0:
        return 0.0
    return wanted / offered if offered > 0.0 else float("inf")


def residual_after(residual: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """The law that is left when a child drawn from draft_probs fell; all 0 if rounding leaves nothing."""
    rest = (residual - draft_probs).clamp(min=0.0)
    mass = rest.sum()
    return rest / mass if bool(mass > 0) else rest


def overlap_of(residual: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """Return the probability that the next child stands, over its draw: sum of min(residual, draft_probs)."""
    return torch.minimum(residual, draft_probs).sum().clamp(max=1.0)
