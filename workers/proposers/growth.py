"""A draft as it grows: each node's children are taken from what the drafter says behind it. A chain has one a node."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from workers.late_tokens import STAND_IN, LateTokens
from workers.proposers.base import Proposal
from workers.proposers.draws import (
    Draw,
    NoiseRows,
    draw_children,
    largest,
    over_target_vocabulary,
    read_tokens,
    takes_largest,
)
from workers.sampling import looks_back
from workers.sequence import Sequence
from workers.token_tree import TokenTree, chain_of

CPU = torch.device("cpu")


class Growth:
    """One sequence's draft; `branch_all` is to be called for parents before children.

    tokens, logits: of each node its token, and what that was drawn from [1, vocab]; None where nobody will ask.
    is_late: it is a chain whose tokens the host does not read; `drawn` has them then, each [1] int64, and tokens their
    stand-ins.
    """

    def __init__(self, sequence: Sequence, tree: TokenTree, noise: NoiseRows, is_late: bool = False) -> None:
        self.sequence, self.tree, self.is_late = sequence, tree, is_late
        self.tokens = [STAND_IN] * len(tree)
        self.drawn: list[torch.Tensor] = []
        self.logits: list[torch.Tensor | None] = [None] * len(tree)
        self._noise = noise
        self._takes_largest = takes_largest(sequence)

    def draw(self, node: int, logits: torch.Tensor, vocabulary: torch.Tensor | None, vocab: int) -> Draw:
        """The children of `node`, which has some (ROOT: the first level); the rest as `branch_all` has it."""
        count = len(self.tree.children[node + 1])
        if self._takes_largest:
            # Rows as long as the target's vocabulary would be half of what a small drafter costs.
            index = largest(logits, count)
            return Draw(index if vocabulary is None else vocabulary[index], None)
        if vocabulary is not None:
            logits = over_target_vocabulary(logits.float(), vocabulary, vocab)
        path = [self.tokens[n] for n in self.tree.path(node)]
        return draw_children(logits, self.sequence, path, count, self._noise)

    def take(self, node: int, tokens: Seq[int], limited: torch.Tensor | None) -> None:
        """Have the children of `node` as they were drawn."""
        for child, token in zip(self.tree.children[node + 1], tokens, strict=True):
            self.tokens[child], self.logits[child] = token, limited


def branch_all(
    places: Seq[tuple[Growth, int, torch.Tensor]], vocabulary: torch.Tensor | None = None, vocab: int = 0
) -> None:
    """Take the children of a node of each growth from logits [1, n]: one transfer from the device, at most.

    vocabulary: [n] int64, the ascending ids of the target's `vocab` that logits are of; None where they are of all.
    """
    branching = [place for place in places if place[0].tree.children[place[1] + 1]]
    draws = [growth.draw(node, logits, vocabulary, vocab) for growth, node, logits in branching]
    looked_at = [draw for (growth, _, _), draw in zip(branching, draws, strict=True) if not growth.is_late]
    read = iter(read_tokens(looked_at))
    for (growth, node, _), draw in zip(branching, draws, strict=True):
        if growth.is_late:
            growth.drawn.append(draw.tokens)
        growth.take(node, [STAND_IN] if growth.is_late else next(read), draw.limited)


def growths_of(
    batch: Seq[Sequence],
    k: Seq[int],
    trees: Seq[TokenTree | None],
    is_ready: Callable[[Sequence], bool],
    deepest: int | None = None,
    device: torch.device = CPU,
) -> list[Growth]:
    """A draft that is to grow for each sequence: of its tree where it has one, else a chain of k.

    deepest: tokens of a chain at most. A sequence that is not ready has none. device: where they grow; what need not be
    read from there is not.
    """
    noise, growths = NoiseRows(), []
    for b, (sequence, n) in enumerate(zip(batch, k, strict=True)):
        length = max(n if deepest is None else min(n, deepest), 0)
        tree = trees[b] if trees and n > 0 else None
        tree = (tree or chain_of(length)) if is_ready(sequence) else chain_of(0)
        growths.append(Growth(sequence, tree, noise, may_be_late(sequence, device) and tree.is_chain))
    return growths


def may_be_late(sequence: Sequence, device: torch.device) -> bool:
    """Whether its chain can be drawn there without a look at it; on a CPU looking costs nothing."""
    return device.type != "cpu" and not looks_back(sequence)


def proposal_of(growths: Seq[Growth], positions: Seq[int]) -> Proposal:
    """What has grown, with what it was drawn from if that is asked of any. positions: computed of each sequence."""
    rows = [row for growth in growths for row in growth.logits]
    known = next((row for row in rows if row is not None), None)
    drawn = [] if known is None else [torch.zeros_like(known) if row is None else row for row in rows]
    proposal = Proposal.drawn([growth.tokens for growth in growths], drawn, positions)
    late = [
        (proposal.cu_draft[b] + i, token) for b, growth in enumerate(growths) for i, token in enumerate(growth.drawn)
    ]
    trees = tuple(None if growth.tree.is_chain else growth.tree for growth in growths)
    return replace(proposal, late=LateTokens.of(late), trees=trees if any(tree is not None for tree in trees) else ())
