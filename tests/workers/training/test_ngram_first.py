"""The n-gram index before a drafter, walked along texts by hand and against the engine's own proposer."""

from __future__ import annotations

import numpy as np
import pytest

from workers.proposers.combined import NGramFirstProposer
from workers.proposers.none import NoProposer
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.training.answers import Answer, Question
from workers.training.evaluate import CHAINS, JudgedAnswer, acceptance_of
from workers.training.ngram_first import MATCHES, look_up, ngram_first

DEPTH = 4


def judged(prompt: list[int], answer: list[int], kept: float, mode: str = "greedy") -> JudgedAnswer:
    """An answer whose every draft is kept with that chance."""
    said = Answer(f"{prompt}{answer}", Question("d", True, tuple(prompt), 0.0, 0, 99), tuple(answer))
    shape = (DEPTH, len(answer))
    taught = np.stack([np.arange(len(answer)) + 1 + depth < len(answer) for depth in range(DEPTH)])
    return JudgedAnswer(said, mode, np.full(shape, kept), taught)


NEW = list(range(40, 60))
"""Says nothing that was said before."""
LOOP = [1, 2, 3, 4] * 6


def test_the_index_sees_the_prompt_and_the_answer_so_far() -> None:
    found = look_up(judged([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 1, 2], 0.0).answer)
    assert found.match.tolist() == [1, 2, 3, 0, 1, 2]
    # Behind 1 the prompt has 2 3 4, of which the answer says two; behind 1 2 3 it has 4, and the answer says 9.
    assert found.kept.tolist() == [2, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("min_match", [1, 2, 3, 5])
def test_its_drafts_are_those_of_the_engines_proposer(min_match: int) -> None:
    numbers = np.random.default_rng(4)
    answer = judged(numbers.integers(0, 3, 12).tolist(), numbers.integers(0, 3, 60).tolist(), 0.0).answer
    found, text = look_up(answer), [*answer.question.prompt_token_ids, *answer.token_ids]
    request = EngineRequest("r", answer.question.prompt_token_ids, SamplingParams(99), "default")
    proposer = NGramFirstProposer(NoProposer(), min_match)
    for at in range(len(answer.token_ids)):
        length = 12 + at + 1
        known = Sequence(request, text[:length], 0, None)  # type: ignore[arg-type]
        drafts = proposer.propose([known], [max(CHAINS)]).tokens(0)
        assert bool(drafts) == (found.match[at] >= min_match)
        said = text[length:]
        if drafts:
            kept = found.kept[at]
            assert drafts[:kept] == said[:kept]
            assert kept == len(said) or kept == len(drafts) or drafts[kept] != said[kept]


def test_where_nothing_repeats_it_is_the_drafter_alone() -> None:
    answers = [judged([1], NEW, 1.0)]
    found = ngram_first(answers)
    assert found.first["d"]["greedy"].emitted == acceptance_of(answers, DEPTH)["d"]["greedy"].emitted | {6: 19, 8: 19}
    assert set(found.first["d"]["greedy"].share.values()) == {0.0}
    assert set(found.alone["d"]["greedy"].lengths.values()) == {1.0}


def test_in_a_loop_it_is_the_index_alone_but_for_the_steps_before_it_speaks() -> None:
    sums = ngram_first([judged([7], LOOP, 0.0)]).first["all"]["greedy"]
    # 23 tokens behind the first: four steps until 1 has come again, then drafts of up to eight and one more.
    assert (sums.emitted[8], sums.steps[8], sums.spoken[8]) == (23, 4 + 3, 3)


def test_the_drafter_is_asked_only_where_the_index_is_silent() -> None:
    """A perfect drafter and a misleading index: the longer the match must be, the less it misleads."""
    text = [1, 2, 8, 1, 2, 9, 1, 2, 10, 1, 2, 11, 1, 2, 12, 1, 2, 13]
    found = ngram_first([judged([7], text, 1.0)])
    assert found.min_match == 3
    assert found.by_match[3]["greedy"] > found.by_match[2]["greedy"]
    assert found.first["all"]["greedy"].lengths[4] == pytest.approx(17 / 4)


def test_the_shortest_match_is_chosen_by_the_other_half_of_the_prompts() -> None:
    misled = [1, 2, 8, 1, 2, 9, 1, 2, 10, 1, 2, 11]
    several = [judged([70 + i], [each + 100 * i for each in misled], 1.0) for i in range(12)]
    whole = [judged([90 + i], [each + 100 * i for each in LOOP], 0.0) for i in range(12)]
    found = ngram_first([*several, *whole])
    assert found.by_match.keys() == set(MATCHES)
    tokens = sum(len(each.answer.token_ids) - 1 for each in [*several, *whole])
    assert found.first["all"]["greedy"].emitted[4] == tokens


def test_modes_and_domains_are_kept_apart() -> None:
    found = ngram_first([judged([7], LOOP, 0.0), judged([7], NEW, 0.5, mode="t0.7")])
    assert found.first["d"].keys() == {"greedy", "t0.7"}
    assert found.report()["domains"]["d"]["t0.7"]["ngram_share_of_steps"][4] == 0.0  # type: ignore[index]


def test_the_figures_do_not_depend_on_the_moment() -> None:
    answers = [judged([7], LOOP + NEW, 0.5, mode="t0.7")]
    assert ngram_first(answers).report() == ngram_first(answers).report()
