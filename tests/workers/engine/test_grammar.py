"""Grammars: every answer that ends parses, the text is that of plain decoding, and unseeded tokens have their law."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from scipy.stats import chi2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workers.grammar import GrammarError, Grammars, unpack
from workers.grammar_text import schema_fault
from workers.sequence import GrammarSpec

SPECIAL = ["<pad>", "<s>", "</s>"]
EOS = 2
CHARACTERS = '{}[]":,0123456789.-abcdeflnrstu_ '
PIECES = ['{"', '":', '","', "true", "null", "}}", "ab", "12"]
COHORTS = ("default", "a", "b")
K = {"default": 2, "a": 4, "b": 8}


def json_tokenizer() -> PreTrainedTokenizerFast:
    """Single characters of JSON, and a few longer tokens that only a model would choose."""
    words = [*SPECIAL, *(c.replace(" ", "Ġ") for c in CHARACTERS), *PIECES]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


TOKENIZER = json_tokenizer()
VOCAB = len(TOKENIZER)
SHORT = {"type": "string", "maxLength": 4, "pattern": "^[a-f]*$"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flags": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["ab", "cd", None]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4},
    "nested": {
        "type": "object",
        "properties": {"c": {"type": "object", "properties": {"d": SHORT}, "additionalProperties": False}, "e": SHORT},
        "required": ["c"],
        "additionalProperties": False,
    },
}
SPECS = {name: GrammarSpec("json_schema", json.dumps(schema)) for name, schema in SCHEMAS.items()}
SPECS["word"] = GrammarSpec("regex", "(ab|cd){2,5}[0-9]{1,3}")
SPECS["any_object"] = GrammarSpec("json_object")
WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.2, "seed": 3},
    "wishes": {"temperature": 0.9, "seed": 5, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2}
    | {"presence_penalty": 0.3, "frequency_penalty": 0.2, "logit_bias": ((4, 3.0), (9, -4.0)), "min_tokens": 6}
    | {"logprobs": 2},
}


@pytest.fixture(scope="module")
def grammar_engine(make_engine):
    """An engine whose vocabulary is that of JSON."""

    def make(k: Any = 4, proposer: str = "ngram", **arguments: Any):
        return make_engine(k, proposer, vocab=VOCAB, tokenizer=TOKENIZER, **arguments)

    return make


NAMES = [f"{spec}/{wish}" for spec in [*SPECS, "free"] for wish in WISHES]


def prompt_of(name):
    return TOKENIZER.encode('{"a":true,"b":"ab"} [12,3]' + "ab12"[: NAMES.index(name) % 4])


def outputs(engine, ask, drain, names=NAMES):
    """(token ids, text, why it ended, log-probabilities) of every grammar with every wish, and of requests without."""
    for name in names:
        spec, wish = name.split("/")
        cohort = COHORTS[NAMES.index(name) % 3]
        request = ask(prompt_of(name), name, cohort=cohort, max_tokens=40, **WISHES[wish])
        engine.submit(replace(request, grammar=SPECS.get(spec), prediction=tuple(prompt_of(name))))
    return {name: (d.token_ids, d.text, d.record.finish_reason, d.logprobs) for name, d in drain(engine).items()}


@pytest.fixture(scope="module")
def plain(grammar_engine, ask, drain):
    return outputs(grammar_engine(0, "none"), ask, drain)


@pytest.mark.parametrize("proposer", ["ngram", "close", "medusa"])
def test_speculation_changes_nothing_under_a_grammar(grammar_engine, ask, drain, plain, proposer) -> None:
    assert outputs(grammar_engine(K, proposer), ask, drain) == plain


def test_a_request_alone_gives_what_it_gives_among_others(grammar_engine, ask, drain, plain) -> None:
    engine = grammar_engine(4, "close")
    for name in ("nested/seeded", "any_object/wishes"):
        assert outputs(engine, ask, drain, [name])[name] == plain[name]


def test_every_answer_that_ends_parses(plain) -> None:
    ended = [name for name, out in plain.items() if out[2] == "stop" and not name.startswith("free")]
    assert len(ended) > 8
    for name in ended:
        spec, text = name.split("/")[0], plain[name][1]
        if spec == "word":
            assert re.fullmatch(SPECS["word"].text, text), text
        elif spec in SCHEMAS:
            Draft202012Validator(SCHEMAS[spec]).validate(json.loads(text))
        else:
            assert isinstance(json.loads(text), dict)


def test_logprobs_are_those_of_the_raw_row(plain, own_logits) -> None:
    name = "flags/wishes"
    token_ids, _, _, logprobs = plain[name]
    prompt = prompt_of(name)
    rows = torch.log_softmax(own_logits([prompt + token_ids], vocab=VOCAB)[0, len(prompt) - 1 : -1], -1)
    for row, token, scored in zip(rows, token_ids, logprobs, strict=True):
        assert scored.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [t for t, _ in scored.top] == row.topk(2).indices.tolist()


def test_min_tokens_gives_way_where_nothing_but_the_end_may_follow(grammar_engine, ask, drain) -> None:
    engine = grammar_engine()
    spec = GrammarSpec("regex", "ab")
    engine.submit(replace(ask([5, 6], max_tokens=20, min_tokens=15, temperature=0.0), grammar=spec))
    done = drain(engine)["r"]
    assert (done.text, done.record.finish_reason) == ("ab", "stop")


def test_a_stop_string_and_a_stop_token_end_a_text_under_a_grammar(grammar_engine, ask, drain) -> None:
    engine = grammar_engine()
    spec = GrammarSpec("regex", "[0-9]{3}ab")
    engine.submit(replace(ask([5, 6], "s", max_tokens=20, stop=("a",)), grammar=spec))
    token = TOKENIZER.encode("a")[0]
    engine.submit(replace(ask([5, 6], "t", max_tokens=20, stop_token_ids=(token,), logit_bias=((token, 90.0),)),
                          grammar=spec))  # fmt: skip
    done = drain(engine)
    for name in "st":
        assert re.fullmatch("[0-9]{3}", done[name].text)
        assert done[name].record.finish_reason == "stop"


def test_max_tokens_may_cut_a_text_short(grammar_engine, ask, drain) -> None:
    engine = grammar_engine()
    engine.submit(replace(ask([5, 6], max_tokens=2), grammar=GrammarSpec("regex", "[0-9]{30}")))
    done = drain(engine)["r"]
    assert (len(done.token_ids), done.record.finish_reason) == (2, "length")


def test_no_ngram_draft_is_one_that_the_grammar_forbids(grammar_engine, ask) -> None:
    engine = grammar_engine(8, "ngram")
    prompt = TOKENIZER.encode("abababababab")
    engine.submit(replace(ask(prompt, max_tokens=30), grammar=GrammarSpec("regex", "[0-9]{2}(ab|cd)[0-9]{8}")))
    engine.step()
    while engine.has_work:
        sequence = engine.scheduler.running[0]
        drafts = engine.proposer.propose([sequence], [8]).tokens(0)
        assert sequence.grammar.valid(drafts) == len(drafts)
        engine.step()


def state(spec: GrammarSpec, text: str = ""):
    made = Grammars(TOKENIZER, VOCAB, [EOS]).start(spec)
    made.advance(TOKENIZER.encode(text))
    return made


def allowed(mask: bytes) -> set[str]:
    row = unpack([mask], VOCAB, torch.device("cpu"))[0]
    return {TOKENIZER.convert_ids_to_tokens(i) for i in row.nonzero().flatten().tolist()}


def test_masks_are_unpacked_lowest_bit_first_and_none_allows_all() -> None:
    masks = [bytes(np.random.default_rng(n).integers(0, 256, 12, dtype=np.uint8)) for n in range(3)] + [None]
    unpacked = unpack(masks, 90, torch.device("cpu"))
    expected = [[mask is None or bool(mask[i // 8] >> i % 8 & 1) for i in range(90)] for mask in masks]
    assert unpacked.tolist() == expected


def test_row_26_looking_at_drafts_corrupts_the_state_of_a_grammar() -> None:
    """A rollback of N tokens corrupted a matcher's state (vllm 46272): there is none here."""
    looked, untouched = state(SPECS["word"], "ab"), state(SPECS["word"], "ab")
    for drafts in ("cd1", "cd12", "abab", "", "__"):
        looked.masks(TOKENIZER.encode(drafts), len(drafts) + 1)
        looked.valid(TOKENIZER.encode(drafts))
    assert looked.masks([], 1) == untouched.masks([], 1)


