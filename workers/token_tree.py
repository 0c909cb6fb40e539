"""The shape of a tree of draft tokens: which node continues which. A chain is no tree here, but None."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.decision.ranks import ROOT


@dataclass(frozen=True, slots=True)
class TokenTree:
    """parents: of each node the index of its parent, lower than its own; ROOT for the first level.

    Siblings are tried in the order of their indices. depths: of each node, 0 for the first level. children: of the
    root, then of each node. Raises ValueError for a parent that does not come before its child.
    """

    parents: tuple[int, ...]
    depths: tuple[int, ...] = field(init=False, compare=False)
    children: tuple[tuple[int, ...], ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        depths: list[int] = []
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"parents[{node}] is {parent}; a parent comes before its child, the root is {ROOT}")
            depths.append(0 if parent == ROOT else depths[parent] + 1)
            children[parent + 1].append(node)
        object.__setattr__(self, "depths", tuple(depths))
        object.__setattr__(self, "children", tuple(tuple(each) for each in children))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Levels: the most tokens that can be kept."""
        return max(self.depths, default=-1) + 1

    @property
    def is_chain(self) -> bool:
        return self.depth == len(self.parents)

    @property
    def most_children(self) -> int:
        return max(map(len, self.children))

    @property
    def spine(self) -> tuple[int, ...]:
        """The path of first children: what a chain of that depth would have drafted."""
        nodes: list[int] = []
        while own := self.children[nodes[-1] + 1 if nodes else 0]:
            nodes.append(own[0])
        return tuple(nodes)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first level down to `node`, itself included; empty for ROOT."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def to_level(self, depth: int) -> tuple[int, ...]:
        """The nodes with children that lie no deeper than `depth`."""
        return tuple(n for n, own in enumerate(self.depths) if own <= depth and self.children[n + 1])


@functools.cache
def chain_of(length: int) -> TokenTree:
    """A chain of so many tokens, for whom it is convenient to see it as a tree."""
    return TokenTree(tuple(range(ROOT, length - 1)))


Trees = Mapping[int, TokenTree]
"""By number of nodes; chains among them, where no better tree of that size was found."""


def read_trees(said: Mapping[str, Any], deepest: int | None = None) -> dict[int, TokenTree]:
    """Trees as a drafter's card has them: parents by number of nodes. deepest: those with more levels are left out.

    Raises ValueError for what is no tree, or not of that many nodes.
    """
    trees: dict[int, TokenTree] = {}
    for count, parents in said.items():
        if not isinstance(parents, Sequence) or not all(isinstance(parent, int) for parent in parents):
            raise ValueError(f"trees.{count}: must be a list of integers")
        tree = TokenTree(tuple(parents))
        if str(len(tree)) != str(count):
            raise ValueError(f"trees.{count}: has {len(tree)} nodes")
        if len(tree) and (deepest is None or tree.depth <= deepest):
            trees[len(tree)] = tree
    return trees


def tree_for(trees: Trees, k: int) -> TokenTree | None:
    """The largest tree of at most `k` nodes; None where that is a chain or there is none: then k tokens are a chain."""
    best = trees.get(max((count for count in trees if count <= k), default=0))
    return None if best is None or best.is_chain else best
