"""Which tree of drafts each number of nodes should have, and what it is worth on texts that did not choose it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.decision.ranks import ROOT, expected_tokens, marginal_acceptance
from workers.training.evaluate import ALL, JudgedAnswer
from workers.training.topology import best_tree
from workers.training.walk import walked

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Rungs that a topology is computed for."""


@dataclass(frozen=True, slots=True)
class TreeWorth:
    """A tree, as it is shipped, and tokens a step with it.

    parents: chosen by all answers. expected: by domain and mode, of the table of ranks. walked: by domain, of a walk
    along the greedy answers. Both are of trees that one half of the prompts chose, on the other half.
    """

    parents: tuple[int, ...]
    expected: dict[str, dict[str, float]]
    walked: dict[str, float]

    def report(self) -> dict[str, object]:
        """As `train evaluate --json` gives it."""
        return {
            "parents": list(self.parents),
            "expected_tokens": {d: {m: round(v, 4) for m, v in modes.items()} for d, modes in self.expected.items()},
            "greedy_tokens": {domain: round(value, 4) for domain, value in self.walked.items()},
        }


def tree_worths(answers: Sequence[JudgedAnswer], nodes: Sequence[int] = NODES) -> dict[int, TreeWorth]:
    """By number of nodes. Raises ValueError where the answers were not judged by rank."""
    whole = _marginal(answers)
    halves = [[a for a in answers if half_of(a) == half] for half in (0, 1)]
    # Of a single prompt there is no other half.
    tables = [_marginal(half) if half else whole for half in halves[::-1]]
    found = {}
    for count in nodes:
        chosen = [best_tree(table, count) for table in tables]
        found[count] = TreeWorth(best_tree(whole, count), _expected(halves, chosen), _walked(halves, chosen))
    return found


def rank_acceptance(answers: Sequence[JudgedAnswer]) -> NDArray[np.float64]:
    """[depth, RANKS] conditional acceptance; 0 where no child came up. Raises ValueError as `tree_worths`."""
    pairs = [(a.tried, a.stood) for a in answers if a.tried is not None and a.stood is not None]
    if len(pairs) < len(answers):
        raise ValueError("an answer was judged without ranks")
    tried = np.sum([t for t, _ in pairs], axis=0)
    stood = np.sum([s for _, s in pairs], axis=0)
    return np.divide(stood, tried, out=np.zeros_like(stood), where=tried > 0).clip(0.0, 1.0)


def tree_walk(ranks: NDArray[np.int64], parents: Sequence[int], tokens: int) -> tuple[int, int]:
    """(tokens emitted, steps) of a greedy decoding with that tree along `tokens` tokens of a text.

    ranks: [depth, anchors], among the children of its parent, of the text's token at each depth behind the anchor.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)

    def accept(at: int, room: int) -> int:
        node, accepted, deepest = ROOT, 0, min(len(ranks), room)
        while accepted < deepest and ranks[accepted, at] < len(children[node]):
            node, accepted = children[node][ranks[accepted, at]], accepted + 1
        return accepted

    return walked(tokens, accept)


def _marginal(answers: Sequence[JudgedAnswer]) -> NDArray[np.float64]:
    return marginal_acceptance(rank_acceptance(answers))


def _expected(halves: Sequence[Sequence[JudgedAnswer]], trees: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
    """Each half with its tree; the mean of both, weighted by their steps at the root."""
    sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for half, tree in zip(halves, trees, strict=True):
        for domain, mode, part in _parts(half):
            weight = float(sum(a.tried[0, 0] for a in part if a.tried is not None))
            total = sums[domain][mode]
            total[0] += weight * float(expected_tokens(_marginal(part), tree))
            total[1] += weight
    return {d: {m: value / weight for m, (value, weight) in modes.items() if weight} for d, modes in sums.items()}


def _walked(halves: Sequence[Sequence[JudgedAnswer]], trees: Sequence[Sequence[int]]) -> dict[str, float]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for half, tree in zip(halves, trees, strict=True):
        for each in half:
            if each.ranks is None:
                continue
            emitted, steps = tree_walk(each.ranks, tree, len(each.answer.token_ids))
            for domain in (each.answer.question.domain, ALL):
                sums[domain][0] += emitted
                sums[domain][1] += steps
    return {domain: emitted / steps for domain, (emitted, steps) in sorted(sums.items()) if steps}


def _parts(answers: Sequence[JudgedAnswer]) -> list[tuple[str, str, list[JudgedAnswer]]]:
    """By domain, `all` too, and mode."""
    parts: dict[tuple[str, str], list[JudgedAnswer]] = defaultdict(list)
    for each in answers:
        for domain in (each.answer.question.domain, ALL):
            parts[domain, each.mode].append(each)
    return [(domain, mode, part) for (domain, mode), part in sorted(parts.items())]


def half_of(judged: JudgedAnswer) -> int:
    """By the prompt, so that a prompt's greedy and sampled answers are in the same one."""
    said = repr(judged.answer.question.prompt_token_ids).encode()
    return hashlib.sha256(said).digest()[0] % 2
