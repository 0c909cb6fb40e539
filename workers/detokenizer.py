"""Tokens to text, a step at a time: never half a character, and nothing shown that may still become a stop string.

The text of all pushes and the final flush is what decoding all tokens at once gives (special tokens skipped, spaces
as they are), however the tokens are cut into pushes.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer, decoders

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 8  # enough to hold the start of any character and one token before it
_MAX_PENDING_TOKENS = 32  # no character spans so many tokens: such a run is really made of replacement characters


@dataclass(frozen=True, slots=True)
class Pushed:
    """What one push yielded.

    text: new text that is safe to show. kept: how many of the pushed tokens belong to the output: all of them, or up to
    and including the one that completed `stop`; the text ends before the stop string.
    """

    text: str
    kept: int
    stopped: bool = False
    stop: str | None = None


class Decoder(Protocol):
    """Turns one token at a time into settled text."""

    def feed(self, token_id: int) -> str: ...
    def finish(self) -> str: ...
    def fork(self) -> Decoder: ...


class Detokenizer:
    """The text of one sequence.

    tokenizer: a transformers tokenizer. stop: non-empty stop strings. include_prompt_context: the prompt's tokens; with
    them, a tokenizer that strips the space before the first word knows that the output continues a text, and a
    character that the prompt left unfinished is completed. min_tokens: a stop string that completes before that many
    tokens is plain text.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: tuple[str, ...] = (),
        include_prompt_context: Sequence[int] | None = None,
        *,
        min_tokens: int = 0,
    ) -> None:
        if not all(stop):
            raise ValueError("a stop string must not be empty")
        self._decoder = decoder_for(tokenizer, include_prompt_context or ())
        self._stop = stop
        self._min_tokens = min_tokens
        self._tokens = 0
        self._held = ""
        self._matched: str | None = None

    @property
    def stopped(self) -> bool:
        return self._matched is not None

    def push(self, token_ids: Sequence[int]) -> Pushed:
        """Add tokens that the sequence has committed to; after a stop string has completed, nothing is kept."""
        text: list[str] = []
        for kept, token_id in enumerate(token_ids):
            if self._matched is not None:
                return Pushed("".join(text), kept, True, self._matched)
            self._tokens += 1
            delta = self._decoder.feed(token_id)
            if delta:
                text.append(self._release(delta))
        return Pushed("".join(text), len(token_ids), self._matched is not None, self._matched)

    def flush(self) -> str:
        """What is still held back, once no more tokens come; half a character becomes a replacement character."""
        if self._matched is not None:
            return ""
        text = self._release(self._decoder.finish())
        held, self._held = self._held, ""
        return text if self._matched is not None else text + held

    def fork(self) -> Detokenizer:
        """An independent copy, at the cost of the text held back."""
        twin = copy.copy(self)
        twin._decoder = self._decoder.fork()
        return twin

    def _release(self, delta: str) -> str:
        """Settled text after `delta`: up to a completed stop string, or to what may still become one."""
        if not self._stop:
            return delta
        checked = len(self._held)
        held = self._held + delta
        # Of several stop strings the one that completes first wins, so the cut into tokens does not matter.
        found = [
            (start + len(stop), start, stop)
            for stop in self._stop
            if (start := held.find(stop, max(0, checked - len(stop) + 1))) >= 0
        ]
        if found and self._tokens >= self._min_tokens:
            _, start, self._matched = min(found)
            self._held = ""
            return held[:start]
        release = min(_partial_start(held, stop) for stop in self._stop)
        self._held = held[release:]
        return held[:release]


def _partial_start(text: str, stop: str) -> int:
    """Where the longest end of `text` that is a proper beginning of `stop` starts; len(text) if there is none."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return start if start >= 0 else len(text)


def decoder_for(tokenizer: Any, context: Sequence[int] = ()) -> Decoder:
    """The decoder that fits the tokenizer: by bytes where each token is a string of bytes, else by windows."""
    vocabulary = byte_vocabulary(tokenizer)
    if vocabulary is not None:
        return ByteDecoder(vocabulary, context[-_CONTEXT_TOKENS:])
    return WindowDecoder(tokenizer, context[-_CONTEXT_TOKENS:])


class ByteVocabulary:
    """The bytes of each token of a byte-level tokenizer; special and unknown tokens have none."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._special = _special_ids(backend)
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        if token_id not in self._known:
            self._known[token_id] = self._look_up(token_id)
        return self._known[token_id]

    def _look_up(self, token_id: int) -> bytes:
        token = None if token_id in self._special else self._backend.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[c] for c in token)
        except KeyError:  # an added token holds plain text
            return token.encode()


class ByteDecoder:
    """For byte-level tokenizers: exact, constant work per token."""

    def __init__(self, vocabulary: ByteVocabulary, context: Sequence[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in context:
            self.feed(token_id)

    def feed(self, token_id: int) -> str:
        return self._utf8.decode(self._vocabulary.bytes_of(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", True)

    def fork(self) -> ByteDecoder:
        twin = ByteDecoder(self._vocabulary)
        twin._utf8.setstate(self._utf8.getstate())
        return twin


class WindowDecoder:
    """For every other tokenizer: decodes a few tokens of context with the pending ones and shows what that adds."""

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._window = [i for i in context if i not in self._special]
        self._context = len(self._window)
        self._shown = len(self._decode(self._window))

    def feed(self, token_id: int) -> str:
        if token_id in self._special:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        pending = len(self._window) - self._context
        is_settled = not text.endswith(REPLACEMENT) or pending >= _MAX_PENDING_TOKENS
        settled = text if is_settled else text.rstrip(REPLACEMENT)
        delta = settled[self._shown :]
        self._shown = max(self._shown, len(settled))
        if is_settled and delta:
            # The tokens just shown become the context of the next ones.
            del self._window[: self._context]
            self._context = len(self._window)
            self._shown = len(self._decode(self._window))
        return delta

    def finish(self) -> str:
        return self._decode(self._window)[self._shown :]

    def fork(self) -> WindowDecoder:
        twin = copy.copy(self)
        twin._window = list(self._window)
        return twin

    def _decode(self, token_ids: list[int]) -> str:
        if not token_ids:
            return ""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def special_ids(tokenizer: Any) -> set[int]:
    """Tokens that never show in a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return set(tokenizer.all_special_ids) | (set() if backend is None else _special_ids(backend))


def _special_ids(backend: Tokenizer) -> set[int]:
    return {i for i, token in backend.get_added_tokens_decoder().items() if token.special}


def _byte_alphabet() -> dict[str, int]:
    """Byte of each character of the byte-level alphabet (GPT-2): printable Latin-1 is itself, the rest move up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()
_VOCABULARIES: WeakKeyDictionary[Any, ByteVocabulary | None] = WeakKeyDictionary()


def byte_vocabulary(tokenizer: Any) -> ByteVocabulary | None:
    """The bytes of each of its tokens; None for a tokenizer whose tokens are not strings of bytes."""
    if tokenizer not in _VOCABULARIES:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None and isinstance(backend.decoder, decoders.ByteLevel):
            _VOCABULARIES[tokenizer] = ByteVocabulary(backend)
        else:
            _VOCABULARIES[tokenizer] = None
    return _VOCABULARIES[tokenizer]
