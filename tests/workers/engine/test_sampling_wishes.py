"""Every sampling wish is honoured at every emitted position, whatever K, drafter and batch-mates are.

All settings run side by side in one engine, so each of them has the others as batch-mates.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kernels.verify import gumbel_noise

EOS = 2
COHORTS = ("default", "a", "b")
K = {"default": 2, "a": 4, "b": 8}
BIAS = ((5, 4.0), (9, -6.0), (17, 2.5), (30, -100.0))
WISHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.4},
    "repetition_wanted": {"repetition_penalty": 0.8},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 2.0},
    "frequency_wanted": {"frequency_penalty": -0.7},
    "bias": {"logit_bias": BIAS},
    "min_tokens": {"min_tokens": 11, "logit_bias": ((EOS, 6.0), (7, 4.0)), "stop_token_ids": (7,)},
    "stop_token": {"stop_token_ids": (5, 11, 23)},
    "stop_string": {"stop": (" t3", "t11 t", "t24")},
    "ignore_eos": {"ignore_eos": True, "logit_bias": ((EOS, 3.0),)},
    "all": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.6, "logit_bias": BIAS}
    | {"min_tokens": 5, "stop_token_ids": (13,), "logprobs": 3},
}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.1, "seed": 17},
    "min_p": {"temperature": 1.4, "seed": 5, "min_p": 0.15},
    "limited": {"temperature": 1.3, "seed": 6, "min_p": 0.03, "top_k": 20, "top_p": 0.9, "logprobs": 0},
}
REQUESTS = [(f"{wish}/{mode}", WISHES[wish] | MODES[mode]) for wish, mode in itertools.product(WISHES, MODES)]
TOKENS = 16


def outputs(engine, ask, drain, prompts, requests=REQUESTS):
    """What each request gave, by name: token ids, text, why it ended, log-probabilities."""
    for i, (name, sampling) in enumerate(requests):
        request = ask(prompts[i % len(prompts)], name, cohort=COHORTS[i % 3], max_tokens=TOKENS, **sampling)
        engine.submit(request)
    done = drain(engine)
    return {name: (d.token_ids, d.text, d.record.finish_reason, d.logprobs) for name, d in done.items()}


@pytest.fixture(scope="module")
def some_prompts(prompts):
    """Five of each kind: short, longer than a prefill chunk, with repeats."""
    return [prompts[4], prompts[11], prompts[9], prompts[12], prompts[6]]


@pytest.fixture(scope="module")
def plain(make_engine, ask, drain, some_prompts):
    return outputs(make_engine(0, "none"), ask, drain, some_prompts)


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle"])
def test_row_16_17_penalties_and_biases_are_ignored_with_drafts(
    make_engine, ask, drain, some_prompts, proposer, plain
) -> None:
    """Penalties and biases were ignored, or applied to the bonus token alone (vllm 18902, 42744)."""
    assert outputs(make_engine(K, proposer), ask, drain, some_prompts) == plain


def test_row_21_text_is_corrupt_beside_others_only(make_engine, ask, drain, some_prompts, plain) -> None:
    """Sampled text was corrupt only with more than two sequences in a step (1Cat-vLLM 656)."""
    engine = make_engine(K, "close")
    for i, (name, sampling) in enumerate(REQUESTS[::7]):
        engine.submit(ask(some_prompts[(7 * i) % 5], name, cohort="a", max_tokens=TOKENS, **sampling))
        done = drain(engine)[name]
        assert (done.token_ids, done.text) == plain[name][:2]


def test_the_settings_do_what_they_are_for(plain) -> None:
    """Else equality above would say nothing."""
    texts = {name: tuple(out[0]) for name, out in plain.items()}
    assert len({texts[f"{wish}/greedy"] for wish in WISHES}) >= len(WISHES) - 2
    reasons = {name: out[2] for name, out in plain.items()}
    for wish in ("stop_token", "stop_string"):
        ends = [plain[f"{wish}/{mode}"] for mode in MODES if reasons[f"{wish}/{mode}"] == "stop"]
        assert any(out[0][-1] != EOS for out in ends)
    assert all(reasons[f"ignore_eos/{mode}"] == "length" for mode in MODES)
    assert sum(len(out[0]) for out in plain.values()) > 10 * len(plain)


def plain_rule(prompt, emitted, own_logits, sampling):
    """Tokens that the library's own processors, applied to its own logits, take after each prefix of the text."""
    logits = own_logits([prompt + emitted])[0, len(prompt) - 1 : -1]
    return [plain_token(prompt, emitted[:n], row, sampling) for n, row in enumerate(logits)]


