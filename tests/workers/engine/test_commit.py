"""What stays of a verdict: the cut at EOS, stop strings and the budget, and what is counted after it."""

from __future__ import annotations

import pytest

from workers.commit import commit, trim
from workers.detokenizer import Detokenizer
from workers.sequence import EngineRequest, SamplingParams, Sequence, TokenLogprob
from workers.verifier import Accepted

EOS = 2


@pytest.fixture
def make_sequence(tokenizer):
    """A decoding sequence: prompt t3 t4, and one token t10 that prefill gave."""

    def make(max_tokens=20, completion=(10,), **sampling):
        request = EngineRequest("r", (3, 4), SamplingParams(max_tokens, **sampling), "default")
        detokenizer = Detokenizer(
            tokenizer, request.sampling.stop, request.prompt_token_ids, min_tokens=request.sampling.min_tokens
        )
        detokenizer.push(completion)
        return Sequence(request, [3, 4, *completion], 0, detokenizer)

    return make


def test_row_10_a_stop_inside_the_budget_finishes_by_length_and_leaks_what_follows() -> None:
    """In sglang 31599, this very vector finished by length at five tokens and leaked 20 and 21."""
    stop = 99
    assert trim([10, 11, stop, 20, 21, 22], 5, {stop}, False) == ([10, 11, stop], "stop")


def test_row_10_a_stop_past_the_budget_lengthens_the_text() -> None:
    assert trim([10, 11, 12, 13, 14, EOS], 5, {EOS}, False) == ([10, 11, 12, 13, 14], "length")


def test_a_stop_on_the_last_token_of_the_budget_is_a_stop() -> None:
    assert trim([10, 11, 12, 13, EOS, 14], 5, {EOS}, False) == ([10, 11, 12, 13, EOS], "stop")


def test_any_of_several_stop_tokens_ends_the_text() -> None:
    assert trim([10, 8, EOS], 5, {EOS, 8}, False) == ([10, 8], "stop")


def test_with_ignore_eos_only_the_budget_counts() -> None:
    assert trim([10, EOS, 11], 5, {EOS}, True) == ([10, EOS, 11], None)


def test_a_stop_token_ends_the_text_where_eos_is_ignored() -> None:
    assert trim([10, EOS, 8, 11], 5, {EOS}, True, (8,)) == ([10, EOS, 8], "stop")


def test_a_stop_token_past_the_budget_does_not_count() -> None:
    assert trim([10, 11, 8], 2, {EOS}, False, (8,)) == ([10, 11], "length")


@pytest.mark.parametrize("position", range(5))
def test_a_stop_token_ends_the_text_before_it_at_any_position_of_four_drafts(make_sequence, position) -> None:
    token_ids = [20, 21, 22, 23, 24]
    token_ids[position] = 30
    sequence = make_sequence(stop_token_ids=(30,))
    done = commit(sequence, Accepted(4, tuple(token_ids)), 4, 4, {EOS})
    # It is among the ids, and counted, as the last token of a stop string is; it is no part of the text.
    assert done.token_ids == tuple(token_ids[: position + 1])
    assert done.text.split() == [f"t{token}" for token in token_ids[:position]]
    assert (done.finish_reason, done.accepted, done.ended) == ("stop", min(position + 1, 4), position < 4)


def test_a_stop_string_before_a_stop_token_wins(make_sequence) -> None:
    sequence = make_sequence(stop=("t20",), stop_token_ids=(21,))
    done = commit(sequence, Accepted(2, (20, 21, 22)), 2, 2, {EOS})
    assert (done.token_ids, done.text) == ((20,), " ")


def test_text_held_back_for_a_stop_string_comes_before_a_stop_token(make_sequence) -> None:
    sequence = make_sequence(stop=("t20 t22",), stop_token_ids=(21,))
    done = commit(sequence, Accepted(2, (20, 21, 22)), 2, 2, {EOS})
    assert (done.token_ids, done.text) == ((20, 21), " t20")


def test_log_probabilities_are_cut_with_the_tokens(make_sequence) -> None:
    entries = tuple(TokenLogprob(token, -1.0) for token in (20, EOS, 22))
    done = commit(make_sequence(), Accepted(2, (20, EOS, 22), logprobs=entries), 2, 2, {EOS})
    assert done.logprobs == entries[:2]


@pytest.mark.parametrize("position", range(5))
def test_row_11_an_eos_amid_accepted_drafts_does_not_end_the_text(make_sequence, position) -> None:
    """In transformers 47912, only an EOS on the last position stopped."""
    token_ids = [20, 21, 22, 23, 24]
    token_ids[position] = EOS
    sequence = make_sequence()
    done = commit(sequence, Accepted(4, tuple(token_ids)), 4, 4, {EOS})
    assert done.token_ids == tuple(token_ids[: position + 1])
    assert sequence.token_ids[3:] == token_ids[: position + 1]
    assert done.finish_reason == "stop"
    # EOS as the second of four accepted drafts: two accepted, and no extra token.
    assert (done.accepted, done.ended) == (min(position + 1, 4), position < 4)


