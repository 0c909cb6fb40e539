"""Prompt lookup against the plainest search, and what it proposes at the edges."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.detokenizer import Detokenizer
from workers.proposers.ngram import NGramIndex, NGramProposer
from workers.sequence import EngineRequest, SamplingParams, Sequence

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def search(token_ids, k, shortest):
    """What followed the last earlier occurrence of the longest suffix that has one."""
    for n in range(len(token_ids) - 1, shortest - 1, -1):
        suffix = token_ids[len(token_ids) - n :]
        for start in range(len(token_ids) - n - 1, -1, -1):
            if len(token_ids) > n and token_ids[start : start + n] == suffix:
                period = len(token_ids) - start - n
                return [token_ids[start + n + i % period] for i in range(k)]
    return []


@settings(deadline=None)
@given(TEXTS, st.integers(1, 6), st.integers(1, 3))
def test_it_finds_what_a_plain_search_finds(token_ids, k, shortest) -> None:
    assert NGramIndex(shortest).continuation(token_ids, k) == search(token_ids, k, shortest)


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(1, 5), max_size=10))
def test_an_index_that_grew_finds_what_a_fresh_one_finds(token_ids, cuts) -> None:
    grown, end = NGramIndex(1), 0
    for cut in cuts:
        end = min(end + cut, len(token_ids))
        grown.continuation(token_ids[:end], 2)
    assert grown.continuation(token_ids, 4) == NGramIndex(1).continuation(token_ids, 4)


def test_a_longer_match_wins_over_a_later_one() -> None:
    assert NGramIndex(1).continuation([1, 2, 7, 5, 2, 8, 1, 2], 1) == [7]


def test_of_equal_matches_the_last_wins() -> None:
    assert NGramIndex(2).continuation([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]


def test_a_text_without_repeats_proposes_nothing() -> None:
    assert NGramIndex().continuation([1, 2, 3, 4], 4) == []


def test_a_match_shorter_than_the_least_does_not_count() -> None:
    assert NGramIndex(2).continuation([5, 1, 6, 5], 4) == []


def test_a_loop_is_proposed_on_and_on() -> None:
    """The match reaches up to the end of the text; what was copied from there on repeats."""
    assert NGramIndex(2).continuation([9, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_a_sequence_is_followed_through_a_pause(tokenizer) -> None:
    request = EngineRequest("r", (1, 2, 3, 4), SamplingParams(20), "default")
    sequence = Sequence(request, [1, 2, 3, 4], 0, Detokenizer(tokenizer))
    proposer = NGramProposer(2)
    assert proposer.propose([sequence], [4]).tokens(0) == []
    sequence.token_ids += [5, 6, 7]
    assert proposer.propose([sequence], [0]).tokens(0) == []
    sequence.token_ids += [8, 5, 6]
    assert proposer.propose([sequence], [2]).tokens(0) == [7, 8]


def test_a_batch_is_ragged(tokenizer) -> None:
    def sequence(name, token_ids):
        return Sequence(EngineRequest(name, (), SamplingParams(20), "default"), token_ids, 0, Detokenizer(tokenizer))

    batch = [sequence("a", [1, 2, 1, 2]), sequence("b", [1, 2, 3]), sequence("c", [7, 8, 9, 7, 8])]
    proposal = NGramProposer(2).propose(batch, [3, 3, 1])
    assert [proposal.tokens(b) for b in range(3)] == [[1, 2, 1], [], [9]]
    assert (proposal.cu_draft, proposal.draft_logits, proposal.positions) == ((0, 3, 3, 4), None, (0, 0, 0))
