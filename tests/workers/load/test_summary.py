from typing import Any

import pytest

from workers.load.events import RequestEvent, SpeculationCounts
from workers.load.summary import repeated_ngram_share, summarise


def event(**fields: Any) -> RequestEvent:
    defaults: dict[str, Any] = {"index": 0, "cohort": "a", "status": "ok", "started_at": 10.0, "ended_at": 12.0}
    return RequestEvent(**{**defaults, **fields})


def test_time_to_first_token_counts_from_the_send() -> None:
    assert event(first_text_at=10.5).ttft_s == 0.5


def test_time_per_output_token_leaves_the_first_token_out() -> None:
    assert event(first_text_at=11.0, completion_tokens=11).tpot_s == pytest.approx(0.1)


@pytest.mark.parametrize("fields", [{"completion_tokens": 1}, {"completion_tokens": 9, "status": "cancelled"}])
def test_time_per_output_token_needs_two_tokens_of_a_whole_answer(fields: dict[str, Any]) -> None:
    assert event(first_text_at=11.0, **fields).tpot_s is None


def test_tokens_per_second_are_over_the_whole_run() -> None:
    summary = summarise(
        [
            event(cohort="a", completion_tokens=30),
            event(cohort="b", started_at=12.0, ended_at=20.0, completion_tokens=70),
        ]
    )
    assert summary.seconds == 10.0
    assert [row.tokens_per_s for row in summary.cohorts] == [3.0, 7.0]
    assert summary.total.tokens_per_s == 10.0


def test_percentiles_are_interpolated_between_observations() -> None:
    events = [event(first_text_at=10.0 + ttft) for ttft in (0.1, 0.2, 0.3, 0.4, 0.5)]
    ttft = summarise(events).total.ttft_s
    assert ttft.p50 == pytest.approx(0.3)
    assert ttft.p95 == pytest.approx(0.48)


def test_acceptance_length_is_one_and_the_accepted_per_drafting_step_of_all_requests() -> None:
    events = [
        event(completion_tokens=12, speculation=SpeculationCounts(spec_steps=4, draft_tokens=16, accepted_tokens=7)),
        event(completion_tokens=3, speculation=SpeculationCounts(spec_steps=1, draft_tokens=4, accepted_tokens=1)),
    ]
    assert summarise(events).total.acceptance_length == 1 + 8 / 5


def test_mean_k_counts_steps_without_a_draft_as_zero() -> None:
    # 1 token of prefill, 2 drafting steps that keep 3 of 8, 5 plain steps: 1 + 3 + 2 + 5 tokens.
    counts = SpeculationCounts(spec_steps=2, draft_tokens=8, accepted_tokens=3)
    assert summarise([event(completion_tokens=11, speculation=counts)]).total.mean_k == pytest.approx(8 / 7)


def test_a_cohort_that_never_drafts_has_mean_k_zero_and_no_acceptance_length() -> None:
    total = summarise([event(completion_tokens=5, speculation=SpeculationCounts(0, 0, 0))]).total
    assert (total.mean_k, total.acceptance_length) == (0.0, None)


def test_an_answer_without_drafts_counts_as_k_zero_where_the_server_tells_of_others() -> None:
    drafted = event(
        completion_tokens=11, speculation=SpeculationCounts(spec_steps=5, draft_tokens=20, accepted_tokens=5)
    )
    total = summarise([drafted, event(completion_tokens=11)]).total
    assert total.mean_k == pytest.approx(20 / (5 + 10))
    assert total.acceptance_length == 2.0


def test_what_the_server_does_not_say_stays_unknown() -> None:
    total = summarise([event(completion_tokens=5)]).total
    assert (total.mean_k, total.acceptance_length) == (None, None)


def test_errors_cancellations_and_throttling_are_counted_apart() -> None:
    total = summarise([event(), event(status="error"), event(status="cancelled", throttled=2)]).total
    assert (total.requests, total.errors, total.cancelled, total.throttled) == (3, 1, 1, 2)


def test_a_cohort_of_the_mix_is_listed_though_nothing_was_seen_of_it() -> None:
    assert [row.cohort for row in summarise([event(cohort="b")], ("a", "b")).cohorts] == ["a", "b"]


def test_a_run_without_requests_has_a_summary() -> None:
    total = summarise([], ("a",)).total
    assert (total.requests, total.tokens_per_s, total.ttft_s.p50) == (0, 0.0, None)


def test_a_text_without_repetition_repeats_nothing() -> None:
    assert repeated_ngram_share([" ".join(map(str, range(20)))]) == 0.0


def test_the_share_counts_every_ngram_that_came_before() -> None:
    # 16 words have 9 8-grams; the last is the first again.
    text = "a b c d e f g h a b c d e f g h"
    assert repeated_ngram_share([text]) == pytest.approx(1 / 9)


def test_punctuation_is_a_word_of_its_own() -> None:
    assert repeated_ngram_share(['{"a":1},{"a":1},'], n=4) == pytest.approx(5 / 13)


def test_two_answers_that_are_alike_are_no_repetition() -> None:
    text = "one two three four five six seven eight nine"
    assert repeated_ngram_share([text, text]) == 0.0


def test_texts_too_short_for_an_ngram_say_nothing() -> None:
    assert repeated_ngram_share(["too short"]) is None