def test_row_26_a_draft_past_the_end_of_a_grammar_is_an_error() -> None:
    """A draft past the end of a grammar was an assertion or an HTTP 500 (openvino.genai 4081)."""
    drafts = [*TOKENIZER.encode("ab"), EOS, EOS]
    masks = state(GrammarSpec("regex", "ab")).masks(drafts, 5)
    assert [allowed(mask) for mask in masks[2:]] == [{"</s>"}] * 3
    assert state(GrammarSpec("regex", "ab")).valid([*drafts[:2], *TOKENIZER.encode("c"), EOS]) == 2


@pytest.mark.parametrize("at", range(6))
def test_row_25_behind_a_token_that_switches_the_grammar_a_draft_goes_unchecked(
    grammar_engine, ask, drain, drafting, at
) -> None:
    """The switch is drafted at each position, and behind it what was right before it and is wrong after."""
    a = TOKENIZER.encode("a")[0]
    spec = GrammarSpec("regex", f"[a-f]{{{1 + at}}}_[0-9]{{8}}")
    drafts = [a] * (1 + at) + TOKENIZER.encode("_") + [a] * 9
    texts = []
    for engine in (grammar_engine(0, "none"), grammar_engine(8, drafting(lambda done: drafts[done:]))):
        engine.submit(replace(ask([5, 6], max_tokens=20, logit_bias=((a, 90.0),)), grammar=spec))
        done = drain(engine)["r"]
        texts.append(done.text)
    assert texts == ["a" * (1 + at) + "_" + texts[0][-8:]] * 2
    assert re.fullmatch(spec.text, texts[1])
    assert done.steps[0] == (8, at + 1)


