"""Where the output stands in the text that the client predicted: followed by tokens, found again after a change."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence as Seq

RESYNC = 2
"""Tokens of the output that must be in the prediction as they are, before it is followed again."""
PLACES_LOOKED_AT = 32
"""Of those where these tokens are, from the last place followed on, to find the one that more tokens agree with."""
LONGEST_AGREEMENT = 16


class Prediction:
    """Follows one output through its prediction. O(1) a token while they agree, a bounded search where they do not."""

    def __init__(self, token_ids: Seq[int]) -> None:
        self._tokens = token_ids
        self._at = self._seen = 0
        self._follows = True
        self._ends: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for end in range(RESYNC, len(token_ids) + 1):
            self._ends[tuple(token_ids[end - RESYNC : end])].append(end)

    def read(self, token_ids: Seq[int], prompt_length: int) -> None:
        """Take what was not seen yet of the output, which is behind the prompt in `token_ids`."""
        for n in range(prompt_length + self._seen, len(token_ids)):
            if self._follows and self._at < len(self._tokens) and self._tokens[self._at] == token_ids[n]:
                self._at += 1
            else:
                self._find(token_ids, n + 1)
        self._seen = len(token_ids) - prompt_length

    def continuation(self, k: int) -> list[int]:
        """Up to k tokens that come next if the prediction holds; empty while it is not followed, and behind its end."""
        return list(self._tokens[self._at : self._at + k]) if self._follows else []

    def _find(self, token_ids: Seq[int], length: int) -> None:
        """Where the last of token_ids[:length] are in the prediction; of places that agree as well, the next one."""
        places = self._ends.get(tuple(token_ids[length - RESYNC : length]), [])
        self._follows = bool(places)
        if not places:
            return
        # Edits go forward, so that a place behind counts only where there is none ahead.
        ahead = bisect_left(places, self._at)
        looked_at = places[ahead : ahead + PLACES_LOOKED_AT] or places[:PLACES_LOOKED_AT]
        self._at = max(looked_at, key=lambda end: self._agreement(token_ids, length, end))

    def _agreement(self, token_ids: Seq[int], length: int, end: int) -> int:
        n = RESYNC
        most = min(length, end, LONGEST_AGREEMENT)
        while n < most and token_ids[length - n - 1] == self._tokens[end - n - 1]:
            n += 1
        return n
