"""Single tokens as text, and choices read from chunks, for tokenizers by bytes and by pieces."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from workers.api_choice import ChoiceReader
from workers.detokenizer import Detokenizer
from workers.sequence import Chunk, EngineRequest, SamplingParams, TokenLogprob
from workers.token_text import TokenText, prompt_text


@cache
def by_bytes() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@cache
def by_pieces() -> PreTrainedTokenizerFast:
    """As in Llama 2: words begin with a mark, unknown characters fall back to bytes, the first space is stripped."""
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁the", "▁cat", "s", "▁"]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def ids(tokenizer: Any, *tokens: str) -> list[int]:
    found = tokenizer.convert_tokens_to_ids(list(tokens))
    assert None not in found
    return list(found)


@pytest.mark.parametrize(
    ("tokenizer", "token", "shown", "data"),
    [
        (by_bytes, "Ġ", " ", b" "),
        (by_bytes, "Ã", None, b"\xc3"),
        (by_bytes, "<|end|>", "<|end|>", b""),
        (by_pieces, "▁the", " the", b" the"),
        (by_pieces, "<0x41>", "A", b"A"),
        (by_pieces, "<0xF0>", None, b"\xf0"),
        (by_pieces, "</s>", "</s>", b""),
    ],
)
def test_a_token_has_its_bytes_and_its_text(tokenizer: Any, token: str, shown: str | None, data: bytes) -> None:
    text, (token_id,) = TokenText(tokenizer()), ids(tokenizer(), token)
    assert (text.shown(token_id), text.bytes_of(token_id)) == (shown, data)
    assert text.is_special(token_id) == (data == b"")


def test_half_a_character_is_shown_by_its_bytes() -> None:
    assert TokenText(by_bytes()).escaped(ids(by_bytes(), "Ã")[0]) == "\\xc3"


def test_an_id_beyond_the_vocabulary_is_empty_text() -> None:
    assert TokenText(by_bytes()).shown(9999) == ""


def test_a_special_token_that_the_client_wrote_has_its_place_in_the_prompt() -> None:
    token_ids = by_bytes().encode("a<|end|>b")
    assert prompt_text(by_bytes(), token_ids, "a<|end|>b") == ("a<|end|>b", (0, 1, 8))
    assert prompt_text(by_bytes(), token_ids, None) == ("a<|end|>b", (0, 1, 8))


def test_a_special_token_that_the_tokenizer_added_has_none() -> None:
    token_ids = ids(by_pieces(), "<s>", "▁the", "▁cat")
    assert prompt_text(by_pieces(), token_ids, "the cat") == ("the cat", (0, 0, 3))


def test_a_character_that_a_prompt_of_tokens_leaves_unfinished_belongs_to_the_completion() -> None:
    token_ids = by_bytes().encode("aö")[:-1]
    assert prompt_text(by_bytes(), token_ids, None) == ("a", (0, 1))


WORDS = ["x", "ö", "🎉", "st", "sto", "stop", " ", "<|end|>"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), st.lists(st.integers(1, 4), min_size=1), st.booleans()
)
def test_scores_come_with_the_text_in_which_their_tokens_begin(words: list[str], sizes: list[int], stops: bool) -> None:
    """However tokens are cut into chunks: each score once, in order, none before its text and none much later."""
    token_ids = by_bytes().encode("".join(words))
    stop = ("stop",) if stops else ()
    request = EngineRequest("r", (65,), SamplingParams(len(token_ids), stop=stop, logprobs=0), "c")
    detokenizer = Detokenizer(by_bytes(), stop, request.prompt_token_ids)
    reader = ChoiceReader(by_bytes(), request, True, None)
    shown, offsets, kept = "", [], 0
    is_last = False
    while not is_last:
        pushed = detokenizer.push(token_ids[kept : kept + sizes[kept % len(sizes)]])
        new = token_ids[kept : kept + pushed.kept]
        kept += pushed.kept
        is_last = pushed.stopped or kept >= len(token_ids)
        text = pushed.text + (detokenizer.flush() if is_last else "")
        scores = tuple(TokenLogprob(i, -1.0) for i in new)
        piece = reader.read(Chunk("r", tuple(new), text, finish_reason="stop" if is_last else None, logprobs=scores))
        for scored in piece.scored:
            assert is_last or len(shown) <= scored.offset < len(shown) + len(piece.text)
            offsets.append(scored.offset)
        shown += piece.text
    assert len(offsets) == kept
    assert offsets == sorted(offsets)
