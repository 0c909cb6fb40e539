"""Compare the proposal with the target and decide what each sequence keeps: the one caller of the verify kernel."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import torch

from kernels.launch import Backend
from kernels.verify import verify_chain
from workers.proposers.base import Proposal
from workers.sampling import restrict_batch
from workers.sequence import Sequence
from workers.target import Score


@dataclass(frozen=True, slots=True)
class Accepted:
    """Of one sequence: the draft tokens kept, and the token after them (recovered or bonus)."""

    num_accepted: int
    token_ids: tuple[int, ...]


class Verifier:
    """Lossless for any proposer: greedy, rejection sampling (Leviathan et al. 2023), and coupled by shared noise."""

    def __init__(self, eos_token_ids: Seq[int], backend: Backend = "auto") -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._backend = backend

    def verify(self, sequences: Seq[Sequence], proposal: Proposal, score: Score) -> list[Accepted]:
        """One Accepted per sequence; one transfer from the device for all of them."""
        if not sequences:
            return []
        rows_of = [range(a + b, z + b + 1) for b, (a, z) in enumerate(pairwise(score.cu_draft))]
        logits = restrict_batch(score.logits, sequences, rows_of, self._eos_token_ids)
        device = logits.device
        verdict = verify_chain(
            logits,
            proposal.draft_token_ids.to(device),
            proposal.draft_logits,
            torch.tensor(score.cu_draft, dtype=torch.int32, device=device),
            torch.tensor([s.request.sampling.temperature for s in sequences], dtype=torch.float32, device=device),
            torch.tensor([s.noise_seed for s in sequences], dtype=torch.int64, device=device),
            torch.tensor([len(s.token_ids) for s in sequences], dtype=torch.int64, device=device),
            torch.tensor([s.coupled for s in sequences], dtype=torch.bool, device=device),
            backend=self._backend,
        )
        kept = torch.cat([verdict.num_accepted[:, None].to(torch.int64), verdict.token_ids], dim=1).tolist()
        return [Accepted(n, tuple(token_ids[: n + 1])) for n, *token_ids in kept]
