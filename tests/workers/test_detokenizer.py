from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from workers.detokenizer import REPLACEMENT, ByteDecoder, Detokenizer, Pushed, WindowDecoder, decoder_for

LINES = [
    "the quick brown fox jumps over the lazy dog, then the dog sleeps.",
    "def add(a, b):\n    return a + b\n\n",
    "世界你好，世界和平。",
    "party 🎉 family 👩‍👩‍👧 flag 🇫🇷",
    "naïve café über STOP END ###",
]


@cache
def byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    backend.add_tokens([AddedToken("<tool→>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@cache
def sentence_pieces() -> PreTrainedTokenizerFast:
    """As in Llama 2: words begin with a mark, unknown characters fall back to bytes, the first space is stripped."""
    pieces = [
        "<s>",
        "</s>",
        "<unk>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁the",
        "▁cat",
        "s",
        "▁",
        "▁世界",
        "S",
        "TOP",
    ]
    backend = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def at_once(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def run(detokenizer: Detokenizer, chunks: list[list[int]]) -> tuple[str, int, str | None]:
    """Text, tokens kept and stop string after all chunks."""
    text, kept = "", 0
    for chunk in chunks:
        pushed = detokenizer.push(chunk)
        text += pushed.text
        kept += pushed.kept
        if pushed.stopped:
            return text, kept, pushed.stop
    return text + detokenizer.flush(), kept, None


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(c % (len(ids) + 1) for c in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(bounds)]


texts = st.lists(st.sampled_from([*LINES, "🎉", "世", "STOP", "ST", " ", "é"]), max_size=5).map("".join)
STOPS = ["STOP", "TO", "世界", "🎉", "\n", "return a", "dog"]
random_ids = st.lists(st.integers(0, 345), max_size=40)


@settings(max_examples=150, deadline=None)
@given(ids=random_ids, cuts=st.lists(st.integers(0, 100), max_size=8))
def test_any_chunking_of_any_bytes_gives_the_text_of_decoding_at_once(ids: list[int], cuts: list[int]) -> None:
    text, kept, _ = run(Detokenizer(byte_level()), cut(ids, cuts))
    assert text == at_once(byte_level(), ids)
    assert kept == len(ids)


@settings(max_examples=150, deadline=None)
@given(text=texts, stop=st.sets(st.sampled_from(STOPS), min_size=1, max_size=4),
       cuts=st.lists(st.integers(0, 100), max_size=8))  # fmt: skip
def test_any_chunking_gives_the_same_stop(text: str, stop: set[str], cuts: list[int]) -> None:
    ids = byte_level().encode(text)
    got = run(Detokenizer(byte_level(), tuple(stop)), cut(ids, cuts))
    assert got == run(Detokenizer(byte_level(), tuple(stop)), [ids])
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    assert got[0] == (text[: min(ends)[1]] if ends else text)
    if ends:
        # The kept tokens hold the whole stop string, and without the last of them they do not.
        assert min(ends)[2] in at_once(byte_level(), ids[: got[1]])
        assert not any(s in at_once(byte_level(), ids[: got[1] - 1]) for s in stop)


@settings(max_examples=50, deadline=None)
@given(pieces=st.lists(st.sampled_from(["the", "cat", "s", "世", "🎉", "世界", "<s>"]), max_size=20),
       cuts=st.lists(st.integers(0, 100), max_size=8))  # fmt: skip
def test_sentence_pieces_keep_their_spaces_under_any_chunking(pieces: list[str], cuts: list[int]) -> None:
    vocabulary = sentence_pieces().get_vocab()
    ids: list[int] = []
    for piece in pieces:
        marked = piece if piece in vocabulary else f"▁{piece}"
        ids += [vocabulary[marked]] if marked in vocabulary else [vocabulary[f"<0x{b:02X}>"] for b in piece.encode()]
    text, _, _ = run(Detokenizer(sentence_pieces()), cut(ids, cuts))
    assert text == at_once(sentence_pieces(), ids)


def test_the_decoder_is_chosen_by_the_tokenizer() -> None:
    assert isinstance(decoder_for(byte_level()), ByteDecoder)
    assert isinstance(decoder_for(sentence_pieces()), WindowDecoder)


def test_half_a_character_is_held_until_it_is_whole() -> None:
    ids = [byte_level().convert_tokens_to_ids(c) for c in "ðŁĺĢ"]  # the four bytes of 😀 in the byte-level alphabet
    detokenizer = Detokenizer(byte_level())
    assert [detokenizer.push([i]).text for i in ids] == ["", "", "", "😀"]


def test_half_a_character_at_the_end_becomes_one_replacement_character() -> None:
    detokenizer = Detokenizer(byte_level())
    ids = [byte_level().convert_tokens_to_ids(c) for c in "ðŁĺ"]
    assert detokenizer.push(ids) == Pushed("", 3)
    assert detokenizer.flush() == REPLACEMENT


def test_special_tokens_give_no_text() -> None:
    end = byte_level().eos_token_id
    assert run(Detokenizer(byte_level()), [[end, *byte_level().encode("fox"), end]])[0] == "fox"


def test_text_that_may_become_a_stop_is_held_and_given_back_when_it_does_not() -> None:
    detokenizer = Detokenizer(byte_level(), ("STOP",))
    push = [detokenizer.push(byte_level().encode(part)).text for part in ("a ST", "O", "R")]
    assert push == ["a ", "", "STOR"]


def test_a_stop_over_several_pushes_keeps_tokens_up_to_the_one_that_completes_it() -> None:
    detokenizer = Detokenizer(byte_level(), ("xyz",))
    x, y, z, w = (byte_level().convert_tokens_to_ids(c) for c in "xyzw")
    assert detokenizer.push([w, x]) == Pushed("w", 2)
    assert detokenizer.push([y, z, w, w]) == Pushed("", 2, True, "xyz")
    assert detokenizer.flush() == ""


def test_after_a_stop_nothing_more_is_kept() -> None:
    detokenizer = Detokenizer(byte_level(), ("x",))
    x = byte_level().convert_tokens_to_ids("x")
    detokenizer.push([x])
    assert detokenizer.push([x, x]) == Pushed("", 0, True, "x")


def test_of_two_stops_the_one_that_completes_first_wins() -> None:
    detokenizer = Detokenizer(byte_level(), ("bcd", "c"))
    assert run(detokenizer, [[byte_level().convert_tokens_to_ids(c) for c in "abcd"]]) == ("ab", 3, "c")


def test_a_stop_inside_one_token_cuts_the_token() -> None:
    (token,) = (i for i in byte_level().encode(" the") if len(at_once(byte_level(), [i])) == 4)
    assert Detokenizer(byte_level(), ("he",)).push([token]) == Pushed(" t", 1, True, "he")


def test_a_stop_before_min_tokens_is_plain_text() -> None:
    detokenizer = Detokenizer(byte_level(), ("x",), min_tokens=3)
    x = byte_level().convert_tokens_to_ids("x")
    assert run(detokenizer, [[x, x, x, x]]) == ("xx", 3, "x")


def test_a_fork_goes_its_own_way() -> None:
    first = Detokenizer(byte_level(), ("STOP",))
    ids = [byte_level().convert_tokens_to_ids(c) for c in "ðŁĺĢ"]
    first.push(ids[:2])
    second = first.fork()
    assert second.push(ids[2:]).text == "😀"
    assert first.push(byte_level().encode("a")).text == REPLACEMENT + "a"


def test_a_sentence_piece_fork_goes_its_own_way() -> None:
    the, cat = (sentence_pieces().convert_tokens_to_ids(p) for p in ("▁the", "▁cat"))
    first = Detokenizer(sentence_pieces())
    first.push([the])
    second = first.fork()
    assert (first.push([cat]).text, second.push([the, cat]).text) == (" cat", " the cat")


def test_with_the_prompt_as_context_the_first_word_keeps_its_space() -> None:
    the, cat = (sentence_pieces().convert_tokens_to_ids(p) for p in ("▁the", "▁cat"))
    assert Detokenizer(sentence_pieces()).push([cat]).text == "cat"
    assert Detokenizer(sentence_pieces(), include_prompt_context=[the]).push([cat]).text == " cat"


def test_a_character_that_the_prompt_left_unfinished_is_completed() -> None:
    ids = [byte_level().convert_tokens_to_ids(c) for c in "ðŁĺĢ"]
    assert Detokenizer(byte_level(), include_prompt_context=ids[:2]).push(ids[2:]).text == "😀"


def test_a_long_run_of_broken_bytes_is_shown_without_waiting_for_its_end() -> None:
    broken = sentence_pieces().convert_tokens_to_ids("<0xFF>")
    detokenizer = Detokenizer(sentence_pieces())
    shown = "".join(detokenizer.push([broken]).text for _ in range(200))
    assert len(shown) > 150
    assert shown + detokenizer.flush() == REPLACEMENT * 200


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Detokenizer(byte_level(), ("",))
