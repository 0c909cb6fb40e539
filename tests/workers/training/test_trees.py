"""Trees chosen from measured ranks: what they are worth is counted on texts that did not choose them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.workers.training.test_evaluate import Oracle
from workers.training.evaluate import acceptance_of, judged
from workers.training.ranks import RANKS
from workers.training.trees import rank_acceptance, tree_walk, tree_worths

CHAIN_OF_2 = (-1, 0)
TWO_CHILDREN = (-1, -1)


@pytest.fixture(scope="module")
def answers(lesson):
    held_out = [i for i, answer in enumerate(lesson.answers) if answer.question.held_out]
    return list(judged(Oracle(lesson.teacher, 3), (lesson.features[i] for i in held_out), by_rank=True))


def ranks(*by_depth: list[int]) -> np.ndarray:
    return np.array(by_depth)


def test_a_walk_goes_down_the_child_that_is_the_texts_token() -> None:
    # Five tokens, the first known: the second child stands, then its token's own; then the extra token of the step.
    assert tree_walk(ranks([1, 0, 1, 0, 0], [0, 0, 0, 0, 0]), (-1, -1, 1), 5) == (4, 2)


def test_where_no_child_is_the_texts_token_a_step_gives_one() -> None:
    assert tree_walk(ranks([RANKS] * 4, [RANKS] * 4), TWO_CHILDREN, 4) == (3, 3)


def test_a_chain_takes_only_best_children() -> None:
    assert tree_walk(ranks([0, 1, 0, 0], [0, 0, 0, 0]), CHAIN_OF_2, 4) == (3, 1)
    assert tree_walk(ranks([1, 0, 0, 0], [0, 0, 0, 0]), CHAIN_OF_2, 4) == (3, 2)


def test_an_oracle_stands_at_its_first_rank_wherever_the_vocabulary_has_the_token(answers) -> None:
    table = rank_acceptance(answers)
    assert table[0, 0] == pytest.approx(sum(a.stood[0, 0] for a in answers) / sum(a.tried[0, 0] for a in answers))
    assert table[:, 0].min() > 0.5
    assert table[:, 1:].max() == 0


def test_more_nodes_never_give_fewer_tokens(answers) -> None:
    worths = tree_worths(answers, (1, 2, 3))
    expected = [worths[n].expected["all"]["greedy"] for n in (1, 2, 3)]
    assert expected == sorted(expected)
    assert worths[3].parents == (-1, 0, 1)


def test_the_walk_of_a_chain_is_that_of_its_drafts(answers) -> None:
    sums = acceptance_of(answers, 3)["all"]["greedy"]
    assert tree_worths(answers, (3,))[3].walked["all"] == pytest.approx(sums.emitted[3] / sums.steps[3])


def test_answers_that_were_judged_without_ranks_are_refused(lesson) -> None:
    plain = list(judged(Oracle(lesson.teacher, 3), (lesson.features[0],)))
    with pytest.raises(ValueError, match="without ranks"):
        tree_worths(plain)
