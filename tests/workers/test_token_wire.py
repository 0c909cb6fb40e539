"""What a worker sends is what an endpoint reads, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.telemetry import RequestRecord
from workers.sequence import Chunk, TokenLogprob
from workers.token_wire import FrameReader, WireError, decode, encode, framed

numbers = st.integers(0, 2**31)
floats = st.floats(allow_nan=False)
scores = st.builds(TokenLogprob, numbers, floats, st.lists(st.tuples(numbers, floats), max_size=3).map(tuple))
records = st.builds(
    RequestRecord,
    **dict.fromkeys(("request_id", "worker", "model", "drafter", "cohort", "route"), st.text()),
    tenant=st.none() | st.text(),
    **dict.fromkeys(("ttft_s", "tpot_s"), st.none() | floats),
    **dict.fromkeys(("started_at", "finished_at"), floats),
)
chunks = st.builds(
    Chunk,
    request_id=st.text(),
    token_ids=st.lists(numbers, max_size=5).map(tuple),
    text=st.text(st.characters(codec=None)),  # half of a pair that stands for one character, too
    steps=st.lists(st.tuples(numbers, numbers), max_size=2).map(tuple),
    finish_reason=st.sampled_from((None, "stop", "length", "cancelled", "error")),
    record=st.none() | records,
    error=st.none() | st.text(),
    logprobs=st.lists(scores, max_size=3).map(tuple),
    prompt_logprobs=st.lists(st.none() | scores, max_size=3).map(tuple),
    prediction=st.tuples(numbers, numbers),
    queue_s=st.none() | floats,
    cached_tokens=numbers,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(chunks, max_size=4), st.integers(1, 50))
def test_chunks_come_out_as_they_went_in_however_they_are_cut(sent: list[Chunk], size: int) -> None:
    data = encode(sent) + encode(sent[:1])
    reader = FrameReader()
    frames = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
    assert [decode(frame) for frame in frames] == [sent, sent[:1]]


def test_most_chunks_are_an_id_a_token_and_its_text() -> None:
    assert encode([Chunk("r", (7,), "a")])[4:] == b'[["r",[7],"a"]]'


@pytest.mark.parametrize("payload", [b"", b"{}x", b"[[1]]", b"[3]", b"\xff", b'[["r",[1],"t",[[1]]]]'])
def test_what_is_no_frame_of_chunks_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode(payload)


def test_a_frame_that_says_it_is_too_long_is_refused_before_it_is_there() -> None:
    with pytest.raises(WireError, match="at most 8"):
        list(FrameReader(most=8).feed(framed(b"123456789")[:5]))
