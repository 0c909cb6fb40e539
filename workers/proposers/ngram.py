"""Prompt lookup: propose what followed the present suffix where it was last seen, in prediction, prompt and output.

The longest match wins, and of equal ones the most recent. The text that a client predicted comes before them while the
output follows it. Where both are silent, a grammar that leaves no choice says what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from workers.proposers.base import NoFeatures, Proposal
from workers.proposers.prediction import Prediction
from workers.proposers.suffix_automaton import SuffixAutomaton
from workers.sequence import Sequence
from workers.token_tree import TokenTree

MIN_MATCH = 2


class NGramIndex:
    """Where suffixes of one growing token list were seen before."""

    def __init__(self, min_match: int = MIN_MATCH) -> None:
        self._min_match = min_match
        self._automaton = SuffixAutomaton()

    def continuation(self, token_ids: list[int], k: int) -> list[int]:
        """Up to k tokens that followed the longest earlier match of the suffix; empty where there is none."""
        automaton = self._automaton
        for token in token_ids[automaton.size :]:
            automaton.push(token)
        length, start = automaton.match
        if length < self._min_match:
            return []
        # Past the end the match goes on in what was just copied: a loop of its period.
        period = len(token_ids) - start
        return [token_ids[start + i % period] for i in range(k)]

    @property
    def match_length(self) -> int:
        """Of the longest suffix, of the text as last asked about, that was seen before."""
        return self._automaton.match.length


class _Followed:
    """What is known of one sequence."""

    def __init__(self, sequence: Sequence, min_match: int) -> None:
        self.index = NGramIndex(min_match)
        predicted = sequence.request.prediction
        self._prediction = Prediction(predicted) if predicted else None

    def from_prediction(self, sequence: Sequence, k: int) -> list[int]:
        if self._prediction is None:
            return []
        self._prediction.read(sequence.token_ids, sequence.prompt_length)
        return self._prediction.continuation(k)


class NGramProposer(NoFeatures):
    name = "ngram"
    version = "2"
    is_deterministic = True

    def __init__(self, min_match: int = MIN_MATCH) -> None:
        self._min_match = min_match
        self._known: dict[str, _Followed] = {}

    def propose(self, batch: Seq[Sequence], k: Seq[int], trees: Seq[TokenTree | None] = ()) -> Proposal:
        drafts, predicted = [], []
        for sequence, n in zip(batch, k, strict=True):
            draft, from_prediction = self._draft(sequence, n) if n > 0 else ([], 0)
            drafts.append(draft)
            predicted.append(from_prediction)
        return replace(Proposal.of(drafts), predicted=tuple(predicted))

    def _draft(self, sequence: Sequence, k: int) -> tuple[list[int], int]:
        """The tokens, and how many of them are from the prediction."""
        # A paused sequence (K = 0) is caught up here later: both read whatever they have not seen yet.
        known = self._known.get(sequence.request.request_id)
        if known is None:
            known = self._known[sequence.request.request_id] = _Followed(sequence, self._min_match)
        looked_up = known.index.continuation(sequence.token_ids, k)
        predicted = known.from_prediction(sequence, k)
        draft, grammar = predicted or looked_up, sequence.grammar
        if grammar is not None:
            draft = draft[: grammar.valid(draft)] or grammar.forced(k)
            predicted = predicted[: len(draft)] if draft == predicted[: len(draft)] else []
        return draft, len(predicted)

    def prime(self, batch: Seq[Sequence]) -> None:
        self.propose(batch, [1] * len(batch))

    def release(self, sequence: Sequence) -> None:
        self._known.pop(sequence.request.request_id, None)
