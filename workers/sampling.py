"""What a request allows a row of logits to become: top-k, top-p and min_tokens, by masking with -inf.

Temperature stays out: verification applies it, to target and draft alike.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from workers.sequence import SamplingParams, Sequence


def restrict(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Mask [rows, vocab] outside top-k, then outside the nucleus of top-p (after temperature, as OpenAI's)."""
    if sampling.temperature == 0 or (sampling.top_k == 0 and sampling.top_p >= 1):
        return logits
    vocab = logits.shape[-1]
    top_k = min(sampling.top_k or vocab, vocab)
    values, index = logits.float().topk(top_k, dim=-1)
    if sampling.top_p < 1:
        probs = torch.softmax(values / sampling.temperature, dim=-1)
        # A token stays while the mass before it is under top_p, so that the first always stays.
        values = values.masked_fill(probs.cumsum(-1) - probs >= sampling.top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf, dtype=torch.float32).scatter_(-1, index, values)


def restrict_batch(
    logits: torch.Tensor, batch: Seq[Sequence], rows_of: Seq[range], eos_token_ids: Seq[int]
) -> torch.Tensor:
    """Apply each sequence's limits to its rows; row j of a sequence decides its completion token number length + j."""
    out = logits
    for sequence, rows in zip(batch, rows_of, strict=True):
        sampling = sequence.request.sampling
        limited = restrict(logits[rows.start : rows.stop], sampling)
        early = sampling.min_tokens - sequence.completion_length
        if early <= 0 and limited.data_ptr() == logits[rows.start : rows.stop].data_ptr():
            continue
        if out is logits:
            out = logits.float()
        out[rows.start : rows.stop] = limited
        if early > 0:
            out[rows.start : min(rows.start + early, rows.stop), list(eos_token_ids)] = -torch.inf
    return out
