"""The request's own prediction as drafts: followed while it holds, found again after a change, and never in the way."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.detokenizer import Detokenizer
from workers.proposers.ngram import NGramProposer
from workers.proposers.prediction import Prediction
from workers.proposers.suffix_automaton import SuffixAutomaton
from workers.sequence import EngineRequest, SamplingParams, Sequence

TEXT = list(range(10, 30))


def after(output: list[int], prediction: list[int] = TEXT, k: int = 4) -> list[int]:
    followed = Prediction(prediction)
    followed.read(output, 0)
    return followed.continuation(k)


def test_it_is_followed_from_its_first_token_on() -> None:
    assert after([]) == [10, 11, 12, 13]
    assert after([10, 11]) == [12, 13, 14, 15]


def test_it_is_left_where_the_output_departs() -> None:
    assert after([10, 11, 5]) == []


def test_it_is_found_again_behind_a_change_an_insertion_and_a_deletion() -> None:
    assert after([10, 5, 12, 13], k=2) == [14, 15]
    assert after([10, 5, 6, 7, 11, 12], k=2) == [13, 14]
    assert after([10, 15, 16], k=2) == [17, 18]


def test_of_places_that_agree_as_well_the_next_one_ahead_counts() -> None:
    prediction = [1, 2, 50, 1, 2, 51, 1, 2, 52]
    assert after([1, 2, 50, 9, 1, 2], prediction, 1) == [51]


def test_of_places_the_one_that_more_tokens_agree_with_counts() -> None:
    prediction = [8, 1, 2, 50, 1, 2, 51, 7, 1, 2, 52]
    assert after([8, 9, 7, 1, 2], prediction, 1) == [52]


def test_behind_its_end_there_is_nothing() -> None:
    assert after(TEXT) == []
    assert after(TEXT[:-1]) == TEXT[-1:]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_reading_in_pieces_is_reading_at_once(prediction, output, size) -> None:
    followed = Prediction(prediction)
    for end in range(0, len(output), size):
        followed.read(output[:end], 0)
    followed.read(output, 0)
    assert followed.continuation(4) == after(output, prediction)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=60))
def test_the_automaton_finds_the_longest_suffix_and_its_last_place(token_ids) -> None:
    match = SuffixAutomaton(token_ids).match
    size = len(token_ids)
    for n in range(size - 1, -1, -1):
        ends = [end for end in range(n, size) if token_ids[end - n : end] == token_ids[size - n :]]
        if n == 0 or ends:
            assert match.length == n
            assert n == 0 or match.end == ends[-1]
            return


def test_the_automaton_of_a_loop_stays_small() -> None:
    """A walk over all suffixes of a loop would make its cost a square of its length."""
    automaton = SuffixAutomaton([1, 2] * 4000)
    assert automaton.match == (7998, 7998)
    assert len(automaton._next) < 2 * automaton.size


def a_sequence(tokenizer, prediction, output) -> Sequence:
    request = EngineRequest("r", (1, 2), SamplingParams(40), "default", prediction=tuple(prediction))
    return Sequence(request, [1, 2, *output], 0, Detokenizer(tokenizer))


def test_the_prediction_comes_before_what_the_text_repeats(tokenizer) -> None:
    sequence = a_sequence(tokenizer, [5, 6, 7, 5, 6, 8], [5, 6, 7, 5, 6])
    proposal = NGramProposer().propose([sequence], [3])
    assert (proposal.tokens(0), proposal.predicted) == ([8], (1,))


def test_where_the_prediction_is_lost_the_text_is_looked_up(tokenizer) -> None:
    sequence = a_sequence(tokenizer, [5, 6, 7], [20, 21, 22, 20, 21])
    proposal = NGramProposer().propose([sequence], [2])
    assert (proposal.tokens(0), proposal.predicted) == ([22, 20], (0,))


def test_a_right_prediction_is_accepted_token_by_token_and_counted(make_engine, ask, drain, prompts) -> None:
    plain = make_engine(0, "none", eos=())
    plain.submit(ask(prompts[4], max_tokens=30))
    text = drain(plain)["r"].token_ids
    engine = make_engine(4, "ngram", eos=())
    engine.submit(replace(ask(prompts[4], max_tokens=30), prediction=tuple(text)))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    assert [t for chunk in chunks for t in chunk.token_ids] == text
    kept, lost = (sum(chunk.prediction[i] for chunk in chunks) for i in (0, 1))
    # One token of each step is the target's own.
    assert (kept, lost) == (sum(a for chunk in chunks for _, a in chunk.steps), 0)
    assert kept >= 0.75 * len(text)


def test_a_wrong_prediction_costs_drafts_and_changes_nothing(make_engine, ask, drain, prompts) -> None:
    texts = []
    for prediction in ((), tuple(reversed(prompts[9])), tuple(prompts[6])):
        engine = make_engine(4, "ngram")
        for i, sampling in enumerate(({}, {"temperature": 1.0, "seed": 3})):
            engine.submit(replace(ask(prompts[9], f"{i}", **sampling), prediction=prediction))
        texts.append({name: done.token_ids for name, done in drain(engine).items()})
    assert texts[0] == texts[1] == texts[2]


def test_what_was_drafted_in_vain_is_counted(make_engine, ask, prompts) -> None:
    engine = make_engine(4, "ngram", eos=())
    engine.submit(ask(prompts[4], "first", max_tokens=1))
    (first,) = engine.step()[0].token_ids
    engine.submit(replace(ask(prompts[4], max_tokens=12), prediction=(first, *(1,) * 30)))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    kept, lost = (sum(chunk.prediction[i] for chunk in chunks) for i in (0, 1))
    drafted = sum(d for chunk in chunks for d, _ in chunk.steps)
    assert kept + 4 <= kept + lost <= drafted