@pytest.mark.parametrize("at", range(4))
def test_rows_behind_a_forbidden_draft_are_left_alone(at) -> None:
    """The rest of a draft went unchecked behind a token that switched the grammar on (vllm 34241)."""
    drafts = TOKENIZER.encode("ab12")
    drafts[at] = TOKENIZER.encode("_")[0]
    masks = state(GrammarSpec("regex", "ab12ab")).masks(drafts, 5)
    assert [mask is None for mask in masks] == [n > at for n in range(5)]


def test_the_end_is_allowed_only_where_the_grammar_accepts() -> None:
    made = state(SPECS["word"])
    assert "</s>" not in allowed(made.masks([], 1)[0])
    made.advance(TOKENIZER.encode("abcd1"))
    assert "</s>" in allowed(made.masks([], 1)[0])
    made.advance(TOKENIZER.encode("23"))
    assert allowed(made.masks([], 1)[0]) == {"</s>"}


def test_a_grammar_that_cannot_be_compiled_is_one_line_and_leaves_nothing(grammar_engine, ask) -> None:
    engine = grammar_engine()
    with pytest.raises(GrammarError, match=r"^grammar: [^\n]+$"):
        engine.submit(replace(ask([5]), grammar=GrammarSpec("json_schema", '{"type": "array", "uniqueItems": true}')))
    assert not engine.has_work


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object", "properties": {"a": {"items": {"not": {}}}}}, ".properties.a.items"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "contains": {}}]}, ".anyOf[1]"),
        ({"type": "string", "pattern": "(?=a)"}, ""),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, ""),
        ({"$ref": "#"}, ""),
        ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
    ],
)
def test_the_part_of_a_schema_that_cannot_be_honoured_is_named(schema, path) -> None:
    fault = schema_fault(schema)
    assert fault is not None
    assert fault[0] == path


