"""Verification of draft chains: accept a prefix of every proposal and add one token of the target's own."""

from __future__ import annotations

import torch

from kernels.filters.limits import limits_of
from kernels.launch import Backend, BackendUnavailable, choose_backend
from kernels.verify import naive, noise
from kernels.verify.noise import Purpose, uniform
from kernels.verify.verdict import GREEDY_BELOW, Chains, Rule, Verdict

__all__ = [
    "GREEDY_BELOW",
    "BackendUnavailable",
    "Purpose",
    "Rule",
    "Verdict",
    "gumbel_noise",
    "uniform",
    "verify_chain",
]


def verify_chain(
    target_logits: torch.Tensor,
    draft_token_ids: torch.Tensor,
    draft_logits: torch.Tensor | None,
    cu_draft: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    coupled: torch.Tensor,
    *,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
    rule: Rule = "token",
    backend: Backend = "auto",
    max_k: int | None = None,
) -> Verdict:
    """Verify B chains of draft tokens, ragged and in mixed sampling modes, without a [rows, V] probability tensor.

    target_logits: [num_draft + B, V] float32, bfloat16 or float16; rows cu_draft[b] + b .. cu_draft[b + 1] + b + 1
    belong to sequence b, k_b + 1 of them. -inf masks a token; each row needs a finite logit. Logits come after
    penalties but before temperature, and before the filters below or after others.
    draft_token_ids: [num_draft] i64. draft_logits: [num_draft, V], what the draft tokens were sampled from, before the
    temperature, -inf outside the drafter's vocabulary; None when proposals are deterministic (one-hot).
    cu_draft: [B + 1] i32, rising from 0 to num_draft; k_b = 0 is plain sampling from the single row.
    temperature: [B] f32; under GREEDY_BELOW (0, say) the row is greedy and ties go to the lowest token.
    seeds: [B] i64 key of the random numbers. positions: [B] i64 absolute index in the sequence of the first token to be
    emitted. coupled: [B] bool; True couples target and draft by `gumbel_noise` (seeded requests), False is rejection
    sampling.
    top_k [B] i32, top_p and min_p [B] f32 in [0, 1]: filters of the target's rows, applied here in this order after the
    temperature (`kernels.filters` has the rule, and what ties do); 0, 1 and 0 are off, None is off for all. They agree
    with `workers.sampling.restrict` but for tokens of equal score at the edge, which all stay here, and for a nucleus
    whose mass meets top_p to seven digits. draft_logits must be what the drafter sampled from, hence filtered before.
    rule: of unseeded rows. "token" accepts one token after the other (Leviathan et al. 2023). "block" weighs the whole
    chain and keeps its longest prefix that passes (Sun et al. 2025, Block Verification, algorithm 2): the same law, at
    least as many tokens, one more pass over the drafted rows.
    max_k: longest chain, if the caller knows it; without it a device tensor costs one synchronisation.

    Raises ValueError for arguments that do not fit together, BackendUnavailable for a named backend that cannot run.
    """
    if max_k is None:
        max_k = int(cu_draft.diff().max()) if cu_draft.ndim == 1 and len(cu_draft) > 1 else 0
    limits = limits_of(top_k, top_p, min_p, temperature)
    chains = Chains(
        target_logits,
        draft_token_ids,
        draft_logits,
        cu_draft,
        temperature,
        seeds,
        positions,
        coupled,
        max_k,
        limits,
        rule,
    )
    if choose_backend(backend, target_logits.device) == "naive":
        return naive.verify_chain(chains)
    from kernels.verify import fused  # here, so that nobody imports Triton who does not run it

    return fused.verify_chain(chains)


def gumbel_noise(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    vocab_size: int,
    *,
    purpose: Purpose = Purpose.COUPLED,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Standard Gumbel noise [n, vocab_size] float32 of `seeds` [n] i64 at absolute `positions` [n] i64.

    The default purpose is the row that a seeded target and its drafter share: a drafter that takes
    argmax(logits / temperature + row) proposes what the target would take from the same logits. A drafter that samples
    for an unseeded request must say Purpose.DRAFT. A row does not depend on vocab_size.
    """
    noise.check_streams(seeds, positions)
    if vocab_size < 1:
        raise ValueError(f"vocab_size is {vocab_size}; it must be at least 1")
    if choose_backend(backend, seeds.device) == "naive":
        return noise.gumbel_noise(seeds, positions, vocab_size, purpose)
    from kernels.verify import fused_noise

    return fused_noise.gumbel_noise(seeds.contiguous(), positions.contiguous(), vocab_size, purpose)
