"""The Medusa heads: from the target's last hidden state to the best tokens of each of the next positions."""

from __future__ import annotations

import torch

from kernels.launch import Backend, BackendUnavailable, choose_backend
from kernels.medusa_heads import naive
from kernels.medusa_heads.heads import MAX_K, Candidates, Heads

__all__ = ["MAX_K", "BackendUnavailable", "Candidates", "medusa_heads"]


def medusa_heads(
    hidden: torch.Tensor,
    residual_weight: torch.Tensor,
    residual_bias: torch.Tensor | None,
    lm_head_weight: torch.Tensor,
    *,
    k: int,
    vocab_map: torch.Tensor | None = None,
    backend: Backend = "auto",
) -> Candidates:
    """The k best tokens of every head, without the logits of all heads (Cai et al. 2024, section 2.1.1).

    Head h computes x + SiLU(residual_weight[h] @ x + residual_bias[h]), rounds it to the dtype of `hidden` and takes
    the LM head of it. Products are summed in float32 and logits stay float32. A row's answer does not depend on the
    other rows.

    hidden: [B, H] float32, bfloat16 or float16, H a multiple of 16. residual_weight: [heads, H, H]. residual_bias:
    [heads, H] or None. lm_head_weight: [V, H] for all heads or [heads, V, H], whole or truncated; all of the dtype of
    `hidden`. vocab_map: [V] i64, the token id that each row of a truncated LM head stands for, each id once, in any
    order; None where rows are token ids. k: 1 to 16. A NaN logit ranks as -inf and makes log_sum_exp NaN.

    Raises ValueError for arguments that do not fit together, BackendUnavailable for a named backend that cannot run.
    """
    heads = Heads(hidden, residual_weight, residual_bias, lm_head_weight, vocab_map, k)
    if choose_backend(backend, hidden.device) == "naive":
        return naive.medusa_heads(heads)
    from kernels.medusa_heads import fused  # here, so that nobody imports Triton who does not run it

    return fused.medusa_heads(heads)