def test_a_rejected_draft_leaves_the_accepted_ones_and_one_more(make_sequence) -> None:
    sequence = make_sequence()
    done = commit(sequence, Accepted(1, (20, 31)), 4, 4, {EOS})
    assert (done.token_ids, done.drafted, done.accepted, done.ended) == ((20, 31), 4, 1, False)
    assert sequence.kv_length == len(sequence.token_ids) - 1


def test_a_budget_used_up_by_a_draft_token_leaves_no_extra_token(make_sequence) -> None:
    done = commit(make_sequence(max_tokens=4), Accepted(3, (20, 21, 22, 23)), 3, 4, {EOS})
    assert (done.token_ids, done.accepted, done.ended, done.finish_reason) == ((20, 21, 22), 3, True, "length")


def test_a_budget_used_up_by_the_extra_token_is_not_ended_inside_the_draft(make_sequence) -> None:
    done = commit(make_sequence(max_tokens=5), Accepted(3, (20, 21, 22, 23)), 3, 4, {EOS})
    assert (done.token_ids, done.ended, done.finish_reason) == ((20, 21, 22, 23), False, "length")


def test_a_stop_string_inside_a_block_ends_the_text_before_it(make_sequence) -> None:
    done = commit(make_sequence(stop=("t21 t22",)), Accepted(4, (20, 21, 22, 23, 24)), 4, 4, {EOS})
    assert done.text == " t20 "
    # Usage counts up to the token that completed the stop string.
    assert (done.token_ids, done.accepted, done.ended, done.finish_reason) == ((20, 21, 22), 3, True, "stop")


def test_a_stop_string_may_span_steps(make_sequence) -> None:
    sequence = make_sequence(stop=("t21 t22",))
    first = commit(sequence, Accepted(1, (20, 21)), 2, 2, {EOS})
    second = commit(sequence, Accepted(2, (22, 23, 24)), 2, 2, {EOS})
    assert (first.text + second.text, first.finish_reason, second.finish_reason) == (" t20 ", None, "stop")
    assert (second.token_ids, second.accepted, second.ended) == ((22,), 1, True)


def test_a_stop_string_on_the_extra_token_is_not_ended_inside_the_draft(make_sequence) -> None:
    done = commit(make_sequence(stop=("t22",)), Accepted(2, (20, 21, 22)), 2, 2, {EOS})
    assert (done.text, done.accepted, done.ended) == (" t20 t21 ", 2, False)


def test_text_held_back_for_a_stop_string_comes_when_the_budget_ends(make_sequence) -> None:
    done = commit(make_sequence(max_tokens=3, stop=("t21 t22",)), Accepted(1, (20, 21)), 1, 1, {EOS})
    assert (done.text, done.finish_reason) == (" t20 t21", "length")


def test_a_stop_string_before_eos_wins(make_sequence) -> None:
    done = commit(make_sequence(stop=("t20",)), Accepted(2, (20, EOS, 24)), 2, 2, {EOS})
    assert (done.token_ids, done.text, done.finish_reason) == ((20,), " ", "stop")


def test_a_stop_string_before_min_tokens_is_plain_text(make_sequence) -> None:
    done = commit(make_sequence(stop=("t20", "t22"), min_tokens=3), Accepted(3, (20, 21, 22, 23)), 3, 3, {EOS})
    assert (done.text, done.token_ids) == (" t20 t21 ", (20, 21, 22))


def test_the_token_of_prefill_belongs_to_no_step(make_sequence) -> None:
    sequence = make_sequence(completion=())
    done = commit(sequence, Accepted(0, (20,)), 0, 0, {EOS})
    assert done.from_prefill
    assert (sequence.spec_steps, sequence.plain_steps, sequence.verify_positions) == (0, 0, 0)


def test_row_35_tokens_behind_an_accepted_eos_are_counted(make_sequence) -> None:
    """In vllm 56101, [d1, d2, EOS, d4, d5, bonus] was counted as six emitted tokens."""
    sequence = make_sequence()
    commit(sequence, Accepted(0, (20,)), 0, 0, {EOS})
    commit(sequence, Accepted(1, (21, 22)), 3, 3, {EOS})
    commit(sequence, Accepted(5, (23, 24, EOS, 25, 26, 27)), 5, 5, {EOS})
    assert (sequence.plain_steps, sequence.spec_steps) == (1, 2)
    assert (sequence.draft_tokens, sequence.accepted_tokens, sequence.verify_positions) == (8, 4, 11)
    assert (sequence.max_k, sequence.completion_length) == (5, 7)


def test_probabilities_of_positions_behind_the_end_are_cut_off(make_sequence) -> None:
    """The verdict examined four; the text ends on the second."""
    accepted = Accepted(3, (20, EOS, 22, 23), (0.9, 0.8, 0.7, 0.1))
    assert commit(make_sequence(), accepted, 4, 4, {EOS}).acceptance == (0.9, 0.8)


def test_the_probability_of_a_rejected_position_stays(make_sequence) -> None:
    assert commit(make_sequence(), Accepted(1, (20, 31), (0.9, 0.1)), 4, 4, {EOS}).acceptance == (0.9, 0.1)
