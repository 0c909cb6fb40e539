"""Log-probabilities are the target's own, one of each token that a client is billed, and the same in any batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import workers.scheduler
from workers.logprobs import RowsToMeasure, measure, most_likely, read
from workers.sequence import TokenLogprob

K = {"default": 2, "a": 4, "b": 8}
PROPOSERS = ["ngram", "close", "target", "eagle"]
SEEDED = {"temperature": 1.2, "seed": 9}
ADJUSTED = SEEDED | {"repetition_penalty": 1.5, "logit_bias": ((5, 8.0),), "min_p": 0.05, "min_tokens": 6}


def of_rows(logits, chosen, num_top):
    return read(measure(logits, torch.tensor(chosen), num_top), chosen, num_top)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_they_are_those_of_a_log_softmax(dtype) -> None:
    logits = (torch.randn(7, 3000, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    exact = torch.log_softmax(logits.double(), -1)
    for row, found in enumerate(of_rows(logits, [11 * i for i in range(7)], 4)):
        assert found.logprob == pytest.approx(float(exact[row, 11 * row]), abs=2e-6)
        assert [value for _, value in found.top] == pytest.approx(exact[row].topk(4).values.tolist(), abs=2e-6)
        assert [float(exact[row, i]) for i, _ in found.top] == pytest.approx([v for _, v in found.top], abs=2e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=5), st.integers(0, 20), st.integers(0, 99))
def test_a_row_does_not_depend_on_the_rows_beside_it(num_rows, cuts, num_top, seed) -> None:
    logits = torch.randn(num_rows, 77, generator=torch.Generator().manual_seed(seed)).bfloat16()
    chosen = [(5 * i) % 77 for i in range(num_rows)]
    bounds = sorted({0, num_rows, *(min(cut, num_rows) for cut in cuts)})
    pieces = [of_rows(logits[a:b], chosen[a:b], num_top) for a, b in itertools.pairwise(bounds)]
    assert [row for piece in pieces for row in piece] == of_rows(logits, chosen, num_top)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-3.0, -0.0, 0.0, 0.5, 2.0, -math.inf]), min_size=1, max_size=40), st.integers(0, 20))
def test_of_equal_ones_the_lowest_token_comes_first(values, n) -> None:
    n = min(n, len(values))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]
    assert most_likely(torch.tensor([values]), n)[0].tolist() == expected


def test_the_list_is_as_long_as_it_was_asked_to_be() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    measured = measure(logits, torch.tensor([0, 1, 2]), 4)
    assert [[len(r.top) for r in read(measured, [0, 1, 2], n)] for n in (0, 1, 4)] == [[0] * 3, [1] * 3, [4] * 3]
    # There are no more than the vocabulary has.
    assert [len(r.top) for r in of_rows(logits, [0, 1, 2], 20)] == [5] * 3


def test_rows_that_emit_nothing_change_nothing() -> None:
    """On a device all rows are measured, because nobody knows yet which of them emit a token."""
    logits = torch.randn(9, 30, generator=torch.Generator().manual_seed(2))
    token_ids = torch.tensor([[4, 5, -1, -1], [6, -1, -1, -1], [1, 2, 3, 4]])
    emitted, num_top = [(4, 5), (6,), (1, 2, 3, 4)], [2, None, 0]
    rows_of = [range(3), range(3, 5), range(5, 9)]
    answers = []
    for known in ([1, 0, 3], None):
        rows = RowsToMeasure.of(num_top, rows_of, known)
        measured = rows.measure(logits, token_ids)
        answers.append([rows.read(b, emitted[b], measured) for b in range(3)])
    assert answers[0] == answers[1]
    assert [[entry.token_id for entry in of] for of in answers[0]] == [[4, 5], [], [1, 2, 3, 4]]


def own_logprobs(own_logits, prompt, emitted):
    """[n, vocab], of the tokens behind the prompt."""
    return torch.log_softmax(own_logits([prompt + emitted])[0, len(prompt) - 1 : -1].double(), -1)


@pytest.mark.parametrize("proposer", ["none", "ngram", "target"])
@pytest.mark.parametrize("sampling", [{}, ADJUSTED], ids=["greedy", "adjusted"])
def test_row_23_log_probabilities_are_zero_or_missing_with_drafts(
    make_engine, ask, drain, prompts, own_logits, proposer, sampling
) -> None:
    """They were 0.0, or missing, with speculation on (llama.cpp 27972, vllm 17876). Wishes do not change them."""
    engine = make_engine(4, proposer, eos=())
    engine.submit(ask(prompts[12], logprobs=3, **sampling))
    done = drain(engine)["r"]
    own = own_logprobs(own_logits, prompts[12], done.token_ids)
    assert [entry.token_id for entry in done.logprobs] == done.token_ids
    for row, entry in zip(own, done.logprobs, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert [i for i, _ in entry.top] == row.topk(3).indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("sampling", [{}, ADJUSTED], ids=["greedy", "adjusted"])
def test_they_are_the_same_bit_for_bit_for_every_k_drafter_and_batch_mate(
    make_engine, ask, drain, prompts, sampling
) -> None:
    some = prompts[::2]

    def all_of(engine, together):
        for i, prompt in enumerate(some):
            cohort = ("default", "a", "b")[i % 3]
            asked = {"logprobs": (0, 5, 20)[i % 3], "prompt_logprobs": (None, 2)[i % 2]}
            engine.submit(ask(prompt, f"{i}", cohort=cohort, max_tokens=12, **asked, **sampling))
            if not together:
                yield from drain(engine).values()
        if together:
            done = drain(engine)
            yield from (done[f"{i}"] for i in range(len(some)))

    plain = [(d.token_ids, d.logprobs, d.prompt_logprobs) for d in all_of(make_engine(0, "none"), together=False)]
    for proposer in PROPOSERS:
        found = all_of(make_engine(K, proposer), together=True)
        assert [(d.token_ids, d.logprobs, d.prompt_logprobs) for d in found] == plain


def test_nobody_who_does_not_ask_has_any(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(4, "target")
    engine.submit(ask(prompts[3], "asks", logprobs=0))
    engine.submit(ask(prompts[3], "does not"))
    done = drain(engine)
    assert done["does not"].logprobs == done["does not"].prompt_logprobs == []
    assert len(done["asks"].logprobs) == len(done["does not"].token_ids)


@pytest.mark.parametrize("place", range(1, 7))
@pytest.mark.parametrize("how", ["eos", "stop_token", "stop_string", "max_tokens"])
def test_row_11_text_goes_on_past_an_end_inside_a_block(
    make_engine, ask, drain, prompts, tokenizer, how, place
) -> None:
    """With a drafter that is always right and K = 5, the end falls inside a block, on its last draft, on the extra
    token, or on the first of all.
    """
    prompt = prompts[4]
    free = make_engine(0, "none", eos=())
    free.submit(ask(prompt, max_tokens=8, logprobs=1))
    whole = drain(free)["r"]
    token = whole.token_ids[place]
    # "t2" is the beginning of "t26", too.
    is_end = [str(i).startswith(str(token)) if how == "stop_string" else i == token for i in whole.token_ids]
    length = is_end.index(True) + 1
    asked = {
        "eos": {},
        "stop_token": {"stop_token_ids": (token,)},
        "stop_string": {"stop": (f"t{token}",)},
        "max_tokens": {"max_tokens": length},
    }[how]
    engine = make_engine(5, "target", eos=(token,) if how == "eos" else ())
    engine.submit(ask(prompt, logprobs=1, **asked))
    done = drain(engine)["r"]
    assert done.token_ids == whole.token_ids[:length]
    assert done.logprobs == whole.logprobs[:length]
    assert done.record.completion_tokens == length
    shown = length - (how in ("stop_token", "stop_string"))
    assert done.text.split() == tokenizer.decode(whole.token_ids[:shown]).split()
    assert done.record.finish_reason == ("length" if how == "max_tokens" else "stop")


def test_a_prompts_tokens_have_theirs(make_engine, ask, drain, prompts, own_logits) -> None:
    for i in (0, 4, 10):  # of 1 token, of 8, and of 150: more than one chunk
        engine = make_engine(4, "ngram")
        engine.submit(ask(prompts[i], prompt_logprobs=2, max_tokens=3))
        first, *rest = drain(engine)["r"].prompt_logprobs
        assert first is None
        own = own_logprobs(own_logits, prompts[i][:1], prompts[i][1:])
        assert [entry.token_id for entry in rest] == prompts[i][1:]
        for row, entry in zip(own, rest, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            assert [value for _, value in entry.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


def test_they_come_once_with_the_first_chunk(make_engine, ask, prompts) -> None:
    engine = make_engine(2, "ngram", eos=())
    engine.submit(ask(prompts[10], prompt_logprobs=0, max_tokens=9))
    lengths = []
    while engine.has_work:
        lengths += [len(chunk.prompt_logprobs) for chunk in engine.step()]
    assert lengths == [len(prompts[10])] + [0] * (len(lengths) - 1)


@pytest.mark.parametrize("chunk", [32, 64, 256])
def test_a_prompts_do_not_depend_on_how_it_is_cut(make_engine, ask, drain, prompts, chunk, monkeypatch) -> None:
    def scored():
        engine = make_engine(0, "none")
        engine.submit(ask(prompts[10], prompt_logprobs=3, max_tokens=2, logprobs=1))
        done = drain(engine)["r"]
        return done.prompt_logprobs, done.token_ids, done.logprobs

    whole = scored()
    monkeypatch.setattr(workers.scheduler, "PREFILL_CHUNK", chunk)
    assert scored() == whole


def test_asking_for_the_prompts_changes_nothing_else(make_engine, ask, drain, prompts) -> None:
    engine = make_engine(4, "ngram")
    engine.submit(ask(prompts[10], "asks", prompt_logprobs=0, logprobs=0))
    engine.submit(ask(prompts[10], "does not", logprobs=0))
    done = drain(engine)
    assert done["asks"].token_ids == done["does not"].token_ids
    assert done["asks"].logprobs == done["does not"].logprobs


@pytest.mark.parametrize("index", [0, 4, 10])
def test_a_prompt_may_be_scored_without_generating_anything(make_engine, ask, drain, prompts, index) -> None:
    engine = make_engine(4, "ngram")
    engine.submit(ask(prompts[index], "score", max_tokens=0, prompt_logprobs=1))
    engine.submit(ask(prompts[index], "both", max_tokens=4, prompt_logprobs=1))
    done = drain(engine)
    score, record = done["score"], done["score"].record
    assert (score.token_ids, score.text, score.chunks) == ([], "", 1)
    assert score.prompt_logprobs == done["both"].prompt_logprobs
    assert (record.finish_reason, record.completion_tokens, record.ttft_s, record.tpot_s) == ("length", 0, None, None)
    assert record.prefill_positions == len(prompts[index])
    assert engine.tables.used == 0
    (cohort,) = engine.close_window().cohorts
    # Billed are the tokens of the other one alone.
    assert sum(use.emitted_tokens for use in cohort.tenants) == done["both"].record.completion_tokens


def test_an_entry_says_what_it_is() -> None:
    entry = of_rows(torch.tensor([[0.0, math.log(3.0)]]), [0], 1)[0]
    assert isinstance(entry, TokenLogprob)
    assert entry.logprob == pytest.approx(math.log(0.25), abs=1e-6)
    assert entry.top[0] == (1, pytest.approx(math.log(0.75), abs=1e-6))
