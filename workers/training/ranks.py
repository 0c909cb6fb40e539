"""Acceptance by rank: how often a parent's best, second best, ... child in a tree of drafts would be the one kept.

Greedy: whether the target's token is the drafter's token of that rank. Sampled: siblings are drawn without replacement
and tried one after the other by recursive rejection sampling (Sequoia, arXiv 2402.12374, section 3.2), and what counts
is the probability that the sibling of that rank stands, given that those before it did not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

RANKS = 8
"""Siblings that are looked at."""


class RankOutcome(NamedTuple):
    """Of each row and rank [rows, RANKS], in [0, 1]: the chance that the child is tried, and that it stands."""

    tried: torch.Tensor
    stood: torch.Tensor


def greedy_ranks(logits: torch.Tensor, place: torch.Tensor, is_known: torch.Tensor) -> RankOutcome:
    """logits: [rows, draft vocabulary]. place: [rows], of the target's token in it where it is known [rows] bool.

    Equal logits rank by their place, as argmax has it.
    """
    own = logits.gather(-1, place[:, None])
    before = (logits > own).sum(-1) + ((logits == own) & (torch.arange(logits.shape[1]) < place[:, None])).sum(-1)
    rank = torch.where(is_known, before, RANKS)
    ranks = torch.arange(RANKS)
    return RankOutcome((rank[:, None] >= ranks).float(), (rank[:, None] == ranks).float())


def sampled_ranks(target_probs: torch.Tensor, draft_probs: torch.Tensor, generator: torch.Generator) -> RankOutcome:
    """target_probs: [rows, vocabulary + 1] over the draft vocabulary, and the mass outside of it last. draft_probs:
    [rows, vocabulary]. Which tokens are drawn is left to the generator; whether they stand is counted by its chance.
    """
    residual = target_probs.clone()
    left = draft_probs.clone()
    reached = torch.ones(len(residual))
    # The first of exponential clocks at these rates to ring is a draw, the next one a draw from what is left.
    clocks = left.clamp(min=1e-30) / torch.empty_like(left).exponential_(generator=generator)
    order = clocks.topk(min(RANKS, left.shape[-1]), dim=-1).indices
    tried, stood = [], []
    for drawn in order.split(1, dim=-1):
        own = left.gather(-1, drawn)[:, 0]
        chance = torch.where(own > 0, residual.gather(-1, drawn)[:, 0] / own.clamp(min=1e-30), 0.0).clamp(max=1.0)
        tried.append(reached)
        stood.append(reached * chance)
        reached = reached * (1.0 - chance)
        residual[:, :-1].sub_(left).clamp_(min=0.0)
        residual.div_(residual.sum(-1, keepdim=True).clamp(min=1e-30))
        left.scatter_(-1, drawn, 0.0)
        left.div_(left.sum(-1, keepdim=True).clamp(min=1e-30))
    # Of a vocabulary that is all drawn there is no further sibling: tried in vain.
    none_left = RANKS - len(tried)
    tried, stood = tried + [reached] * none_left, stood + [torch.zeros_like(reached)] * none_left
    return RankOutcome(torch.stack(tried, -1), torch.stack(stood, -1))


def over_draft_vocabulary(probs: torch.Tensor, vocabulary: torch.Tensor) -> torch.Tensor:
    """[rows, len(vocabulary) + 1] of probs [rows, vocab]: what lies in the draft vocabulary, then the rest's mass."""
    inside = probs[:, vocabulary]
    return torch.cat((inside, (1.0 - inside.sum(-1, keepdim=True)).clamp(min=0.0)), dim=-1)
