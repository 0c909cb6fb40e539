"""What rungs bring that are token trees: held against simulated cohorts whose acceptance by rank is known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from controlplane.decision.believed import scaled
from controlplane.decision.ranks import expected_tokens, marginal_acceptance
from controlplane.decision.tree_rungs import CHAINS
from controlplane.decision.tuners.slots import under_price
from controlplane.telemetry import CohortWindow, ProfileCell, RankCount, StepCell, StepCount

TREE = (-1, -1, 0, 0, 1, 2, 5, 6)
SMALL = (-1, -1, 0, 2, 3, 4)
SPINE = (0, 2, 5, 6, 7)
DEPTHS = 5
LADDER = (0, 2, 4, 6, 8)


class Text:
    """A cohort's text. first, later: acceptance of a first child, and of a later one where the first fell.

    chains: share of the steps in which another source drafts a chain; its tokens hold with `held`.
    """

    def __init__(self, first: float, later: float, chains: float = 0.0, held: float = 0.0, seed: int = 0) -> None:
        self.first, self.later, self.chains, self.held = first, later, chains, held
        self.random = random.Random(seed)

    def tokens(self, k: int) -> float:
        """Expected tokens of a step at that rung."""
        table = np.array([[self.first, *(self.later,) * 3]] * DEPTHS)
        tree = {6: SMALL, 8: TREE}.get(k, tuple(range(-1, k - 1)))
        drafted = expected_tokens(marginal_acceptance(table), tree)
        other = 1.0 + sum(self.held**j for j in range(1, k + 1))
        return (1.0 - self.chains) * drafted + self.chains * other

    def window(self, k: int, steps: int) -> CohortWindow:
        chains: Counter[tuple[int, int]] = Counter()
        trees: Counter[int] = Counter()
        spines: Counter[int] = Counter()
        tried: Counter[tuple[int, int]] = Counter()
        kept: Counter[tuple[int, int]] = Counter()
        tree = {6: SMALL, 8: TREE}.get(k, ())
        for _ in range(steps):
            if self.random.random() < self.chains:
                chains[k, self.run(k, self.held)] += 1
            elif not tree:
                chains[k, self.run(k, self.first)] += 1
            else:
                path = self.walk(tree, tried, kept)
                trees[len(path)] += 1
                spines[next((i for i, node in enumerate(path) if SPINE[i : i + 1] != (node,)), len(path))] += 1
        cells = [StepCell(0, k, of(chains), 0.05 * chains.total())] if chains else []
        shadow = []
        if trees:
            ranks = tuple(RankCount(*place, n, kept[place]) for place, n in sorted(tried.items()))
            counts = tuple(StepCount(k, accepted, False, n) for accepted, n in sorted(trees.items()))
            cells.append(StepCell(0, k, counts, 0.05 * trees.total(), tree=tree, ranks=ranks))
            long = len(SPINE)
            counts = tuple(StepCount(long, accepted, False, n) for accepted, n in sorted(spines.items()))
            shadow = [StepCell(0, long, counts, 0.0)]
        return CohortWindow("code", tuple(cells), shadow=tuple(shadow))

    def run(self, k: int, chance: float) -> int:
        return next((j for j in range(k) if self.random.random() >= chance), k)

    def walk(self, tree: Sequence[int], tried: Counter[tuple[int, int]], kept: Counter[tuple[int, int]]) -> list[int]:
        path: list[int] = []
        while True:
            parent = path[-1] if path else -1
            for rank, node in enumerate(n for n, own in enumerate(tree) if own == parent):
                tried[len(path), rank] += 1
                if self.random.random() < (self.later if rank else self.first):
                    kept[len(path), rank] += 1
                    path.append(node)
                    break
            else:
                return path


def of(chains: Counter[tuple[int, int]]) -> tuple[StepCount, ...]:
    return tuple(StepCount(*key, False, n) for key, n in sorted(chains.items()))


def profile(position_s: float) -> list[ProfileCell]:
    """Steps of 30 ms and so much more a position; a pass of the drafter takes 1 ms."""
    tree = {6: SMALL, 8: TREE}
    passes = {0: 0, 2: 2, 4: 4, 6: 5, 8: 5}
    return [
        ProfileCell(n, k, 64, 0.03 + position_s * n * (k + 1) + 0.001 * passes[k], 0.001 * passes[k], tree.get(k, ()))
        for n in (1, 8)
        for k in LADDER
    ]


@pytest.fixture
def played(loop, cohort_policy):
    """The outlook after a cohort's text was seen at a rung."""

    def play(text: Text, k: int, ticks: int = 12, steps: int = 150):
        made = loop(cohort_policy(tuner="fixed", ladder=LADDER, start=8))
        for tick in range(ticks):
            made.tick(float(tick), text.window(k, steps), profile=profile(0.001))
        return made.state.outlook

    return play


TEXTS = [Text(0.68, 0.3), Text(0.5, 0.45), Text(0.85, 0.1), Text(0.55, 0.4, chains=0.4, held=0.8)]
IDS = ["like EAGLE", "like Medusa", "easy", "chains between"]


