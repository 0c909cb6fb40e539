"""The model whose distribution must be reproduced: prefill chunks, and one forward over all drafts of a step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from workers.attention import Rows
from workers.model_runner import ModelRunner
from workers.proposers.base import Proposal
from workers.scheduler import Batch


@dataclass(frozen=True, slots=True)
class Score:
    """Target logits of a step's sequences, ragged.

    logits: [sum(k_b + 1), vocab]; row cu_draft[b] + b + j of sequence b decides its token after j draft tokens.
    prefill_positions, prefill_s: size and seconds of the prefill forward.
    """

    logits: torch.Tensor
    cu_draft: tuple[int, ...]
    prefill_positions: int
    prefill_s: float


class Target:
    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner

    def score(self, batch: Batch, proposal: Proposal) -> Score:
        """Compute the prefill chunk, and every decoding sequence's last token and drafts; advances kv_length."""
        started, prefill_positions = time.perf_counter(), batch.prefill_length
        first = self._prefill(batch)
        prefill_s = time.perf_counter() - started
        rows = [
            Rows(s.slot, len(s.token_ids) - 1, [s.token_ids[-1], *proposal.tokens(b)])
            for b, s in enumerate(batch.decoding)
        ]
        parts = [self.runner.forward(rows, range(sum(len(r.token_ids) for r in rows)))] if rows else []
        cu_draft = proposal.cu_draft
        if first is not None:
            parts.append(first)
            cu_draft = (*cu_draft, cu_draft[-1])
        logits = torch.cat(parts) if parts else torch.empty(0, self.runner.vocab_size)
        return Score(logits, cu_draft, prefill_positions, prefill_s)

    def _prefill(self, batch: Batch) -> torch.Tensor | None:
        """Run the batch's prompt chunk; the logits [1, vocab] after the prompt when that completes it."""
        sequence = batch.prefill
        if sequence is None:
            return None
        chunk = sequence.token_ids[sequence.kv_length : batch.prefill_end]
        logits = self.runner.forward([Rows(sequence.slot, sequence.kv_length, chunk)], [len(chunk) - 1])
        sequence.prefill_positions += len(chunk)
        sequence.kv_length = batch.prefill_end
        return logits if batch.completes_prefill else None
