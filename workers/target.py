"""The model whose distribution must be reproduced: prefill chunks, and one forward over all drafts of a step."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import torch

from kernels.kv_commit import kv_commit
from workers.late_tokens import LateTokens
from workers.model_runner import ModelRunner
from workers.proposers.base import Proposal
from workers.scheduler import Batch, Prefill
from workers.sequence import Sequence
from workers.step_layout import Rows
from workers.token_tree import TokenTree
from workers.upload import index, upload


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
    """feature_layers: decoder layers, 1-based, whose outputs the drafter wants; `keep_features` keeps them with KV."""

    def __init__(self, runner: ModelRunner, feature_layers: tuple[int, ...] = ()) -> None:
        self.runner = runner
        self.feature_layers = feature_layers

    def keep_features(self) -> None:
        """Keep the features of a position with its KV, for whoever finds that in the prefix cache."""
        if self.feature_layers:
            self.runner.kv.keep_features(len(self.feature_layers), self.runner.config.hidden_size)

    def keep_paths(self, sequences: Seq[Sequence], paths: Seq[Seq[int] | None]) -> None:
        """Move the KV of the accepted nodes to where a chain's would be, before anything is committed.

        paths: of each sequence, its nodes from the root on; None for a chain's.
        """
        moved = [
            (s, path)
            for s, path in zip(sequences, paths, strict=True)
            if path is not None and tuple(path) != tuple(range(len(path)))
        ]
        if not moved:
            return
        width, depth = max(len(s.blocks) for s, _ in moved), max(len(path) for _, path in moved)
        tables = [
            _padded([s.blocks for s, _ in moved], width),
            torch.tensor([len(s.token_ids) - 1 for s, _ in moved]),
            _padded([path for _, path in moved], depth),
            torch.tensor([len(path) for _, path in moved], dtype=torch.int32),
        ]
        kv_commit(self.runner.kv.keys, self.runner.kv.values, *upload(tables, self.runner.device))

    def score(self, batch: Batch, proposal: Proposal) -> Score:
        """Compute the prefill chunks, and every decoding sequence's last token and drafts; advances kv_length."""
        started = time.perf_counter()
        # Replays by themselves: in a forward of the size that decoding has.
        prompts, replays = (
            self._prefill([p for p in batch.prefills if p.is_replay == is_replay]) for is_replay in (False, True)
        )
        first = prompts[0]
        prefill_features, prompt_logits = prompts[1] + replays[1], prompts[2] + replays[2]
        prefill_s = time.perf_counter() - started
        rows = [
            Rows(s.blocks, len(s.token_ids) - 1, [s.token_ids[-1], *proposal.stand_ins(b)], _parents(proposal.tree(b)))
            for b, s in enumerate(batch.decoding)
        ]
        parts, features = [], None
        if rows:
            keep = range(sum(len(r.token_ids) for r in rows))
            logits, features = self._forward(rows, keep, batch.decoding, _by_row(proposal))
            parts.append(logits)
        cu_draft = proposal.cu_draft
        if first is not None:
            parts.append(first)
            cu_draft = (*cu_draft, *(cu_draft[-1:] * len(first)))
        logits = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else torch.empty(0, self.runner.vocab_size)
        return Score(logits, cu_draft, prefill_s, features, prefill_features, prompt_logits)

    def _prefill(
        self, prefills: Seq[Prefill]
    ) -> tuple[torch.Tensor | None, tuple[torch.Tensor, ...], tuple[torch.Tensor | None, ...]]:
        """Run the chunks in one forward; the logits [n, vocab] after each prompt that they complete, and of every
        chunk its features, and the logits of the prompt's own tokens where they are asked for.

        A row's result does not depend on its batch-mates (workers/attention.py), so neither does a prompt's.
        """
        if not prefills:
            return None, (), ()
        rows: list[Rows] = []
        keep: list[int] = []
        kept: list[int] = []  # of each chunk, so many of those in `keep`
        num_rows = 0
        for prefill in prefills:
            sequence = prefill.sequence
            chunk = sequence.token_ids[sequence.kv_length : prefill.end]
            rows.append(Rows(sequence.blocks, sequence.kv_length, chunk))
            keep += range(num_rows if _is_scored(prefill) else num_rows + len(chunk) - 1, num_rows + len(chunk))
            kept.append(len(keep) - sum(kept))
            num_rows += len(chunk)
        logits, features = self._forward(rows, keep, [p.sequence for p in prefills])
        for prefill, row in zip(prefills, rows, strict=True):
            prefill.sequence.prefill_positions += len(row.token_ids)
            prefill.sequence.kv_length = prefill.end
        firsts, prompt_logits = [], []
        for prefill, part in zip(prefills, logits.split(kept), strict=True):
            # The row behind the prompt's last token decides none of it.
            ends = prefill.end == prefill.sequence.prompt_length
            prompt_logits.append(part[: len(part) - ends] if _is_scored(prefill) else None)
            if prefill.completes:
                firsts.append(part[-1:])
        lengths = [len(row.token_ids) for row in rows]
        parts = () if features is None else tuple(features.split(lengths))
        return torch.cat(firsts) if firsts else None, parts, tuple(prompt_logits)

    def _forward(
        self, rows: Seq[Rows], keep: Seq[int], of: Seq[Sequence], late: LateTokens | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [len(keep), vocab] and features of rows, each a part of its sequence in `of`.

        Where the model was compiled while texts were under way, those go on eagerly to their ends: two forwards. That
        is on a CPU, where no token is late.
        """
        eager = [sequence.is_eager for sequence in of]
        if all(eager) or not any(eager):
            return self._run(rows, keep, all(eager), late)
        flat = [is_eager for r, is_eager in zip(rows, eager, strict=True) for _ in r.token_ids]
        logits, features = [], []
        order, rows_of = [], []
        for group in (False, True):
            own = [i for i, is_eager in enumerate(flat) if is_eager == group]
            place = {row: i for i, row in enumerate(own)}
            kept = [i for i, row in enumerate(keep) if row in place]
            some = [r for r, is_eager in zip(rows, eager, strict=True) if is_eager == group]
            part, read = self._run(some, [place[keep[i]] for i in kept], group)
            logits.append(part)
            order += kept
            rows_of += own
            features.append(read)
        read_by_row = None if features[0] is None or features[1] is None else _back(features, rows_of)
        return _back(logits, order), read_by_row

    def _run(
        self, rows: Seq[Rows], keep: Seq[int], eager: bool, late: LateTokens | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.feature_layers:
            return self.runner.forward(rows, keep, eager, late), None
        return self.runner.forward_with_features(rows, keep, self.feature_layers, eager, late)


def _padded(rows: Seq[Seq[int]], width: int) -> torch.Tensor:
    """[len(rows), width] int32, filled up with -1."""
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int32)


def _by_row(proposal: Proposal) -> LateTokens | None:
    """Its late tokens by the rows of a step: a sequence's drafts stand behind the row of its last token."""
    if proposal.late is None:
        return None
    owners = [b for b, (a, z) in enumerate(pairwise(proposal.cu_draft)) for _ in range(a, z)]
    return proposal.late.at([place + owners[place] + 1 for place in proposal.late.places])


def _parents(tree: TokenTree | None) -> list[int] | None:
    """By row: the last token's is the root's, a node's the next after its number."""
    return None if tree is None else [-1, *(parent + 1 for parent in tree.parents)]


def _is_scored(prefill: Prefill) -> bool:
    """Whether the request wants to know how likely the tokens of its prompt were, and may be told by this chunk."""
    return prefill.sequence.request.sampling.prompt_logprobs is not None and not prefill.is_replay


def _back(parts: Seq[torch.Tensor | None], order: Seq[int]) -> torch.Tensor:
    """The parts' rows, one behind the other, each at its place in `order`."""
    joined = torch.cat([part for part in parts if part is not None])
    out = torch.empty_like(joined)
    out[index(order, out.device)] = joined
    return out
