"""The definition of chain verification, one row at a time in plain PyTorch; reads only rows that the walk reaches."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from kernels.filters.naive import restricted
from kernels.verify.noise import Purpose, gumbel_noise, uniform
from kernels.verify.verdict import GREEDY_BELOW, Chains, Verdict


@dataclass(frozen=True, slots=True)
class _Chain:
    """One sequence's part of the batch: k + 1 target rows, k draft tokens and uniforms; overlap [k] is written."""

    target_logits: torch.Tensor
    draft_token_ids: list[int]
    draft_logits: torch.Tensor | None
    inverse_temperature: float
    seed: torch.Tensor
    position: torch.Tensor
    uniforms: list[float]
    overlap: torch.Tensor
    limits: tuple[int, float, float] | None
    """top_k, top_p and log(min_p)."""

    def target_scores(self, j: int) -> torch.Tensor:
        scores = self.target_logits[j].float() * self.inverse_temperature
        return scores if self.limits is None else restricted(scores, *self.limits)

    def target_probs(self, j: int) -> torch.Tensor:
        return torch.softmax(self.target_scores(j), -1)

    def draft_probs(self, j: int) -> torch.Tensor | None:
        if self.draft_logits is None:
            return None
        return torch.softmax(self.draft_logits[j].float() * self.inverse_temperature, -1)

    def noise(self, j: int, purpose: Purpose) -> torch.Tensor:
        vocab_size = self.target_logits.shape[1]
        return gumbel_noise(self.seed[None], (self.position + j)[None], vocab_size, purpose)[0]


def verify_chain(chains: Chains) -> Verdict:
    """Walk every chain until its first rejection; see `kernels.verify.verify_chain`."""
    device = chains.target_logits.device
    overlap = torch.full((len(chains.draft_token_ids),), torch.nan, dtype=torch.float32, device=device)
    bounds = chains.cu_draft.tolist()
    draft_token_ids = chains.draft_token_ids.tolist()
    inverse_temperatures = (1.0 / chains.temperature).tolist()
    # Compared as float32, which is what a kernel compares.
    is_greedy, coupled = (chains.temperature < GREEDY_BELOW).tolist(), chains.coupled.tolist()
    is_unseeded = ~chains.coupled & (chains.temperature >= GREEDY_BELOW)
    uniforms = _acceptance_uniforms(chains).tolist() if bool(is_unseeded.any()) else []
    limits = chains.limits and list(
        zip(chains.limits.top_k.tolist(), chains.limits.top_p.tolist(), chains.limits.log_min_p.tolist(), strict=True)
    )
    emitted: list[list[int]] = []
    for b, (start, end) in enumerate(itertools.pairwise(bounds)):
        chain = _Chain(
            target_logits=chains.target_logits[start + b : end + b + 1],
            draft_token_ids=draft_token_ids[start:end],
            draft_logits=None if chains.draft_logits is None else chains.draft_logits[start:end],
            inverse_temperature=inverse_temperatures[b],
            seed=chains.seeds[b],
            position=chains.positions[b],
            uniforms=uniforms[start:end],
            overlap=overlap[start:end],
            limits=limits[b] if limits else None,
        )
        if is_greedy[b]:
            emitted.append(_walk_greedy(chain))
        elif coupled[b]:
            emitted.append(_walk_coupled(chain))
        elif chains.rule == "block":
            emitted.append(_walk_block(chain))
        else:
            emitted.append(_walk_rejection(chain))
    width = chains.max_k + 1
    padded = [tokens + [-1] * (width - len(tokens)) for tokens in emitted]
    return Verdict(
        num_accepted=torch.tensor([len(tokens) - 1 for tokens in emitted], dtype=torch.int32, device=device),
        token_ids=torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(emitted), width),
        overlap=overlap,
    )


def _acceptance_uniforms(chains: Chains) -> torch.Tensor:
    """[num_draft] f32, drawn at once: it is a hundred array operations however few the numbers."""
    k = chains.cu_draft.diff()
    owner = torch.arange(len(k), device=k.device).repeat_interleave(k)
    depth = torch.arange(len(owner), device=k.device) - chains.cu_draft[owner]
    return uniform(chains.seeds[owner], chains.positions[owner] + depth, Purpose.ACCEPT)


def _walk_greedy(chain: _Chain) -> list[int]:
    """Accept while the draft token is the target's argmax; both distributions are one-hot, so the overlap is 0 or 1."""
    emitted = []
    for j, draft in enumerate([*chain.draft_token_ids, None]):
        token = _argmax(chain.target_logits[j].float())
        emitted.append(token)
        if draft is None:
            break
        chain.overlap[j] = float(token == draft)
        if token != draft:
            break
    return emitted


def _walk_coupled(chain: _Chain) -> list[int]:
    """Accept while the draft token is the target's own sample under the noise of (seed, position).

    What is emitted is that sample in every case, so the text depends neither on the drafter nor on K.
    """
    emitted = []
    for j, draft in enumerate([*chain.draft_token_ids, None]):
        token = _argmax(chain.target_scores(j) + chain.noise(j, Purpose.COUPLED))
        emitted.append(token)
        if draft is None:
            break
        chain.overlap[j] = _overlap(chain.target_probs(j), chain.draft_probs(j), draft)
        if token != draft:
            break
    return emitted


