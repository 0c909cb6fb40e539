"""The definition of the Medusa heads: all logits, then a stable sort."""

from __future__ import annotations

import torch

from kernels.medusa_heads.heads import Candidates, Heads


def medusa_heads(heads: Heads) -> Candidates:
    """See `kernels.medusa_heads.medusa_heads`."""
    logits = head_logits(heads)
    log_sum_exp = torch.logsumexp(logits, -1)
    ranked = torch.where(logits.isnan(), -torch.inf, logits)
    token_ids = torch.arange(heads.vocab_size, device=logits.device) if heads.vocab_map is None else heads.vocab_map
    token_ids, by_id = token_ids.sort()
    # Stable, on columns by rising token id: equal logits stay in the order of their ids.
    best, columns = ranked[..., by_id].sort(dim=-1, descending=True, stable=True)
    best, columns = best[..., : heads.k], columns[..., : heads.k]
    return Candidates(token_ids[columns], best.contiguous(), log_sum_exp)


def head_logits(heads: Heads) -> torch.Tensor:
    """Logits [B, heads, V] float32 of every head over the rows of its LM head."""
    x = heads.hidden.float()
    inner = torch.einsum("bi,hoi->bho", x, heads.residual_weight.float())
    if heads.residual_bias is not None:
        inner = inner + heads.residual_bias.float()
    states = (x[:, None] + torch.nn.functional.silu(inner)).to(heads.hidden.dtype).float()
    if heads.is_shared:
        return states @ heads.lm_head_weight.float().T
    return torch.einsum("bhi,hvi->bhv", states, heads.lm_head_weight.float())
