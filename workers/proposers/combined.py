"""Two proposers as one: the n-gram index drafts first, and another drafter the sequences where that is silent.

A long match in the text costs nothing to follow and mostly holds; a trained drafter has a guess for every text. While
the index speaks, the other drafter is asked for K = 0, by which it can be paused at any time: it is told of all the
features meanwhile, and before it drafts again it computes what was committed without it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from workers.compiled.compilable import Compilable
from workers.proposers.base import Proposal, Proposer
from workers.proposers.ngram import NGramProposer
from workers.sequence import Sequence
from workers.token_tree import TokenTree, Trees
from workers.upload import upload

MIN_MATCH = 3
"""Tokens that must match before the index speaks in place of a drafter; alone it has nothing to lose by fewer."""


class NGramFirstProposer:
    """min_match: shortest match that the n-gram index goes by. name and version tell of both."""

    is_deterministic = False

    def __init__(self, second: Proposer, min_match: int = MIN_MATCH) -> None:
        self._ngram, self._second = NGramProposer(min_match), second
        self.name = f"{self._ngram.name}+{second.name}"
        self.version = f"{self._ngram.version}.{min_match}+{second.version}"
        self.feature_layers = second.feature_layers
        self._primed: set[str] = set()
        self.trees: Trees = second.trees

    @property
    def compilables(self) -> tuple[Compilable, ...]:
        return self._second.compilables

    def learn(self, sequence: Sequence, start: int, features: torch.Tensor) -> None:
        self._second.learn(sequence, start, features)

    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal:
        looked_up = [0 if s.request.request_id in self._primed else n for s, n in zip(batch, k, strict=True)]
        found = self._ngram.propose(batch, looked_up)
        left = [0 if found.k(b) else n for b, n in enumerate(k)]
        # Where the index speaks for all, a step is as cheap as with the index alone.
        return _merged(found, self._second.propose(batch, left, trees)) if any(left) else found

    def prime(self, batch: Seq[Sequence]) -> None:
        """Measured is the drafter that costs something, whatever the index would find in a made-up text."""
        self._primed |= {sequence.request.request_id for sequence in batch}
        self._second.prime(batch)

    def release(self, sequence: Sequence) -> None:
        self._primed.discard(sequence.request.request_id)
        self._ngram.release(sequence)
        self._second.release(sequence)


def _merged(found: Proposal, drawn: Proposal) -> Proposal:
    """One proposal of two, of which at most one drafts for each sequence; `found` is deterministic."""
    tokens = [found.tokens(b) or drawn.stand_ins(b) for b in range(len(found.cu_draft) - 1)]
    trees = tuple(None if found.k(b) else tree for b, tree in enumerate(drawn.trees))
    merged = replace(Proposal.of(tokens), positions=drawn.positions, predicted=found.predicted, trees=trees)
    if drawn.late is not None:
        moved = [place for b in range(len(tokens)) if not found.k(b) for place in _range_of(merged, b)]
        merged = replace(merged, late=drawn.late.at([moved[place] for place in drawn.late.places]))
    logits = drawn.draft_logits
    if logits is None or not len(found.draft_token_ids):
        return replace(merged, draft_logits=logits)
    # The exact distribution of what was found: all on one token, whatever the temperature.
    rows = logits.new_full((len(merged.draft_token_ids), logits.shape[1]), -torch.inf)
    is_drawn = torch.tensor([found.k(b) == 0 for b, own in enumerate(tokens) for _ in own])
    tables = [is_drawn.nonzero()[:, 0], (~is_drawn).nonzero()[:, 0], found.draft_token_ids]
    drawn_rows, certain, certain_ids = upload(tables, logits.device)
    rows[drawn_rows] = logits
    rows[certain, certain_ids] = 0.0
    return replace(merged, draft_logits=rows)


def _range_of(proposal: Proposal, b: int) -> range:
    """The draft tokens of sequence b among all."""
    return range(proposal.cu_draft[b], proposal.cu_draft[b + 1])