def plain_token(prompt, emitted, row, sampling):
    text = torch.tensor([prompt + emitted])
    scores = row[None].clone()
    if sampling.get("repetition_penalty", 1.0) != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(sampling["repetition_penalty"])(text, scores)
    counts = torch.bincount(torch.tensor(emitted, dtype=torch.int64), minlength=len(row))
    # OpenAI's formula; the library has no such processor.
    scores = scores - sampling.get("frequency_penalty", 0.0) * counts
    scores = scores - sampling.get("presence_penalty", 0.0) * (counts > 0)
    processors = LogitsProcessorList()
    if "logit_bias" in sampling:
        bias = {(token,): float(value) for token, value in sampling["logit_bias"]}
        processors.append(SequenceBiasLogitsProcessor(bias))
    ends = [EOS, *sampling.get("stop_token_ids", ())]
    processors.append(MinNewTokensLengthLogitsProcessor(len(prompt), sampling.get("min_tokens", 0), torch.tensor(ends)))
    if sampling["temperature"] == 0:
        return int(processors(text, scores).argmax())
    processors.append(TemperatureLogitsWarper(sampling["temperature"]))
    if "top_k" in sampling:
        processors.append(TopKLogitsWarper(sampling["top_k"]))
    if "top_p" in sampling:
        processors.append(TopPLogitsWarper(sampling["top_p"]))
    if "min_p" in sampling:
        processors.append(MinPLogitsWarper(sampling["min_p"]))
    noise = gumbel_noise(torch.tensor([sampling["seed"]]), torch.tensor([len(prompt) + len(emitted)]), len(row))
    return int((processors(text, scores) + noise).argmax())


@pytest.mark.parametrize("name", [name for name, _ in REQUESTS])
def test_each_token_is_the_one_that_the_librarys_processors_take(plain, own_logits, some_prompts, name) -> None:
    index = [n for n, _ in REQUESTS].index(name)
    prompt, emitted = some_prompts[index % len(some_prompts)], plain[name][0]
    assert plain_rule(prompt, emitted, own_logits, REQUESTS[index][1]) == emitted


@st.composite
def wishes(draw):
    """Any mixture of settings, greedy or seeded."""
    tokens = st.integers(0, 47)
    values = {
        "repetition_penalty": st.sampled_from([0.7, 1.1, 1.9]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(tokens, st.floats(-100, 100), max_size=5).map(lambda d: tuple(d.items())),
        "min_p": st.floats(0, 1),
        "top_k": st.integers(0, 50),
        "top_p": st.floats(0.05, 1),
        "min_tokens": st.integers(0, 12),
        "stop_token_ids": st.lists(tokens, max_size=4).map(tuple),
        "stop": st.lists(tokens.map("t{}".format), max_size=2).map(tuple),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 2, 20]),
        "prompt_logprobs": st.sampled_from([None, 0, 3]),
    }
    chosen = {name: draw(values[name]) for name in draw(st.sets(st.sampled_from(sorted(values)), max_size=6))}
    seeded = {"temperature": draw(st.sampled_from([0.3, 1.0, 2.0])), "seed": draw(st.integers(-(2**40), 2**40))}
    return chosen | draw(st.sampled_from([{"temperature": 0.0}, seeded]))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(wishes(), st.integers(0, 13)), min_size=1, max_size=5), st.sampled_from(["ngram", "close"]))
def test_any_mixture_of_wishes_gives_the_text_of_plain_decoding(make_engine, ask, drain, prompts, asked, proposer):
    requests = [(f"{i}", sampling) for i, (sampling, _) in enumerate(asked)]
    texts = [prompts[n] for _, n in asked]
    engine = make_engine(K, proposer)
    assert outputs(engine, ask, drain, texts, requests) == outputs(make_engine(0, "none"), ask, drain, texts, requests)
    assert engine.tables.used == 0


def test_row_18_the_better_the_drafter_the_weaker_the_penalty(
    make_engine, ask, drain, some_prompts, plain, blind_penalties
) -> None:
    """One token a step reached the penalties: the better the drafter, the weaker they were (sglang 33643)."""
    assert outputs(make_engine(K, "close"), ask, drain, some_prompts) != plain
