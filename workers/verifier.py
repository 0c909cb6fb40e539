"""Compare the proposal with the target and decide what each sequence keeps: the one caller of the verify kernel."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import torch

from kernels.launch import Backend
from kernels.verify import GREEDY_BELOW, Verdict, gumbel_noise, verify_chain
from workers.logprobs import RowsToMeasure
from workers.proposers.base import Proposal
from workers.sampling import restrict_batch
from workers.sequence import Sequence, TokenLogprob
from workers.target import Score


@dataclass(frozen=True, slots=True)
class Accepted:
    """Of one sequence: the draft tokens kept, and the token after them (recovered or bonus).

    acceptance: by examined position (the kept ones and the first rejected), the probability with which it was kept,
    given draft and target distributions; 0 or 1 where only the outcome is known. logprobs: one of each token, where the
    request asks for them.
    """

    num_accepted: int
    token_ids: tuple[int, ...]
    acceptance: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


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
        drafted: list[int] = proposal.draft_token_ids.tolist()
        logits = restrict_batch(score.logits, sequences, rows_of, drafted, self._eos_token_ids)
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
        # Looking at a verdict costs nothing on a host, and a stall on a device: there all rows are measured.
        known = verdict.num_accepted.tolist() if verdict.num_accepted.is_cpu else None
        rows = RowsToMeasure.of([s.request.sampling.logprobs for s in sequences], rows_of, known)
        num_accepted, token_ids, overlap, measured = _to_host(verdict, rows.measure(score.logits, verdict.token_ids))
        has_draft_logits = proposal.draft_logits is not None
        accepted = []
        for b, (start, end) in enumerate(pairwise(score.cu_draft)):
            n = num_accepted[b]
            examined = min(n + 1, end - start)
            # Two distributions coupled by noise agree less often than they overlap: there only the outcome counts.
            if sequences[b].coupled and has_draft_logits:
                acceptance = (*(1.0,) * n, 0.0)[:examined]
            else:
                acceptance = tuple(overlap[start : start + examined])
            emitted = tuple(token_ids[b][: n + 1])
            accepted.append(Accepted(n, emitted, acceptance, rows.read(b, emitted, measured)))
        return accepted


def _to_host(
    verdict: Verdict, measured: torch.Tensor | None
) -> tuple[list[int], list[list[int]], list[float], torch.Tensor | None]:
    """A verdict's num_accepted, token_ids and overlap, and what was measured [n, width] i64, by one transfer."""
    batch, width = verdict.token_ids.shape
    # Packed as integers of one width, bit for bit: each transfer of its own would stall the device once more.
    parts = [verdict.num_accepted.to(torch.int64), verdict.token_ids.flatten(), _bits(verdict.overlap)]
    if measured is not None:
        parts.append(measured.flatten())
    numbers = torch.cat(parts).cpu()
    sizes = [batch, batch * width, len(verdict.overlap)]
    num_accepted, token_ids, overlap, rest = numbers.split([*sizes, len(numbers) - sum(sizes)])
    return (
        num_accepted.tolist(),
        token_ids.view(batch, width).tolist(),
        overlap.view(torch.float64).tolist(),
        None if measured is None else rest.view(measured.shape),
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    """float64 [n] as int64 [n]."""
    return values.to(torch.float64).view(torch.int64)


def target_scores(logits: torch.Tensor, temperature: float, noise_seed: int, position: int) -> torch.Tensor:
    """Scores [n, vocab] float32 whose argmax is the token that the target alone takes, without any draft.

    Greedy (a temperature under GREEDY_BELOW): the logits. Else logits / temperature + the noise row that belongs to the
    seed at the absolute positions `position`, position + 1, ... of the emitted tokens, as the kernel couples them.
    """
    scores = logits.float()
    if temperature < GREEDY_BELOW:
        return scores
    # In float32, as the kernel has it: another rounding could turn a tie.
    inverse = float(1.0 / torch.tensor(temperature, dtype=torch.float32))
    positions = torch.arange(position, position + len(logits), dtype=torch.int64, device=logits.device)
    noise = gumbel_noise(torch.full_like(positions, noise_seed), positions, logits.shape[1])
    return scores * inverse + noise
