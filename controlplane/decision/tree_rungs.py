"""What the rungs bring at which a drafter drafts token trees.

A rung K is a tree of K nodes where the workers say so. Its expected tokens are 1 + the sum over the nodes of the chance
that they are kept, as in `ranks.expected_tokens`, with this cohort's hazards as the acceptance of first children (a
first child stands as a chain's next token does, so chains and the first paths of trees both tell it) and the ranks of
all cohorts as that of later ones. What that leaves out (later children that do better or worse in this text, steps in
which another source drafted a chain instead) is one factor a cohort: tokens kept at its tree rungs over those expected
there, drawn to all cohorts' and that to 1.

Positions are those of the nodes, and a rung's seconds are measured with its tree (`ProfileCell`): a tree takes as many
passes of the drafter as it has levels. What a position brings is a slope: trees of two rungs are no parts of each
other, so between rungs the line is taken that lies over all of them and falls off (the least concave majorant).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.estimate import HALF_LIFE, Hazards, Outlook
from controlplane.decision.latency import rising
from controlplane.decision.observation import RUNGS, Cells, Floats, Ints
from controlplane.decision.ranks import ROOT, RankEstimate, expected_tokens, marginal_acceptance
from controlplane.telemetry import ProfileCell, tree_depth

Parents = tuple[int, ...]

FACTOR_WEIGHT = 40.0
"""Expected tokens that a cohort's factor is drawn to the others' by, and theirs to 1."""


def _spine(parents: Parents) -> int:
    """Length of the path of first children."""
    node, length = ROOT, 0
    while node in parents:
        node, length = parents.index(node), length + 1
    return length


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """What each rung drafts. trees: parents by K, empty for a chain of K.

    nodes, depth, spine: [RUNGS] i64, tokens drafted, levels, and the length of the path of first children.
    """

    trees: tuple[Parents, ...]
    nodes: Ints
    depth: Ints
    spine: Ints

    @classmethod
    def of(cls, trees: Mapping[int, Parents]) -> Shapes:
        """trees: parents by K; what is not named is a chain."""
        by_k = tuple(tuple(trees.get(k, ())) for k in range(RUNGS))
        return cls(
            by_k,
            nodes=np.array([len(tree) or k for k, tree in enumerate(by_k)]),
            depth=np.array([tree_depth(tree) or k for k, tree in enumerate(by_k)]),
            spine=np.array([_spine(tree) or k for k, tree in enumerate(by_k)]),
        )

    @property
    def tree_rungs(self) -> tuple[int, ...]:
        return tuple(k for k, tree in enumerate(self.trees) if tree)

    def told(self, profile: Sequence[ProfileCell], verified: Iterable[tuple[int, Parents]]) -> Shapes:
        """As workers say it: a profile, of all rungs, and the trees of steps, each of its own rung.

        A rung between two that were profiled drafts the tree of the one below it, or a chain where that is one.
        """
        found = {cell.k: cell.tree for cell in profile}
        trees = dict(enumerate(self.trees))
        if found:
            below = [max((k for k in found if k <= rung), default=0) for rung in range(RUNGS)]
            trees = {rung: found.get(k, ()) for rung, k in enumerate(below)}
        trees |= {k: tree for k, tree in verified if k < RUNGS and k not in found}
        return self if tuple(trees[k] for k in range(RUNGS)) == self.trees else Shapes.of(trees)


CHAINS = Shapes.of({})


def tree_tokens(hazards: Hazards, ranks: RankEstimate, parents: Parents) -> Floats:
    """[cohorts]: expected tokens of a step that verifies a tree, by each cohort's hazards and the ranks of all."""
    later, first = marginal_acceptance(ranks.acceptance()[:, 1:]), hazards.mean[..., None]
    return expected_tokens(np.concatenate((first, (1.0 - first) * later), axis=-1), parents)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Discounted draft tokens of steps planned at tree rungs, [cohorts] f64: kept, and expected to be."""

    kept: Floats
    expected: Floats

    @classmethod
    def nothing(cls, cohorts: int) -> Kept:
        return cls(np.zeros(cohorts), np.zeros(cohorts))

    @property
    def factor(self) -> Floats:
        """[cohorts]: kept over expected."""
        pooled = (self.kept.sum() + FACTOR_WEIGHT) / (self.expected.sum() + FACTOR_WEIGHT)
        factor: Floats = (self.kept + FACTOR_WEIGHT * pooled) / (self.expected + FACTOR_WEIGHT)
        return factor

    def absorb(self, cells: Cells, hazards: Hazards, ranks: RankEstimate, shapes: Shapes) -> Kept:
        """With a tick's steps added and older ones faded by as many."""
        of = np.isin(cells.k, shapes.tree_rungs) & (cells.steps > 0)
        if not of.any():
            return self
        cohort, steps, k = cells.cohort[of], cells.steps[of], cells.k[of]
        each = np.zeros((len(self.kept), RUNGS))
        for rung in shapes.tree_rungs:
            each[:, rung] = tree_tokens(hazards, ranks, shapes.trees[rung]) - 1.0

        def summed(values: Floats) -> Floats:
            return np.bincount(cohort, values, len(self.kept)).astype(np.float64)

        fade: Floats = np.exp2(-summed(steps) / HALF_LIFE)
        kept = summed(np.maximum(cells.emitted[of] - steps, 0.0))
        return Kept(self.kept * fade + kept, self.expected * fade + summed(steps * each[cohort, k]))


def with_trees(outlook: Outlook, hazards: Hazards, ranks: RankEstimate, shapes: Shapes, kept: Kept) -> Outlook:
    """The outlook of chains with that of trees at the rungs that are trees."""
    rungs = shapes.tree_rungs
    if not rungs:
        return outlook
    emitted, factor = outlook.emitted.copy(), kept.factor
    for k in rungs:
        more = factor * (tree_tokens(hazards, ranks, shapes.trees[k]) - 1.0)
        emitted[:, k] = 1.0 + np.minimum(more, shapes.depth[k])
    return replace(
        outlook,
        survival=gained(emitted),
        drafted=np.where(np.arange(RUNGS - 1) < shapes.nodes.max(), outlook.drafted, 0.0),
        emitted=emitted,
        positions=outlook.positions[:, shapes.nodes],
        chain=outlook,
    )


def gained(emitted: Floats) -> Floats:
    """[cohorts, MAX_K]: what a position brings, falling: slopes of the least concave majorant of the rungs."""
    more: Floats = np.maximum(-rising(-np.diff(emitted, axis=1)), 0.0)
    return more
