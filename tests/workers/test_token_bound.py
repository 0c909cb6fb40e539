"""The fewest tokens that a text can have: never more than it has, however it is cut."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workers.token_bound import token_bound

CORPUS = [
    "the quick brown fox jumps over the lazy dog        again and again",
    "日本語のテキスト",
    "aaaaaaaa 12345",
] * 20


def trained(**parts: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = parts.get("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))
    backend.decoder = decoders.ByteLevel()
    if "normalizer" in parts:
        backend.normalizer = parts["normalizer"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: parts.get("alphabet", 256)]
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken("<|a long special token|>", lstrip=parts.get("lstrip", False))])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    split = pre_tokenizers.Split(" ", "isolated")
    digits = pre_tokenizers.Sequence([split, pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(use_regex=False)])
    return {"plain": trained, "in pieces": lambda: trained(pre_tokenizer=digits)}[kind]()


text = st.text() | st.text("aeh t<|>", max_size=200) | st.sampled_from([*CORPUS, "<|a long special token|>" * 9])


@pytest.mark.parametrize("kind", ["plain", "in pieces"])
@settings(max_examples=60, deadline=None)
@given(st.lists(text, max_size=5).map("".join))
def test_no_text_has_fewer_tokens_than_the_bound(kind: str, written: str) -> None:
    bound = token_bound(tokenizer(kind))
    assert bound is not None
    assert bound.fewest(written) <= len(tokenizer(kind).encode(written))


def test_the_bound_is_reached_where_every_token_is_the_longest() -> None:
    written = "<|a long special token|>" * 7
    bound = token_bound(tokenizer("plain"))
    assert bound is not None
    assert bound.fewest(written) == len(tokenizer("plain").encode(written)) == 7


def test_a_byte_without_a_token_counts_for_nothing() -> None:
    """Such a byte is dropped, so that a text of it has no tokens at all."""
    lacking = trained(alphabet=100)
    dropped = next(letter for letter in "üöäñ" if not lacking.encode(letter))
    bound = token_bound(lacking)
    assert bound is not None
    assert bound.fewest(dropped * 1000) == 0


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers.NFKC()},
        {"normalizer": normalizers.Strip()},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {"lstrip": True},
    ],
    ids=str,
)
def test_nothing_is_said_of_tokenizers_that_drop_text(parts: dict[str, Any]) -> None:
    assert token_bound(trained(**parts)) is None
