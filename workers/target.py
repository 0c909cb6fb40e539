"""The model whose distribution must be reproduced: prefill chunks, and one forward over all drafts of a step."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
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
    prefill_positions, prefill_s: size and seconds of the prefill forward. features: outputs [rows, layers, hidden] of
    the layers that the drafter reads, at the decoding sequences' rows; prefill_features: at those of the prefill chunk.
    None where it reads none. prompt_logits: [n, vocab], the rows of the chunk that decide a token of the prompt, where
    the request wants to know how likely that was.
    """

    logits: torch.Tensor
    cu_draft: tuple[int, ...]
    prefill_positions: int
    prefill_s: float
    features: torch.Tensor | None = None
    prefill_features: torch.Tensor | None = None
    prompt_logits: torch.Tensor | None = None


class Target:
    """feature_layers: decoder layers, 1-based, whose outputs the drafter wants."""

    def __init__(self, runner: ModelRunner, feature_layers: tuple[int, ...] = ()) -> None:
        self.runner = runner
        self.feature_layers = feature_layers

    def score(self, batch: Batch, proposal: Proposal) -> Score:
        """Compute the prefill chunk, and every decoding sequence's last token and drafts; advances kv_length."""
        started, prefill_positions = time.perf_counter(), batch.prefill_length
        first, prefill_features, prompt_logits = self._prefill(batch)
        prefill_s = time.perf_counter() - started
        rows = [
            Rows(s.slot, len(s.token_ids) - 1, [s.token_ids[-1], *proposal.tokens(b)])
            for b, s in enumerate(batch.decoding)
        ]
        parts, features = [], None
        if rows:
            logits, features = self._forward(rows, range(sum(len(r.token_ids) for r in rows)))
            parts.append(logits)
        cu_draft = proposal.cu_draft
        if first is not None:
            parts.append(first)
            cu_draft = (*cu_draft, cu_draft[-1])
        logits = torch.cat(parts) if parts else torch.empty(0, self.runner.vocab_size)
        return Score(logits, cu_draft, prefill_positions, prefill_s, features, prefill_features, prompt_logits)

    def _prefill(self, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Run the batch's prompt chunk; the logits [1, vocab] after the prompt when that completes it, features, and
        the logits of the prompt's own tokens where they are asked for.
        """
        sequence = batch.prefill
        if sequence is None:
            return None, None, None
        chunk = sequence.token_ids[sequence.kv_length : batch.prefill_end]
        is_scored = sequence.request.sampling.prompt_logprobs is not None
        keep = range(0 if is_scored else len(chunk) - 1, len(chunk))
        logits, features = self._forward([Rows(sequence.slot, sequence.kv_length, chunk)], keep)
        sequence.prefill_positions += len(chunk)
        sequence.kv_length = batch.prefill_end
        # The row behind the prompt's last token decides none of it.
        prompt_logits = logits[: len(chunk) - batch.completes_prefill] if is_scored else None
        return logits[-1:] if batch.completes_prefill else None, features, prompt_logits

    def _forward(self, rows: list[Rows], keep: Seq[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.feature_layers:
            return self.runner.forward(rows, keep), None
        return self.runner.forward_with_features(rows, keep, self.feature_layers)
