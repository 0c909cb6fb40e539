"""A suffix automaton over a growing list of tokens (Blumer et al. 1985): where its end has been seen before.

Each state stands for the suffixes that ended at the same places. A token costs O(1) amortised for the automaton, and a
bounded walk of RECENT states for the places, so that work does not grow with the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RECENT = 32
"""Suffixes, from the longest on, that know their last place exactly; shorter ones may know one before it."""


class Match(NamedTuple):
    """length: of the longest suffix that ended earlier as well. end: how many tokens there were then."""

    length: int
    end: int


class SuffixAutomaton:
    """Holds every substring of the tokens that were pushed."""

    def __init__(self, token_ids: Iterable[int] = ()) -> None:
        # By state: tokens to states, the state of its longest suffix of another kind, its length, where it last ended.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]
        self._last = 0
        self._match = Match(0, 0)
        self.size = 0
        for token in token_ids:
            self.push(token)

    @property
    def match(self) -> Match:
        """Of the whole text: the longest suffix that also ended earlier, and where it last did."""
        return self._match

    def push(self, token: int) -> None:
        nexts, links, lengths, ends = self._next, self._link, self._length, self._end
        self.size += 1
        state = len(nexts)
        nexts.append({})
        lengths.append(self.size)
        ends.append(self.size)
        links.append(0)
        p = self._last
        while p >= 0 and token not in nexts[p]:
            nexts[p][token] = state
            p = links[p]
        if p >= 0:
            q = nexts[p][token]
            if lengths[q] == lengths[p] + 1:
                links[state] = q
            else:
                clone = len(nexts)
                nexts.append(nexts[q].copy())
                lengths.append(lengths[p] + 1)
                ends.append(ends[q])
                links.append(links[q])
                while p >= 0 and nexts[p].get(token) == q:
                    nexts[p][token] = clone
                    p = links[p]
                links[q] = links[state] = clone
        self._last = state
        suffix = links[state]
        self._match = Match(lengths[suffix], ends[suffix])
        for _ in range(RECENT):
            if suffix <= 0:
                break
            ends[suffix] = self.size
            suffix = links[suffix]