@pytest.mark.parametrize("text", TEXTS, ids=IDS)
def test_a_tree_brings_what_it_brings(played, text) -> None:
    emitted = np.mean([played(replace_seed(text, seed), 8).emitted[0, 8] for seed in range(5)])
    assert emitted == pytest.approx(text.tokens(8), rel=0.02)


@pytest.mark.parametrize("text", TEXTS[:3], ids=IDS[:3])
def test_trees_tell_what_chains_would_bring(played, text) -> None:
    """Their first path is one; the rest of a tree must not make a chain look better than it is."""
    found = np.mean([played(replace_seed(text, seed), 8).of_chains.emitted[0, 4] for seed in range(5)])
    assert found == pytest.approx(text.tokens(4), rel=0.02)


@pytest.mark.parametrize("text", TEXTS[:3], ids=IDS[:3])
def test_one_tree_tells_what_another_would_bring(played, text) -> None:
    found = np.mean([played(replace_seed(text, seed), 8).emitted[0, 6] for seed in range(5)])
    assert found == pytest.approx(text.tokens(6), rel=0.03)


def replace_seed(text: Text, seed: int) -> Text:
    return Text(text.first, text.later, text.chains, text.held, seed)


@pytest.mark.parametrize(
    ("text", "position_s", "best"),
    [
        pytest.param(Text(0.68, 0.35), 0.0004, 8, id="cheap positions: the tree"),
        pytest.param(Text(0.68, 0.35), 0.02, (0, 2), id="dear positions: hardly a chain"),
        pytest.param(Text(0.9, 0.02), 0.002, (4, 6), id="nothing but first children hold"),
    ],
)
@pytest.mark.parametrize("start", [2, 8])
def test_the_rung_that_is_best_is_chosen(loop, cohort_policy, text, position_s, best, start) -> None:
    cohort = cohort_policy(tuner="goodput", ladder=LADDER, start=start, fallback=0, hold_s=2.0, probe_every_s=20.0)
    made = loop(cohort)
    for tick in range(200):
        made.tick(float(tick), text.window(made.k()[0], 25), profile=profile(position_s))
    cells = {k: text.tokens(k) / seconds for n, k, _, seconds, *_ in profile(position_s) if n == 1}
    assert cells[made.k()[0]] == pytest.approx(max(cells.values()), rel=0.03)


def test_priced_slots_reach_the_deeper_tree(loop, cohort_policy) -> None:
    made, text = (
        loop(cohort_policy(tuner="goodput", slots="ragged", ladder=LADDER, start=8, hold_s=2.0)),
        Text(0.7, 0.4),
    )
    for tick in range(80):
        made.tick(float(tick), text.window(made.k()[0], 25), profile=profile(0.0002))
    state = made.state
    assert made.k()[0] == 8
    assert under_price(state.table, state.prices, state.k)[0, 0] == 8


def test_a_rung_between_two_that_were_measured_drafts_the_tree_of_the_lower() -> None:
    shapes = CHAINS.told(profile(0.001), ())
    assert [len(tree) for tree in shapes.trees] == [0, 0, 0, 0, 0, 0, 6, 6, *[8] * 9]
    assert shapes.nodes[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 8, 8]
    assert (shapes.depth[8], shapes.spine[8]) == (5, 5)


def test_a_tree_that_was_verified_is_known_of_its_rung_alone() -> None:
    shapes = CHAINS.told((), [(8, TREE)])
    assert shapes.tree_rungs == (8,)
    assert shapes.told((), ()) is shapes


def test_what_brings_nothing_more_is_worth_no_position(played) -> None:
    outlook = played(Text(0.6, 0.4), 8)
    assert outlook.emitted[0, 7] == outlook.emitted[0, 6]  # seven nodes are the tree of six
    assert outlook.positions[0, 7] == outlook.positions[0, 6]
    assert outlook.survival[0, 8:].max() == 0.0


def test_what_positions_bring_falls_and_comes_to_what_the_deepest_tree_brings(played) -> None:
    outlook = played(Text(0.6, 0.4), 8)
    assert (np.diff(outlook.survival[0]) <= 1e-12).all()
    assert 1.0 + outlook.survival[0, :8].sum() == pytest.approx(outlook.emitted[0, 8])


@pytest.mark.parametrize("by", [0.5, 1.0, 1.3])
def test_scaled_acceptance_moves_trees_as_it_moves_chains(loop, cohort_policy, by) -> None:
    made = loop(cohort_policy(tuner="fixed", ladder=LADDER, start=8))
    for tick in range(40):
        made.tick(float(tick), Text(0.6, 0.4).window(8, 50), profile=profile(0.001))
    outlook, hazards = made.state.outlook, made.state.estimate.hazards()
    other = scaled(outlook, hazards, by)
    chain = scaled(outlook.of_chains, hazards, by)
    assert (other.emitted - 1.0) / (outlook.emitted - 1.0).clip(1e-9) == pytest.approx(
        (chain.emitted - 1.0) / (outlook.of_chains.emitted - 1.0).clip(1e-9)
    )
