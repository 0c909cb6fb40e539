"""What a proposer is: anything that guesses the next tokens of each sequence, cheaply."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from workers.compiled.compilable import Compilable
from workers.late_tokens import LateTokens
from workers.sequence import Sequence
from workers.token_tree import TokenTree, Trees

NO_TREES: Mapping[int, TokenTree] = {}


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens of a batch, ragged: sequence b owns draft_token_ids[cu_draft[b] : cu_draft[b + 1]].

    draft_token_ids: [num_draft] int64. cu_draft: len(batch) + 1 prefix sums. draft_logits: [num_draft, vocab], the
    logits each draft token was sampled from (before temperature), or None where the draft is deterministic.
    positions: draft-model positions computed per sequence. predicted: how many of a sequence's draft tokens, the first
    ones, were copied from its request's own prediction; empty for none of any. trees: of each sequence, how its draft
    tokens hang together; None for a chain, empty for chains throughout. late: the draft tokens that only the device
    knows, for which there are stand-ins in draft_token_ids.
    """

    draft_token_ids: torch.Tensor
    cu_draft: tuple[int, ...]
    draft_logits: torch.Tensor | None = None
    positions: tuple[int, ...] = ()
    predicted: tuple[int, ...] = ()
    trees: tuple[TokenTree | None, ...] = ()
    late: LateTokens | None = None

    @classmethod
    def of(cls, drafts: Seq[Seq[int]]) -> Proposal:
        """A deterministic proposal: one list of draft tokens per sequence."""
        cu = [0]
        for d in drafts:
            cu.append(cu[-1] + len(d))
        flat = torch.tensor([t for d in drafts for t in d], dtype=torch.int64)
        return cls(flat, tuple(cu), positions=(0,) * len(drafts))

    @classmethod
    def drawn(cls, drafts: Seq[Seq[int]], logits: Seq[torch.Tensor], positions: Seq[int]) -> Proposal:
        """As `of`, by a drafter that has a distribution: logits of each draft token [1, vocab], in their order."""
        draft_logits = torch.cat(list(logits)) if logits else None
        return replace(cls.of(drafts), draft_logits=draft_logits, positions=tuple(positions))

    def k(self, b: int) -> int:
        return self.cu_draft[b + 1] - self.cu_draft[b]

    def tree(self, b: int) -> TokenTree | None:
        """None for a chain, and for a sequence that had no part in drafting."""
        return self.trees[b] if b < len(self.trees) else None

    def tokens(self, b: int) -> list[int]:
        """Of sequence b, late ones read."""
        drafted = self.stand_ins(b)
        if self.late is not None:
            for place, value in zip(self.late.places, self.late.read(), strict=True):
                if self.cu_draft[b] <= place < self.cu_draft[b + 1]:
                    drafted[place - self.cu_draft[b]] = value
        return drafted

    def stand_ins(self, b: int) -> list[int]:
        """As `tokens`, without a look at those that are late."""
        drafted: list[int] = self.draft_token_ids[self.cu_draft[b] : self.cu_draft[b + 1]].tolist()
        return drafted


class Proposer(Protocol):
    """`propose(batch, k)` drafts at most k[b] tokens for batch[b]; `release` forgets a finished sequence.

    trees: which it can draft, by number of nodes. It drafts such a one, not a chain, for a sequence for which
    `propose` is given it, or a chain where another source speaks.

    name, version: who drafts; another version drafts otherwise. is_deterministic: whether a draft is a function of the
    text alone, so that it comes without draft logits. `prime(batch)` takes the text of sequences as seen, whether or
    not it was computed: the next proposal costs what one costs amid a sequence. It is for measuring only.

    feature_layers: decoder layers of the target, 1-based, whose outputs it reads. It is then told by `learn` of every
    computed position that stays, whatever K is: features [n, layers, hidden] of a sequence's positions from start on.
    compilables: what of it can be compiled.
    """

    name: str
    version: str
    is_deterministic: bool
    feature_layers: tuple[int, ...]
    trees: Trees

    @property
    def compilables(self) -> tuple[Compilable, ...]: ...

    def learn(self, sequence: Sequence, start: int, features: torch.Tensor) -> None: ...

    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal: ...

    def prime(self, batch: Seq[Sequence]) -> None: ...

    def release(self, sequence: Sequence) -> None: ...


class NoFeatures:
    """What a proposer has that reads nothing of the target but its text, and drafts chains."""

    feature_layers: tuple[int, ...] = ()
    trees: Trees = NO_TREES

    @property
    def compilables(self) -> tuple[Compilable, ...]:
        return ()

    def learn(self, sequence: Sequence, start: int, features: torch.Tensor) -> None:
        pass


def drafter_label(proposer: Proposer) -> str:
    """name@version: what windows, records and metrics call the drafter, so that a swap is visible."""
    return f"{proposer.name}@{proposer.version}"
