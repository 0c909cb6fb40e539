"""Every count adds up, on every request, whatever happens meanwhile: K moves, requests are cancelled, texts stop."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from controlplane.telemetry import merge_cohorts
from controlplane.window_problems import window_problem
from workers.plan_client import constant_plan

EOS = (2, 5, 7)
COHORTS = ("default", "a", "b")
LADDER = (0, 1, 2, 4, 8)


def draw_request(ask, numbers, n):
    prompt = [numbers.randrange(8, 40) for _ in range(numbers.choice([1, 4, 9, 30, 140]))]
    sampling = {
        "max_tokens": numbers.choice([1, 2, 7, 20, 40]),
        "temperature": numbers.choice([0.0, 0.7, 1.3]),
        "seed": numbers.choice([None, n]),
        "top_p": numbers.choice([1.0, 0.9]),
        "top_k": numbers.choice([0, 5]),
        "stop": numbers.choice([(), ("t9",), ("t17", "t30 t"), ("4 t1",)]),
        "ignore_eos": numbers.random() < 0.3,
        "min_tokens": numbers.choice([0, 0, 3]),
    }
    request = ask(prompt + prompt[: len(prompt) // 2], f"{n}", cohort=numbers.choice(COHORTS), **sampling)
    return replace(request, tenant=(None, "x", "y")[n % 3])


class Outcome:
    """Everything that came out of an engine: requests, chunks and records by id, and the windows."""

    def __init__(self, engine, requests, numbers, cancelled=0.0):
        self.engine = engine
        self.requests = {r.request_id: r for r in requests}
        self.chunks = defaultdict(list)
        self.windows = []
        waiting = list(requests)
        while waiting or engine.has_work:
            if waiting and numbers.random() < 0.4:
                engine.submit(waiting.pop())
            if numbers.random() < 0.2:
                engine.plan_client.plan = constant_plan(numbers.choice(LADDER), COHORTS)
            if numbers.random() < cancelled and engine.has_work:
                self._keep([engine.cancel(numbers.choice(list(engine._sequences)))])
            self._keep(engine.step())
            if numbers.random() < 0.05:
                self.windows.append(engine.close_window())
        self.windows.append(engine.close_window())

    def _keep(self, chunks):
        for chunk in chunks:
            if chunk is not None:
                self.chunks[chunk.request_id].append(chunk)

    @property
    def records(self):
        return {i: chunks[-1].record for i, chunks in self.chunks.items()}

    def token_ids(self, request_id):
        return [t for chunk in self.chunks[request_id] for t in chunk.token_ids]

    def text(self, request_id):
        return "".join(chunk.text for chunk in self.chunks[request_id])

    def cohort_records(self):
        by_cohort = defaultdict(list)
        for record in self.records.values():
            by_cohort[record.cohort].append(record)
        return by_cohort


@pytest.fixture(scope="module", params=["ngram", "close", "eagle"])
def outcome(make_engine, ask, request) -> Outcome:
    numbers = random.Random(3)
    requests = [draw_request(ask, numbers, n) for n in range(120)]
    return Outcome(make_engine(4, request.param, slots=6, eos=EOS), requests, numbers, cancelled=0.03)


def test_the_mix_reaches_what_it_should(outcome) -> None:
    """Else the tests below would prove little."""
    reasons = Counter(r.finish_reason for r in outcome.records.values())
    assert len(outcome.requests) == len(outcome.records)
    assert all(reasons[reason] >= 5 for reason in ("stop", "length", "cancelled"))
    accepted = sum(r.accepted_tokens for r in outcome.records.values())
    ended = sum(is_ended(chunks[-1]) for chunks in outcome.chunks.values())
    # EAGLE's weights here are random: what it drafts is nearly always wrong.
    least = {"ngram": (10, 0), "eagle": (10, 0)}.get(outcome.engine.proposer.name, (200, 10))
    assert accepted >= least[0]
    assert ended >= least[1]
    assert len(outcome.windows) > 3


def is_ended(chunk):
    """Generation ended inside a draft: no extra token."""
    return bool(chunk.steps) and len(chunk.token_ids) == chunk.steps[0][1]


def test_each_step_gives_its_accepted_tokens_and_one_more(outcome) -> None:
    for chunks in outcome.chunks.values():
        for chunk in chunks:
            for _, accepted in chunk.steps:
                assert len(chunk.token_ids) == accepted + (not is_ended(chunk))


def test_only_the_last_step_may_end_inside_its_draft(outcome) -> None:
    for chunks in outcome.chunks.values():
        assert not any(is_ended(chunk) for chunk in chunks[:-1])


def test_row_35_committed_tokens_do_not_add_up_to_the_usage(outcome) -> None:
    for request_id, record in outcome.records.items():
        chunks = outcome.chunks[request_id]
        assert record.completion_tokens == len(outcome.token_ids(request_id))
        if record.completion_tokens:
            steps = record.accepted_tokens + record.spec_steps + record.plain_steps
            assert record.completion_tokens == 1 + steps - is_ended(chunks[-1])


def test_row_37_drafted_and_accepted_tokens_do_not_add_up(outcome) -> None:
    for request_id, record in outcome.records.items():
        steps = [s for chunk in outcome.chunks[request_id] for s in chunk.steps]
        histogram = Counter(accepted for drafted, accepted in steps if drafted)
        assert sum(histogram.values()) == record.spec_steps
        assert sum(i * n for i, n in histogram.items()) == record.accepted_tokens
        assert record.draft_tokens == sum(drafted for drafted, _ in steps)
        assert record.plain_steps == sum(drafted == 0 for drafted, _ in steps)
        assert record.verify_positions == sum(drafted + 1 for drafted, _ in steps)
        assert record.max_k == max((drafted for drafted, _ in steps), default=0)


def test_a_prompt_is_computed_once(outcome) -> None:
    for record in outcome.records.values():
        if record.completion_tokens:
            assert record.prefill_positions == record.prompt_tokens
        else:
            assert record.prefill_positions <= record.prompt_tokens


def test_windows_add_up_to_the_requests(outcome) -> None:
    windows = merge_cohorts(c for w in outcome.windows for c in w.cohorts)
    for cohort, records in outcome.cohort_records().items():
        window = windows[cohort]
        assert window.emitted_tokens == sum(r.completion_tokens for r in records)
        for count in (
            "spec_steps", "plain_steps", "draft_tokens", "accepted_tokens",
            "prefill_positions", "verify_positions", "draft_positions",
        ):  # fmt: skip
            assert getattr(window, count) == sum(getattr(r, count) for r in records), count
        assert window.first_tokens == sum(r.completion_tokens > 0 for r in records)
        assert window.requests_started == len(records)
        assert window.requests_failed == sum(r.finish_reason == "cancelled" for r in records)
        assert window.requests_finished == len(records) - window.requests_failed


def test_tenants_add_up_to_their_requests(outcome) -> None:
    windows = merge_cohorts(c for w in outcome.windows for c in w.cohorts)
    for cohort, records in outcome.cohort_records().items():
        for use in windows[cohort].tenants:
            theirs = [r for r in records if r.tenant == use.tenant]
            assert use.emitted_tokens == sum(r.completion_tokens for r in theirs)
            assert use.input_tokens == sum(r.prompt_tokens for r in theirs if r.prefill_positions)
            assert use.requests == len(theirs)
            for count in (
                "prefill_positions", "verify_positions", "draft_positions", "draft_tokens", "accepted_tokens",
            ):  # fmt: skip
                assert getattr(use, count) == sum(getattr(r, count) for r in theirs), count


def test_what_the_engine_counts_is_let_in(outcome) -> None:
    assert [window_problem(w) for w in outcome.windows] == [None] * len(outcome.windows)


def test_the_text_is_that_of_the_tokens_up_to_the_stop_string(outcome, tokenizer) -> None:
    for request_id, request in outcome.requests.items():
        if outcome.records[request_id].finish_reason == "cancelled":
            continue
        prompt = list(request.prompt_token_ids)
        whole = tokenizer.decode(prompt + outcome.token_ids(request_id))[len(tokenizer.decode(prompt)) :]
        text = outcome.text(request_id)
        assert whole.startswith(text)
        stops = [s for s in request.sampling.stop if whole[len(text) :].startswith(s)]
        assert text == whole or stops
        if request.sampling.min_tokens == 0:
            assert not any(s in text for s in request.sampling.stop)


def test_nothing_follows_eos_and_nothing_exceeds_the_budget(outcome) -> None:
    for request_id, request in outcome.requests.items():
        token_ids, sampling = outcome.token_ids(request_id), request.sampling
        assert len(token_ids) <= sampling.max_tokens
        if not sampling.ignore_eos:
            assert not set(token_ids[:-1]) & set(EOS)
        assert not set(token_ids[: sampling.min_tokens]) & set(EOS)
        if outcome.records[request_id].finish_reason == "length":
            assert len(token_ids) == sampling.max_tokens


def test_what_was_held_is_given_back(outcome) -> None:
    proposer = outcome.engine.proposer
    assert outcome.engine.tables.used == 0
    if proposer.name == "ngram":
        assert proposer._known == {}
    else:
        assert (proposer._states, proposer._slots.used) == ({}, 0)


def test_reproducible_texts_are_those_of_plain_decoding(outcome, make_engine, drain) -> None:
    engine = make_engine(0, "none", slots=6, eos=EOS)
    expected = {i: r for i, r in outcome.requests.items() if r.sampling.temperature == 0 or r.sampling.seed is not None}
    for request in expected.values():
        engine.submit(request)
    plain = drain(engine)
    for request_id in expected:
        cancelled = outcome.records[request_id].finish_reason == "cancelled"
        token_ids = plain[request_id].token_ids
        assert outcome.token_ids(request_id) == token_ids[: len(outcome.token_ids(request_id)) if cancelled else None]
