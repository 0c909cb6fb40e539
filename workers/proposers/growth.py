"""A draft as it grows: each node's children are taken from what the drafter says behind it. A chain has one a node."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from workers.proposers.base import Proposal
from workers.proposers.draws import NoiseRows, draft_children, largest, over_target_vocabulary, takes_largest
from workers.sequence import Sequence
from workers.token_tree import TokenTree, chain_of


class Growth:
    """One sequence's draft; `branch` is to be called for parents before children.

    tokens, logits: of each node its token, and what that was drawn from [1, vocab]; None where nobody will ask.
    """

    def __init__(self, sequence: Sequence, tree: TokenTree, noise: NoiseRows) -> None:
        self.sequence, self.tree = sequence, tree
        self.tokens = [0] * len(tree)
        self.logits: list[torch.Tensor | None] = [None] * len(tree)
        self._noise = noise
        self._takes_largest = takes_largest(sequence)

    def branch(self, node: int, logits: torch.Tensor, vocabulary: torch.Tensor | None = None, vocab: int = 0) -> None:
        """Take the children of `node` (ROOT: the first level) from logits [1, n].

        vocabulary: [n] int64, the ascending ids of the target's `vocab` that they are of; None where they are of all.
        """
        children = self.tree.children[node + 1]
        if not children:
            return
        limited = None
        if self._takes_largest:
            # Rows as long as the target's vocabulary would be half of what a small drafter costs.
            tokens = largest(logits, len(children))
            if vocabulary is not None:
                tokens = vocabulary[tokens].tolist()
        else:
            if vocabulary is not None:
                logits = over_target_vocabulary(logits.float(), vocabulary, vocab)
            path = [self.tokens[n] for n in self.tree.path(node)]
            tokens, limited = draft_children(logits, self.sequence, path, len(children), self._noise)
        for child, token in zip(children, tokens, strict=True):
            self.tokens[child], self.logits[child] = token, limited


def growths_of(
    batch: Seq[Sequence],
    k: Seq[int],
    trees: Seq[TokenTree | None],
    is_ready: Callable[[Sequence], bool],
    deepest: int | None = None,
) -> list[Growth]:
    """A draft that is to grow for each sequence: of its tree where it has one, else a chain of k.

    deepest: tokens of a chain at most. A sequence that is not ready has none.
    """
    noise, growths = NoiseRows(), []
    for b, (sequence, n) in enumerate(zip(batch, k, strict=True)):
        length = max(n if deepest is None else min(n, deepest), 0)
        tree = trees[b] if trees and n > 0 else None
        growths.append(Growth(sequence, (tree or chain_of(length)) if is_ready(sequence) else chain_of(0), noise))
    return growths


def proposal_of(growths: Seq[Growth], positions: Seq[int]) -> Proposal:
    """What has grown, with what it was drawn from if that is asked of any. positions: computed of each sequence."""
    rows = [row for growth in growths for row in growth.logits]
    known = next((row for row in rows if row is not None), None)
    drawn = [] if known is None else [torch.zeros_like(known) if row is None else row for row in rows]
    proposal = Proposal.drawn([growth.tokens for growth in growths], drawn, positions)
    trees = tuple(None if growth.tree.is_chain else growth.tree for growth in growths)
    return replace(proposal, trees=trees) if any(tree is not None for tree in trees) else proposal
