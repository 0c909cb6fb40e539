"""The check that runs beside every test of the workers (tests/workers/conftest.py) finds what does not add up."""

from __future__ import annotations

from dataclasses import replace

import pytest


@pytest.fixture
def chunks(make_engine, ask, prompts):
    """Of one request: prefill's token, steps of which some keep drafts, and the record."""
    engine = make_engine(3, "close", eos=())
    engine.submit(ask(prompts[5], max_tokens=20))
    seen = []
    while engine.has_work:
        seen += engine.step()
    return seen


def with_step(chunks, at, drafted, accepted):
    """What the chunk `at` says of its step changed by so much."""
    ((d, a),) = chunks[at].steps
    return [*chunks[:at], replace(chunks[at], steps=((d + drafted, a + accepted),)), *chunks[at + 1 :]]


def with_record(chunks, **changes):
    record = chunks[-1].record
    return [*chunks[:-1], replace(chunks[-1], record=replace(record, **{
        name: getattr(record, name) + by for name, by in changes.items()
    }))]  # fmt: skip


def test_it_sees_every_request(counting, chunks) -> None:
    before = counting.checked
    assert before > 0
    assert not counting.faults_of(chunks)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (lambda chunks: with_step(chunks, 1, 1, 0), "proposed"),
        (lambda chunks: with_step(chunks, 1, 0, -1), "tokens by steps"),
        (lambda chunks: with_record(chunks, completion_tokens=1), "completion_tokens"),
        (lambda chunks: with_record(chunks, draft_tokens=1), "proposed on the wire"),
        (lambda chunks: with_record(chunks, accepted_tokens=1), "correct"),
        (lambda chunks: with_record(chunks, spec_steps=1), "spec_steps"),
        (lambda chunks: with_record(chunks, plain_steps=1), "plain_steps"),
    ],
)
def test_it_names_what_does_not_add_up(counting, chunks, changed, named) -> None:
    assert any(fault.startswith(f"{named}:") for fault in counting.faults_of(changed(chunks)))


def test_a_block_on_the_wire_that_disagrees_is_named(counting, chunks, monkeypatch) -> None:
    import workers.api_responses

    real = workers.api_responses.speculation_of

    def wrong(*arguments, **named):
        metrics = real(*arguments, **named)
        metrics["speculative_decoding"]["acceptance_histogram"][0] += 1
        metrics["speculative_decoding"]["mean_acceptance_length"] += 0.01
        return metrics

    monkeypatch.setattr(workers.api_responses, "speculation_of", wrong)
    named = {fault.split(":")[0] for fault in counting.faults_of(chunks)}
    assert {"accept length", "sum of the histogram"} <= named
