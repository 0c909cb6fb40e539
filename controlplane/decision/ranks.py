"""Acceptance by rank, for token trees: how often a parent's i-th best child is the one that is kept.

P_i is the probability that the child of rank i is accepted, given that the parent was and that the siblings tried
before it were not. The expected tokens of a tree are 1 + the sum over its nodes of the chance that the node is kept
(Sequoia, arXiv 2402.12374, section 3), so a table of them is all a topology is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.decision.estimate import HALF_LIFE
from controlplane.decision.observation import Floats
from controlplane.telemetry import MAX_K, RankCount

MAX_RANK = 16
ROOT = -1
"""The parent of a tree's first nodes."""

_PRIOR_WEIGHT = 4.0
_PRIOR_FIRST, _PRIOR_LATER = 0.5, 0.2
_FADE = 0.5 ** (1.0 / HALF_LIFE)


@dataclass(frozen=True, slots=True, eq=False)
class RankEstimate:
    """Discounted counts [MAX_K, MAX_RANK] f64 by depth of the parent and rank: children tried, and kept.

    A child is tried when its parent is on the accepted path and every sibling of a lower rank was rejected; a sibling
    after the kept one was not tried, and says nothing.
    """

    tried: Floats
    kept: Floats

    @classmethod
    def of_nothing(cls) -> RankEstimate:
        return cls(np.zeros((MAX_K, MAX_RANK)), np.zeros((MAX_K, MAX_RANK)))

    def absorb(self, counts: Iterable[RankCount]) -> RankEstimate:
        """With newer counts added and the older ones of the same place faded by as many. Deeper or wider ones are left
        out."""  # noqa: D209
        tried, kept = np.zeros_like(self.tried), np.zeros_like(self.kept)
        for count in counts:
            if count.depth < MAX_K and count.rank < MAX_RANK:
                tried[count.depth, count.rank] += count.tried
                kept[count.depth, count.rank] += count.kept
        fade = _FADE**tried
        weight = np.where(tried > 0, (1.0 - fade) / (1.0 - _FADE) / np.maximum(tried, 1.0), 0.0)
        return RankEstimate(self.tried * fade + tried * weight, self.kept * fade + kept * weight)

    def acceptance(self) -> Floats:
        """[MAX_K, MAX_RANK]: P of every depth and rank; what was little seen leans on its rank at all depths."""
        prior = np.where(np.arange(MAX_RANK) == 0, _PRIOR_FIRST, _PRIOR_LATER)
        by_rank = (self.kept.sum(axis=0) + prior) / (self.tried.sum(axis=0) + 1.0)
        out: Floats = (self.kept + _PRIOR_WEIGHT * by_rank) / (self.tried + _PRIOR_WEIGHT)
        return out

    def tree_tokens(self, parents: Sequence[int]) -> float:
        """Expected tokens of a step that verifies a tree, see `expected_tokens`."""
        return float(expected_tokens(marginal_acceptance(self.acceptance()), parents))


def marginal_acceptance(conditional: Floats) -> Floats:
    """[depth, rank]: the chance that the child of that rank is the one kept, given that its parent was kept.

    conditional: [depth, rank], the same given also that the siblings of lower rank were not.
    """
    passed = np.cumprod(1.0 - conditional, axis=1)
    reached = np.concatenate((np.ones((len(conditional), 1)), passed[:, :-1]), axis=1)
    out: Floats = reached * conditional
    return out


def expected_tokens(marginal: Floats, parents: Sequence[int]) -> Floats:
    """Expected tokens [...] of a step that verifies a tree, the extra token included.

    marginal: [..., depth, rank], see `marginal_acceptance`; what is deeper or wider counts as the last place there is.
    parents: of each node the index of its parent, ROOT for the first level, smaller than its own; siblings in the order
    in which they are tried. Raises ValueError for another order.
    """
    *_, depths, ranks = marginal.shape
    chance: list[Floats] = []
    depth, children = [0] * len(parents), dict.fromkeys(range(ROOT, len(parents)), 0)
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"parents[{node}] is {parent}; a parent comes before its child, and the root is {ROOT}")
        rank = children[parent]
        children[parent] += 1
        depth[node] = 0 if parent == ROOT else depth[parent] + 1
        kept: Floats = marginal[..., min(depth[node], depths - 1), min(rank, ranks - 1)]
        chance.append(kept if parent == ROOT else chance[parent] * kept)
    total: Floats = 1.0 + np.sum(chance, axis=0)
    return total
