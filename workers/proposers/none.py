"""The proposer that never proposes: plain decoding by the same path."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from workers.proposers.base import NoFeatures, Proposal
from workers.sequence import Sequence
from workers.token_tree import TokenTree


class NoProposer(NoFeatures):
    name = "none"
    version = "1"
    is_deterministic = True

    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal:
        return Proposal.of([()] * len(batch))

    def prime(self, batch: Seq[Sequence]) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass
