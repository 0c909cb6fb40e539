"""Symptoms that other engines' users reported of an engine's steps, each as a test; docs/symptoms.md has them all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import workers.proposers.growth
import workers.verifier
from workers.commit import commit
from workers.detokenizer import Detokenizer
from workers.plan_client import constant_plan
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.verifier import Accepted


def text_of(engine: Any, ask: Any, drain: Any, prompt: Any, **sampling: Any) -> list[int]:
    engine.submit(ask(prompt, **sampling))
    token_ids: list[int] = drain(engine)["r"].token_ids
    return token_ids


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle"])
def test_row_4_streams_drop_while_k_flips_from_step_to_step(
    make_engine, ask, drain, prompts, collect, proposer
) -> None:
    engine, plain = make_engine(3, proposer), make_engine(0, "none")
    out: dict[str, Any] = {}
    for each in (engine, plain):
        for i, prompt in enumerate(prompts[:8]):
            each.submit(ask(prompt, f"{i}"))
    version = 0
    while engine.has_work:
        version += 1
        engine.plan_client.plan = constant_plan(5 if version % 2 else 3, ["default"])
        collect(out, engine.step())
    expected = drain(plain)
    assert {name: d.text for name, d in out.items()} == {name: d.text for name, d in expected.items()}
    assert not any(d.error for d in out.values())


STOP = 30


@pytest.mark.parametrize("how", ["eos", "stop_token"])
def test_row_10_a_stop_token_amid_a_block_that_fills_the_budget_is_passed_over(tokenizer, how) -> None:
    """[10, 11, STOP, 20, 21, 22] with max_new_tokens 5: it finished by length at five, and 20 and 21 were sent."""
    sampling = SamplingParams(5, stop_token_ids=(STOP,) if how == "stop_token" else ())
    request = EngineRequest("r", (3, 4), sampling, "default")
    sequence = Sequence(request, [3, 4], 0, Detokenizer(tokenizer, (), request.prompt_token_ids))
    eos = {STOP} if how == "eos" else set()
    commit(sequence, Accepted(0, (10,)), 0, 0, eos)
    done = commit(sequence, Accepted(4, (11, STOP, 20, 21, 22)), 4, 4, eos)
    assert (sequence.token_ids[2:], done.finish_reason) == ([10, 11, STOP], "stop")
    assert (done.token_ids, done.accepted, done.ended) == ((11, STOP), 2, True)
    assert "t20" not in done.text


@pytest.mark.parametrize("position", range(5))
def test_row_11_an_eos_amid_a_draft_is_streamed_with_what_follows_it(make_engine, ask, prompts, position) -> None:
    """At each position of a draft of four, and as the bonus token."""
    free = make_engine(0, "none", eos=())
    free.submit(ask(prompts[4], max_tokens=12))
    text = [t for _ in range(12) for chunk in free.step() for t in chunk.token_ids]
    eos = text[1 + position]
    length = text.index(eos) + 1
    engine = make_engine(4, "target", eos=(eos,))
    engine.submit(ask(prompts[4], max_tokens=40))
    streamed = []
    while engine.has_work:
        streamed += [(chunk.token_ids, chunk.finish_reason) for chunk in engine.step()]
    assert [t for token_ids, _ in streamed for t in token_ids] == text[:length]
    assert [reason for _, reason in streamed if reason] == ["stop"]
    assert streamed[-1][1] == "stop"


def test_row_13_details_of_the_usage_count_tokens_past_an_eos(make_engine, ask, drain, prompts) -> None:
    """Reasoning tokens were more than the completion had; here it is tokens of a prediction that could be."""
    text = text_of(make_engine(0, "none", eos=()), ask, drain, prompts[4], max_tokens=20)
    eos = next(t for i, t in enumerate(text) if i >= 6 and t not in text[:i])
    engine = make_engine(8, "ngram", eos=(eos,))
    engine.submit(replace(ask(prompts[4], max_tokens=60), prediction=tuple(text)))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    completion = chunks[-1].record.completion_tokens
    assert completion == text.index(eos) + 1
    kept = sum(chunk.prediction[0] for chunk in chunks)
    assert 0 < kept == sum(accepted for chunk in chunks for _, accepted in chunk.steps) < completion


@pytest.fixture
def laws(monkeypatch):
    """What every drafted token was drawn from as it was drawn, and what the verifier is told that it was."""
    drawn: list[tuple[int, torch.Tensor]] = []
    told: list[tuple[int, torch.Tensor]] = []
    draw, verify = workers.proposers.growth.draw_children, workers.verifier.verify_chain

    def watched_draw(*arguments: Any) -> Any:
        found = draw(*arguments)
        drawn.extend((token, found.limited[0].clone()) for token in found.tokens.tolist())
        return found

    def watched_verify(logits: Any, token_ids: Any, draft_logits: Any, *arguments: Any, **named: Any) -> Any:
        if draft_logits is not None:
            told.extend(zip(token_ids.tolist(), draft_logits.clone(), strict=True))
        return verify(logits, token_ids, draft_logits, *arguments, **named)

    monkeypatch.setattr(workers.proposers.growth, "draw_children", watched_draw)
    monkeypatch.setattr(workers.verifier, "verify_chain", watched_verify)
    return drawn, told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("proposer", ["draft", "close", "eagle", "medusa"])
def test_row_15_the_law_that_verification_is_told_is_not_the_one_that_drafts_were_drawn_from(
    make_engine, ask, drain, prompts, proposer, dtype, laws
) -> None:
    """Logits from before the processors, of another type, or without the temperature."""
    wishes = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "frequency_penalty": 0.7, "logit_bias": ((7, 3.0),)}
    text_of(make_engine(4, proposer, eos=(), dtype=dtype), ask, drain, prompts[8], max_tokens=24, **wishes)
    drawn, told = laws
    assert len(drawn) == len(told) > 10
    for (drawn_token, drawn_from), (told_token, told_from) in zip(drawn, told, strict=True):
        assert drawn_token == told_token
        assert torch.equal(drawn_from, told_from)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 4}], ids=["greedy", "seeded"])
def test_row_22_the_first_draft_is_committed_unverified(make_engine, ask, drain, drafting, prompts, sampling) -> None:
    """By a drafter whose first token is always wrong, and whose others would be right behind the right one."""
    prompt = prompts[5]
    text = text_of(make_engine(0, "none", eos=()), ask, drain, prompt, **sampling)

    def wrong_first(emitted: int) -> list[int]:
        first, *rest = text[emitted:] or [0]
        return [(first + 1) % 48, *rest]

    engine = make_engine(4, drafting(wrong_first), eos=())
    engine.submit(ask(prompt, **sampling))
    done = drain(engine)["r"]
    assert done.token_ids == text
    assert {accepted for _, accepted in done.steps} == {0}
    assert max(drafted for drafted, _ in done.steps) == 4


def test_row_32_drafts_of_a_repetitive_prompt_are_not_kept(make_engine, ask, drain) -> None:
    """The first position was kept in under 2.4 % of steps: what the index drafts of a loop stands nearly always."""
    prompt = [11, 12, 13, 14] * 30
    engine = make_engine(4, "ngram", eos=())
    # A bias that keeps the tiny model in the loop, as a model that repeats keeps itself.
    engine.submit(ask(prompt, max_tokens=60, logit_bias=((11, 90.0),)))
    drain(engine)
    (cohort,) = engine.close_window().cohorts
    assert cohort.accepted_at(0) / cohort.drafted_at(0) > 0.9
    assert cohort.accepted_at(3) / cohort.drafted_at(3) > 0.9


@pytest.mark.parametrize("sampling", [{"logit_bias": ((11, 90.0),)}, {}], ids=["one_token", "own_loop"])
def test_row_34_a_loop_that_the_index_feeds_on_never_ends(make_engine, ask, drain, sampling) -> None:
    """At temperature 0 it held a slot for nine hours: it ends at its budget, in as many steps as that has tokens."""
    engine = make_engine(16, "ngram", eos=(), slots=1)
    engine.submit(ask([11, 12] * 40, "loop", max_tokens=120, **sampling))
    engine.submit(ask([5, 6, 7], "next", max_tokens=5))
    done = drain(engine, 150)
    assert (len(done["loop"].token_ids), done["loop"].record.finish_reason) == (120, "length")
    assert len(done["next"].token_ids) == 5


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
@pytest.mark.parametrize("proposer", ["ngram", "target"])
def test_row_37_short_answers_accept_more_than_they_have(
    make_engine, ask, drain, prompts, proposer, max_tokens
) -> None:
    """Denominators of zero or less: K is cut to what may still be emitted, and prefill's token belongs to no step."""
    engine = make_engine(8, proposer, eos=())
    engine.submit(ask(prompts[11], max_tokens=max_tokens))
    done = drain(engine)["r"]
    record = done.record
    assert record.completion_tokens == max_tokens
    assert record.accepted_tokens <= record.draft_tokens <= max(max_tokens - 2, 0) * max(len(done.steps), 1)
    assert record.spec_steps + record.plain_steps == len(done.steps) <= max_tokens - 1


def test_row_37_drafts_that_were_thrown_away_are_counted(make_engine, ask, drain, drafting, prompts) -> None:
    """Counted is what the target verified: a drafter that offers more than K has no more to its name."""
    engine = make_engine(2, drafting(lambda emitted: [5] * 9), eos=())
    engine.submit(ask(prompts[5], max_tokens=20))
    done = drain(engine)["r"]
    (cohort,) = engine.close_window().cohorts
    verified = sum(drafted for drafted, _ in done.steps)
    assert done.record.draft_tokens == cohort.draft_tokens == verified
    assert done.record.verify_positions == verified + len(done.steps)
