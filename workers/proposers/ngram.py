"""Prompt lookup: propose what followed the last occurrence of the present suffix, in prompt and output.

The index grows with the sequence: for each length n from MAX_MATCH down to MIN_MATCH it remembers where each n-gram
last ended, so a proposal costs a few dictionary look-ups however long the text is.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from workers.proposers.base import NoFeatures, Proposal
from workers.sequence import Sequence

MAX_MATCH = 4
MIN_MATCH = 2


class NGramIndex:
    """Where the n-grams of one growing token list last ended, and what ended there before."""

    def __init__(self, min_match: int = MIN_MATCH, max_match: int = MAX_MATCH) -> None:
        self._lengths = range(max_match, min_match - 1, -1)
        self._last_end: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def continuation(self, token_ids: list[int], k: int) -> list[int]:
        """Up to k tokens that followed the longest earlier match of the suffix; empty where there is none."""
        end = len(token_ids)
        # The suffix itself is indexed only after the look-up: it must match an earlier place.
        for stop in range(self._indexed + 1, end):
            for n in self._lengths:
                if stop >= n:
                    self._last_end[tuple(token_ids[stop - n : stop])] = stop
        self._indexed = max(self._indexed, end - 1)
        for n in self._lengths:
            if end > n:
                found = self._last_end.get(tuple(token_ids[end - n :]))
                if found is not None:
                    return self._copy_on(token_ids, found, k)
        return []

    @staticmethod
    def _copy_on(token_ids: list[int], start: int, k: int) -> list[int]:
        """K tokens from `start` on; past the end the match goes on in what was just copied (a loop of its period)."""
        period = len(token_ids) - start
        return [token_ids[start + i % period] for i in range(k)]


class NGramProposer(NoFeatures):
    name = "ngram"
    version = "1"
    is_deterministic = True

    def __init__(self, min_match: int = MIN_MATCH, max_match: int = MAX_MATCH) -> None:
        self._lengths = (min_match, max_match)
        self._index: dict[str, NGramIndex] = {}

    def propose(self, batch: Seq[Sequence], k: Seq[int]) -> Proposal:
        return Proposal.of([self._draft(s, n) for s, n in zip(batch, k, strict=True)])

    def _draft(self, sequence: Sequence, k: int) -> list[int]:
        # A paused sequence (K = 0) is caught up here later: the index reads whatever it has not seen yet.
        if k == 0:
            return []
        index = self._index.setdefault(sequence.request.request_id, NGramIndex(*self._lengths))
        return index.continuation(sequence.token_ids, k)

    def prime(self, batch: Seq[Sequence]) -> None:
        self.propose(batch, [1] * len(batch))

    def release(self, sequence: Sequence) -> None:
        self._index.pop(sequence.request.request_id, None)
