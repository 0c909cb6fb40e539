"""The work of each operation in the plainest batched PyTorch: what an engine without these kernels would run.

They draw their own random numbers, so their tokens are not those of the operations; only the work is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional


def verify_greedy(target: torch.Tensor, draft_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of target [B, K + 1, V], draft_ids [B, K]: accepted [B], tokens [B, K + 1]."""
    best = target.argmax(-1)
    accepted = (best[:, :-1] == draft_ids).int().cumprod(1).sum(1)
    return accepted, best


def verify_rejection(
    target: torch.Tensor,
    draft_ids: torch.Tensor,
    draft: torch.Tensor | None,
    temperature: torch.Tensor,
    top_p: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of target [B, K + 1, V], draft [B, K, V] or None: accepted [B], next token [B], overlap [B, K]."""
    batch, k = draft_ids.shape
    target_probs = _probs(target, temperature[:, None, None], top_p)
    of_draft = target_probs[:, :k].gather(2, draft_ids[..., None])[..., 0]
    if draft is None:
        draft_probs = torch.zeros_like(target_probs[:, :k]).scatter_(2, draft_ids[..., None], 1.0)
    else:
        draft_probs = _probs(draft, temperature[:, None, None], None)
    by_draft = draft_probs.gather(2, draft_ids[..., None])[..., 0]
    stands = torch.rand_like(by_draft) * by_draft < of_draft
    accepted = stands.int().cumprod(1).sum(1)
    overlap = torch.minimum(target_probs[:, :k], draft_probs).sum(-1)
    residual = (target_probs[:, :k] - draft_probs).clamp(min=0.0)
    candidates = torch.cat([residual, target_probs[:, k:]], 1)
    row = candidates[torch.arange(batch, device=target.device), accepted]
    return accepted, _drawn(row), overlap


def sample(logits: torch.Tensor, temperature: torch.Tensor, top_p: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Of logits [B, V]: tokens [B], log-probabilities [B]."""
    probs = _probs(logits, temperature[:, None].clamp(min=1e-5), top_p)
    tokens = _drawn(probs)
    return tokens, probs.gather(1, tokens[:, None])[:, 0].log()


def tree_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """Query [B, rows, q_heads, D], caches [blocks, block_size, kv_heads, D], mask [B, 1, rows, keys] -> as query.

    Keys are gathered out of the cache, then PyTorch's own attention runs on them.
    """
    batch, keys = len(query), mask.shape[-1]
    shape = (batch, -1, *k_cache.shape[2:])
    k, v = (cache[block_tables].view(shape)[:, :keys].transpose(1, 2) for cache in (k_cache, v_cache))
    attended = functional.scaled_dot_product_attention(query.transpose(1, 2), k, v, attn_mask=mask, enable_gqa=True)
    return attended.transpose(1, 2)


def medusa_heads(
    hidden: torch.Tensor,
    residual_weight: torch.Tensor,
    residual_bias: torch.Tensor,
    lm_head_weight: torch.Tensor,
    k: int,
    vocab_map: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `kernels.medusa_heads`, in the dtype of the model: every logit is written, then the best are looked for."""
    inner = torch.einsum("bi,hoi->bho", hidden, residual_weight) + residual_bias
    states = hidden[:, None] + functional.silu(inner)
    equation = "bhi,vi->bhv" if lm_head_weight.ndim == 2 else "bhi,hvi->bhv"
    logits = torch.einsum(equation, states, lm_head_weight).float()
    best, columns = logits.topk(k, -1)
    return columns if vocab_map is None else vocab_map[columns], best, logits.logsumexp(-1)


def kv_commit(
    k_caches: Sequence[torch.Tensor], v_caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Copy rows `sources` of each layer's cache [blocks, block_size, kv_heads, D] to rows `targets`; the last rows."""
    for cache in (*k_caches, *v_caches):
        flat = cache.flatten(0, 1)
        rows = flat[sources]
        flat[targets] = rows
    return rows


def _probs(logits: torch.Tensor, temperature: torch.Tensor, top_p: float | None) -> torch.Tensor:
    probs = torch.softmax(logits.float() / temperature, -1)
    if top_p is None:
        return probs
    ranked, order = probs.sort(dim=-1, descending=True)
    outside = ranked.cumsum(-1) - ranked >= top_p
    kept = torch.zeros_like(probs).scatter_(-1, order, ranked.masked_fill(outside, 0.0))
    return kept / kept.sum(-1, keepdim=True)


def _drawn(probs: torch.Tensor) -> torch.Tensor:
    """A sample of each row: the largest of probability over exponential noise."""
    return (probs / torch.empty_like(probs).exponential_()).argmax(-1)
