"""A small causal model drafts for the target, from its own KV slots.

The draft model may have missed tokens: those committed while K was 0, the target's own extra token, or those of a
sequence that it has never seen. Before it proposes, it computes whatever differs between what it was fed and what the
sequence now says, so its KV never has a hole.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch

from workers.compiled.compilable import Compilable
from workers.kv_cache import KVSlots
from workers.late_tokens import LateTokens
from workers.model_runner import ModelRunner
from workers.proposers.base import NoFeatures, Proposal
from workers.proposers.growth import Growth, branch_all, growths_of, proposal_of
from workers.sequence import Sequence
from workers.step_layout import Rows
from workers.token_tree import TokenTree

CATCH_UP_CHUNK = 128


class VocabularyMismatch(ValueError):
    """The draft model's token ids do not mean what the target's mean."""


def check_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Raise VocabularyMismatch naming the first id that does not mean the same token to both.

    Embedding tables are padded beyond the tokenizer, so their sizes may differ while the tokens are the same.
    """
    target, draft = ({i: t for t, i in tok.get_vocab().items()} for tok in (target_tokenizer, draft_tokenizer))
    for token_id in range(max(max(target), max(draft)) + 1):
        if target.get(token_id) != draft.get(token_id):
            raise VocabularyMismatch(
                f"the draft model's vocabulary differs from the target's at id {token_id}: "
                f"{draft.get(token_id)!r} against {target.get(token_id)!r}; use a drafter with the same tokenizer"
            )


@dataclass(slots=True)
class _DraftState:
    """A sequence's slot in the draft model, and the tokens whose KV it holds: `confirmed` of them for good.

    late: those fed as stand-ins, which begin at fed[late_from].
    """

    slot: int
    fed: list[int] = field(default_factory=list)
    confirmed: int = 0
    late: LateTokens | None = None
    late_from: int = 0

    def keep_common(self, token_ids: Seq[int]) -> None:
        """Forget what was fed but not committed: from the first rejected draft on, whatever lies behind it."""
        if self.late is not None:
            # The verifier has read them meanwhile.
            drafted = [self.late.read()[number] for number in self.late.places]
            self.fed[self.late_from :] = drafted[: len(self.fed) - self.late_from]
            self.late = None
        n, end = self.confirmed, min(len(self.fed), len(token_ids) - 1)
        while n < end and self.fed[n] == token_ids[n]:
            n += 1
        del self.fed[n:]
        self.confirmed = n


class DraftModelProposer(NoFeatures):
    """Drafts autoregressively, one forward per position for the whole batch; needs as many slots as the engine has.

    version: which weights these are, such as the start of their hash. vocabulary: [rows of its LM head] int64, the
    ascending ids of the target that they stand for; None where a row is the token of its number.
    """

    is_deterministic = False

    def __init__(
        self,
        runner: ModelRunner,
        target_vocab_size: int,
        name: str = "draft_model",
        version: str = "unknown",
        vocabulary: torch.Tensor | None = None,
    ) -> None:
        self.name, self.version = name, version
        self._runner = runner
        self._slots = KVSlots(runner.num_slots, runner.context)
        self._target_vocab = target_vocab_size
        self._vocabulary = None if vocabulary is None else vocabulary.to(runner.device)
        self._states: dict[str, _DraftState] = {}

    @property
    def compilables(self) -> tuple[Compilable, ...]:
        return self._runner.compilables

    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal:
        device = self._runner.device
        growths, positions = growths_of(batch, k, (), lambda sequence: True, device=device), [0] * len(batch)
        for depth in range(max((len(growth.tokens) for growth in growths), default=0)):
            active = [b for b, growth in enumerate(growths) if len(growth.tokens) > depth]
            if depth == 0:
                for b in active:
                    positions[b] += self._catch_up(batch[b])
            rows: list[Rows] = []
            late: list[tuple[int, torch.Tensor]] = []
            for b in active:
                state, growth = self._states[batch[b].request.request_id], growths[b]
                if depth and growth.is_late:
                    late.append((len(rows), growth.drawn[-1].clamp(max=self._runner.vocab_size - 1)))
                last = growth.tokens[depth - 1] if depth else batch[b].token_ids[-1]
                at = len(batch[b].token_ids) - 1 + depth
                rows.append(Rows(self._slots.blocks(state.slot), at, self._embeddable([last])))
                state.fed.append(last)
                positions[b] += 1
            forward = self._runner.forward(rows, range(len(rows)), late=LateTokens.of(late))
            logits = self._to_target_vocabulary(forward)
            places = [(growths[b], depth - 1, logits[row : row + 1]) for row, b in enumerate(active)]
            branch_all(places, self._vocabulary, self._target_vocab)
        return self._with_late(proposal_of(growths, positions), growths)

    def _with_late(self, proposal: Proposal, growths: Seq[Growth]) -> Proposal:
        """Each slot that was fed with tokens that were not read knows them when somebody has."""
        if proposal.late is None:
            return proposal
        first = 0
        for growth in growths:
            if growth.drawn:
                state = self._states[growth.sequence.request.request_id]
                state.late = proposal.late.at(range(first, first + len(growth.drawn)))
                state.late_from = len(growth.sequence.token_ids)
                first += len(growth.drawn)
        return proposal

    def prime(self, batch: Seq[Sequence]) -> None:
        for sequence in batch:
            # What the slot holds is another text's, which no forward's cost depends on.
            token_ids = sequence.token_ids[:-1]
            state = _DraftState(self._slots.allocate(), list(token_ids), len(token_ids))
            self._states[sequence.request.request_id] = state

    def release(self, sequence: Sequence) -> None:
        state = self._states.pop(sequence.request.request_id, None)
        if state is not None:
            self._slots.free(state.slot)

    def _catch_up(self, sequence: Sequence) -> int:
        """Compute all but the last token of the sequence that the slot does not hold; returns how many."""
        request_id = sequence.request.request_id
        if request_id not in self._states:
            self._states[request_id] = _DraftState(self._slots.allocate())
        state = self._states[request_id]
        state.keep_common(sequence.token_ids)
        missing = sequence.token_ids[len(state.fed) : -1]
        for i in range(0, len(missing), CATCH_UP_CHUNK):
            chunk = missing[i : i + CATCH_UP_CHUNK]
            self._runner.forward([Rows(self._slots.blocks(state.slot), len(state.fed), self._embeddable(chunk))], [0])
            state.fed += chunk
        return len(missing)

    def _embeddable(self, token_ids: list[int]) -> list[int]:
        """Ids of the target's padding may lie outside the draft model's table; a stand-in only costs acceptance."""
        return [min(token_id, self._runner.vocab_size - 1) for token_id in token_ids]

    def _to_target_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """Cut or pad (with -inf: never proposed) the embedding padding in which the two models differ.

        Logits over a vocabulary of its own stay as they are.
        """
        if self._vocabulary is not None:
            return logits
        missing = self._target_vocab - logits.shape[1]
        if missing <= 0:
            return logits[:, : self._target_vocab]
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