@st.composite
def schemas(draw, depth=2):
    """Small schemas whose values have few tokens."""
    leaves = st.sampled_from(
        [
            *({"type": "boolean"}, {"type": "null"}, {"enum": ["a", "bc", 1]}, {"const": "ab"}, SHORT),
            *({"type": "integer", "minimum": -20, "maximum": 120}, {"type": "number", "multipleOf": 1, "maximum": 9}),
        ]
    )
    if depth == 0:
        return draw(leaves)
    inner = schemas(depth=depth - 1)
    match draw(st.integers(0, 3)):
        case 0:
            return draw(leaves)
        case 1:
            return {"type": "array", "items": draw(inner), "minItems": draw(st.integers(0, 2)), "maxItems": 3}
        case 2:
            return {"anyOf": [draw(inner), draw(inner)]}
        case _:
            properties = draw(st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3))
            required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
            return {
                "type": "object", "properties": properties, "required": required, "additionalProperties": False,
            }  # fmt: skip


@settings(max_examples=5, deadline=None)
@given(st.lists(schemas(), min_size=2, max_size=4), st.sampled_from(["ngram", "close"]))
def test_any_schema_is_honoured_and_any_text_is_that_of_plain_decoding(grammar_engine, ask, drain, wanted, proposer):
    texts = []
    for k, drafter in ((K, proposer), (0, "none")):
        engine = grammar_engine(k, drafter)
        for i, schema in enumerate(wanted):
            sampling = WISHES["seeded" if i % 2 else "greedy"]
            request = ask(TOKENIZER.encode("ab"), f"{i}", cohort=COHORTS[i % 3], max_tokens=60, **sampling)
            engine.submit(replace(request, grammar=GrammarSpec("json_schema", json.dumps(schema))))
        done = drain(engine)
        texts.append({name: d.text for name, d in done.items()})
        for name, d in done.items():
            assert d.error is None
            if d.record.finish_reason == "stop":
                Draft202012Validator(wanted[int(name)]).validate(json.loads(d.text))
    assert texts[0] == texts[1]


LAW_TOKENS = 12
LETTERS = "ab0"
LAW_GRAMMAR = GrammarSpec("regex", "((a|b)0?)*")


def law(logits, before):
    """Probabilities of the next token under LAW_GRAMMAR, by its definition: a 0 stands behind a letter alone."""
    weights = np.zeros(len(logits))
    after_letter = bool(before) and before[-1] != 5
    for token in [EOS, 3, 4, *([5] if after_letter else [])]:
        weights[token] = np.exp(logits[token] - logits.max())
    return weights / weights.sum()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate([*SPECIAL, *LETTERS, "_", "-"])}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("proposer", ["ngram", "close"])
def test_unseeded_tokens_have_the_targets_law_within_the_grammar(
    make_engine, ask, drain, own_logits, proposer, monkeypatch
) -> None:
    numbers = np.random.default_rng(4)
    monkeypatch.setattr("workers.engine.secrets.randbits", lambda bits: int(numbers.integers(2**62)))
    prompt, vocab = [3, 5, 4, 3, 5, 4], 8
    engine = make_engine(3, proposer, slots=48, vocab=vocab, tokenizer=tiny_tokenizer())
    for i in range(48):
        request = ask(prompt, f"{i}", max_tokens=LAW_TOKENS, temperature=1.0)
        engine.submit(replace(request, grammar=LAW_GRAMMAR))
    drawn, laws = [], []
    for done in drain(engine).values():
        text = done.token_ids
        rows = own_logits([prompt + text], vocab=vocab)[0, len(prompt) - 1 : -1].double().numpy()
        drawn += text
        laws += [law(row, text[:n]) for n, row in enumerate(rows)]
    matrix = np.array(laws)
    assert (matrix[np.arange(len(drawn)), drawn] > 0).all()
    difference = np.bincount(drawn, minlength=vocab) - matrix.sum(0)
    covariance = np.diag(matrix.sum(0)) - matrix.T @ matrix
    statistic = difference @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ difference
    assert chi2.sf(statistic, np.linalg.matrix_rank(covariance, tol=1e-7)) > 1e-4