def _walk_rejection(chain: _Chain) -> list[int]:
    """Accept x with min(1, target_probs[x] / draft_probs[x]), resample the residual at the first rejection.

    Leviathan et al. 2023, algorithm 1: the emitted tokens have the target's distribution whatever the drafter's is.
    """
    emitted: list[int] = []
    for j, draft in enumerate(chain.draft_token_ids):
        target_probs, draft_probs = chain.target_probs(j), chain.draft_probs(j)
        chain.overlap[j] = _overlap(target_probs, draft_probs, draft)
        if not _accepts(target_probs, draft_probs, draft, chain.uniforms[j]):
            emitted.append(_recovered(chain, j, scale=1.0))
            return emitted
        emitted.append(draft)
    return [*emitted, _bonus(chain)]


def _walk_block(chain: _Chain) -> list[int]:
    """Keep the longest prefix that passes its own test; the tests are of whole prefixes, so that a weak token may stand
    for the sake of strong ones around it.

    Sun et al. 2025 (Block Verification), algorithm 2: again the target's distribution whatever the drafter's is.
    """
    draft_ids, k = chain.draft_token_ids, len(chain.draft_token_ids)
    target_rows, draft_rows = [chain.target_probs(j) for j in range(k)], [chain.draft_probs(j) for j in range(k)]
    kept, scales = 0, [1.0]
    for i, (draft, u) in enumerate(zip(draft_ids, chain.uniforms, strict=True), start=1):
        draft_probs = draft_rows[i - 1]
        draft_prob = 1.0 if draft_probs is None else float(draft_probs[draft])
        scale = _joint_scale(scales[-1], float(target_rows[i - 1][draft]), draft_prob)
        scales.append(scale)
        # The chance is mass / (mass + 1 - scale) before the end of the block, and the scale itself at the end.
        mass = float(_residual(target_rows[i], draft_rows[i], draft_ids[i], scale).sum()) if i < k else scale
        if u * (mass + (1.0 - scale)) < mass:
            kept = i
    for j in range(min(kept + 1, k)):
        chain.overlap[j] = _overlap(target_rows[j], draft_rows[j], draft_ids[j], scales[j])
    last = _bonus(chain) if kept == k else _recovered(chain, kept, scales[kept])
    return [*draft_ids[:kept], last]


def _joint_scale(scale: float, target_prob: float, draft_prob: float) -> float:
    """p_i = min(p_(i-1) * target_prob / draft_prob, 1): how far the target stands behind the prefix as a whole."""
    if scale == 0.0 or target_prob == 0.0:  # nothing behind a token that the target masks
        return 0.0
    return 1.0 if scale * target_prob >= draft_prob else scale * target_prob / draft_prob


def _recovered(chain: _Chain, j: int, scale: float) -> int:
    """Sample what the target has above the draft at position j."""
    target_probs, draft = chain.target_probs(j), chain.draft_token_ids[j]
    residual = _residual(target_probs, chain.draft_probs(j), draft, scale)
    # By rounding alone: a rejection that was next to impossible leaves nothing above the draft's probability.
    weights = residual if bool((residual > 0).any()) else target_probs
    return _argmax(weights.log() + chain.noise(j, Purpose.RESAMPLE))


def _bonus(chain: _Chain) -> int:
    k = len(chain.draft_token_ids)
    return _argmax(chain.target_scores(k) + chain.noise(k, Purpose.RESAMPLE))


def _accepts(target_probs: torch.Tensor, draft_probs: torch.Tensor | None, draft: int, u: float) -> bool:
    """Strict, so that a token that the target gives no probability never passes."""
    draft_prob = 1.0 if draft_probs is None else float(draft_probs[draft])
    return u * draft_prob < float(target_probs[draft])


def _residual(
    target_probs: torch.Tensor, draft_probs: torch.Tensor | None, draft: int, scale: float = 1.0
) -> torch.Tensor:
    """max(scale * target_probs - draft_probs, 0), not normalised: an argmax under Gumbel noise does not need it."""
    if draft_probs is None:
        return (scale * target_probs).index_fill(0, torch.tensor([draft], device=target_probs.device), 0.0)
    return (scale * target_probs - draft_probs).clamp(min=0.0)


def _overlap(
    target_probs: torch.Tensor, draft_probs: torch.Tensor | None, draft: int, scale: float = 1.0
) -> torch.Tensor:
    """sum_x min(target_probs, draft_probs / scale): its mean over the positions that are examined is the share kept.

    scale: block verification's joint scale before the position. It is over 0 wherever a position is examined.
    """
    if draft_probs is None:
        return target_probs[draft]
    return torch.minimum(target_probs, draft_probs / scale).sum().clamp(max=1.0)


def _argmax(scores: torch.Tensor) -> int:
    """The lowest of the best tokens. numpy's is ten times as fast as torch's on a CPU, and a vocabulary is long."""
    return int(scores.cpu().numpy().argmax())
