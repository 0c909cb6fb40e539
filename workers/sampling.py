"""What a request allows a row of logits to become: top-k, top-p and min_tokens, by masking with -inf.

Temperature stays out: verification applies it, to target and draft alike.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from workers.sequence import SamplingParams, Sequence

FIRST_LOOK = 1024
"""Candidates for a nucleus that a CPU sorts at first; a whole vocabulary of 49152 takes it 2 ms a row."""


def restrict(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Mask [rows, vocab] outside top-k, then outside the nucleus of top-p (after temperature, as OpenAI's)."""
    if sampling.temperature == 0 or (sampling.top_k == 0 and sampling.top_p >= 1):
        return logits
    scores, vocab = logits.float(), logits.shape[-1]
    is_open = sampling.top_k == 0 and scores.is_cpu
    width = min(FIRST_LOOK if is_open else sampling.top_k or vocab, vocab)
    limited, is_complete = _restrict_to_largest(scores, sampling, width)
    if width < vocab and is_open and not bool(is_complete.all()):
        flat = ~is_complete
        limited[flat], _ = _restrict_to_largest(scores[flat], sampling, vocab)
    return limited


def _restrict_to_largest(
    scores: torch.Tensor, sampling: SamplingParams, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [rows, vocab] outside the limits as -inf, by the `width` largest of each row.

    Also [rows] bool: whether the nucleus ends among them. What a row becomes does not depend on the other rows.
    """
    values, index = scores.topk(width, dim=-1)
    is_complete = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    if sampling.top_p < 1:
        # The nucleus is of what top-k leaves.
        of = values if sampling.top_k else scores
        probs = torch.softmax(of / sampling.temperature, dim=-1)
        if not sampling.top_k:
            probs = probs.gather(-1, index)
        # A token stays while the mass before it is under top_p, so that the first always stays.
        is_outside = probs.cumsum(-1) - probs >= sampling.top_p
        values = values.masked_fill(is_outside, -torch.inf)
        is_complete = is_outside[:, -1]
    return torch.full_like(scores, -torch.inf).scatter_(-1, index, values), is_complete


def restrict_batch(
    logits: torch.Tensor, batch: Seq[Sequence], rows_of: Seq[range], eos_token_ids: Seq[int]
) -> torch.Tensor:
    """Apply each sequence's limits to its rows; row j of a sequence decides its completion token number length + j.

    EOS is masked first: top-k and top-p then choose among what may be emitted, and a row never ends up empty.
    """
    out = logits
    for sequence, rows in zip(batch, rows_of, strict=True):
        own = logits[rows.start : rows.stop]
        limited = restrict_rows(own, sequence.request.sampling, sequence.completion_length, eos_token_ids)
        if limited is own:
            continue
        if out is logits:
            out = logits.to(torch.float32, copy=True)
        out[rows.start : rows.stop] = limited
    return out


def restrict_rows(
    logits: torch.Tensor, sampling: SamplingParams, completion_length: int, eos_token_ids: Seq[int]
) -> torch.Tensor:
    """One request's rows [n, vocab] with its limits; row j decides completion token number completion_length + j.

    The same tensor where there are none.
    """
    allowed, early = logits, sampling.min_tokens - completion_length
    if early > 0:
        allowed = logits.to(torch.float32, copy=True)
        allowed[:early, list(eos_token_ids)] = -torch.inf
    return restrict(allowed, sampling)
