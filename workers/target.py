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
    prefill_s: seconds of the prefill forward. features: outputs [rows, layers, hidden] of
    the layers that the drafter reads, at the decoding sequences' rows; None where it reads none; prefill_features: at
    those of each prefill chunk, empty where it reads none. prompt_logits: of each prefill chunk, [n, vocab], its rows
    that decide a token of the prompt; None where the request does not want to know how likely that was.
    """

    logits: torch.Tensor
    cu_draft: tuple[int, ...]
    prefill_s: float
    features: torch.Tensor | None = None
    prefill_features: tuple[torch.Tensor, ...] = ()
    prompt_logits: tuple[torch.Tensor | None, ...] = ()


class Target:
    """feature_layers: decoder layers, 1-based, whose outputs the drafter wants."""

    def __init__(self, runner: ModelRunner, feature_layers: tuple[int, ...] = ()) -> None:
        self.runner = runner
        self.feature_layers = feature_layers

    def score(self, batch: Batch, proposal: Proposal) -> Score:
        """Compute the prefill chunks, and every decoding sequence's last token and drafts; advances kv_length."""
        started = time.perf_counter()
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
            cu_draft = (*cu_draft, *(cu_draft[-1:] * len(first)))
        logits = torch.cat(parts) if parts else torch.empty(0, self.runner.vocab_size)
        return Score(logits, cu_draft, prefill_s, features, prefill_features, prompt_logits)

    def _prefill(
        self, batch: Batch
    ) -> tuple[torch.Tensor | None, tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]:
        """Run the batch's prompt chunks in one forward; the logits [n, vocab] after each prompt that they complete,
        and of every chunk its features, and the logits of the prompt's own tokens where they are asked for.

        A row's result does not depend on its batch-mates (workers/attention.py), so neither does a prompt's.
        """
        if not batch.prefills:
            return None, (), ()
        rows: list[Rows] = []
        keep: list[int] = []
        kept: list[int] = []  # of each chunk, so many of those in `keep`
        num_rows = 0
        for sequence, end in ((p.sequence, p.end) for p in batch.prefills):
            chunk = sequence.token_ids[sequence.kv_length : end]
            rows.append(Rows(sequence.slot, sequence.kv_length, chunk))
            is_scored = sequence.request.sampling.prompt_logprobs is not None
            keep += range(num_rows if is_scored else num_rows + len(chunk) - 1, num_rows + len(chunk))
            kept.append(len(keep) - sum(kept))
            num_rows += len(chunk)
        logits, features = self._forward(rows, keep)
        for prefill, row in zip(batch.prefills, rows, strict=True):
            prefill.sequence.prefill_positions += len(row.token_ids)
            prefill.sequence.kv_length = prefill.end
        firsts, prompt_logits = [], []
        for prefill, part in zip(batch.prefills, logits.split(kept), strict=True):
            is_scored = prefill.sequence.request.sampling.prompt_logprobs is not None
            # The row behind the prompt's last token decides none of it.
            prompt_logits.append(part[: len(part) - prefill.completes] if is_scored else None)
            if prefill.completes:
                firsts.append(part[-1:])
        lengths = [len(row.token_ids) for row in rows]
        parts = () if features is None else tuple(features.split(lengths))
        return torch.cat(firsts) if firsts else None, parts, tuple(prompt_logits)

    def _forward(self, rows: list[Rows], keep: Seq[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.feature_layers:
            return self.runner.forward(rows, keep), None
        return self.runner.forward_with_features(rows, keep, self.feature_layers)
