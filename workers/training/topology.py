"""The best tree of draft tokens for a number of nodes, from measured acceptance by depth and rank.

The expected tokens of a step that verifies a tree are 1 + the sum over its nodes of the chance that the node is kept,
and that chance is the product of the acceptance of its depth and rank along its path (Sequoia, Chen et al. 2024,
arXiv 2402.12374, section 3.1). A tree of n nodes that has the most of it follows by dynamic programming over depth,
rank and nodes left (there, algorithm 1), here with a limit to the depth that a drafter was taught.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controlplane.decision.ranks import ROOT


def best_tree(marginal: NDArray[np.float64], nodes: int) -> tuple[int, ...]:
    """Parents of at most `nodes` nodes, ROOT for those of depth 0, level by level and siblings by rank.

    marginal: [depth, rank], see `controlplane.decision.ranks.marginal_acceptance`; it may rise along ranks, siblings
    are still a prefix of them.
    Fewer nodes where depth and ranks have no room for more. Raises ValueError for nodes under 0 or a chance outside
    [0, 1].
    """
    if nodes < 0:
        raise ValueError(f"nodes is {nodes}; it must be 0 or more")
    if not bool(((marginal >= 0) & (marginal <= 1)).all()):
        raise ValueError("marginal has a value outside [0, 1]")
    choices = _choices(marginal, nodes)
    tree: list[int] = []
    # Each entry: a kept node (or the root), the depth of its children, and the nodes to place below it.
    level = [(ROOT, nodes)]
    for depth in range(len(marginal)):
        below: list[tuple[int, int]] = []
        for parent, left in level:
            for rank in range(marginal.shape[1]):
                size = int(choices[depth][rank, left])
                if size == 0:
                    break
                tree.append(parent)
                below.append((len(tree) - 1, size - 1))
                left -= size
        level = below
    return tuple(tree)


def _choices(marginal: NDArray[np.float64], nodes: int) -> list[NDArray[np.int64]]:
    """For each depth [rank, left]: how many of the `left` nodes the child of that rank takes with all below it, where
    the children of lower ranks have taken theirs; 0 ends the siblings.
    """
    depths, ranks = marginal.shape
    below = np.zeros(nodes + 1)
    found: list[NDArray[np.int64]] = []
    for depth in reversed(range(depths)):
        rest = np.zeros(nodes + 1)
        chosen = np.zeros((ranks, nodes + 1), dtype=np.int64)
        for rank in reversed(range(ranks)):
            value = np.zeros(nodes + 1)
            for left in range(1, nodes + 1):
                sizes = np.arange(1, left + 1)
                worth = marginal[depth, rank] * (1.0 + below[sizes - 1]) + rest[left - sizes]
                best = int(worth.argmax())
                value[left], chosen[rank, left] = worth[best], sizes[best]
            rest = value
        found.append(chosen)
        below = rest
    return found[::-1]
