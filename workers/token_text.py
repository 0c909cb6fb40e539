"""What single tokens look like in log-probabilities, and where each begins in the text they spell together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from workers.detokenizer import byte_vocabulary, decoder_for, special_ids

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # as vocabularies with byte fallback write a byte
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # as SentencePiece writes a space


class TokenText:
    """The bytes and the names of a tokenizer's tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = byte_vocabulary(tokenizer)
        self._special = special_ids(tokenizer)
        self._special_names = {self.name(token_id) for token_id in self._special}
        self._known: dict[int, bytes] = {}

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark that never shows in a text."""
        return token_id in self._special

    def hides(self, name: str) -> bool:
        """Whether a special token has that name."""
        return name in self._special_names

    def name(self, token_id: int) -> str:
        """As the vocabulary writes it; empty where it has no such token."""
        return str(self._tokenizer.convert_ids_to_tokens(token_id) or "")

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to a text: nothing for a special one, part of a character for some."""
        if token_id not in self._known:
            self._known[token_id] = self._look_up(token_id)
        return self._known[token_id]

    def shown(self, token_id: int) -> str | None:
        """The token as text, a special one by its name; None where its bytes are no whole characters."""
        if self.is_special(token_id):
            return self.name(token_id)
        try:
            return self.bytes_of(token_id).decode()
        except UnicodeDecodeError:
            return None

    def escaped(self, token_id: int) -> str:
        r"""Its bytes, written as `\xf0\x9f`."""
        return "".join(f"\\x{byte:02x}" for byte in self.bytes_of(token_id))

    def _look_up(self, token_id: int) -> bytes:
        if self.is_special(token_id):
            return b""
        if self._vocabulary is not None:
            return self._vocabulary.bytes_of(token_id)
        name = self.name(token_id)
        byte = _BYTE_TOKEN.fullmatch(name)
        return bytes([int(byte[1], 16)]) if byte else name.replace(_WORD_START, " ").encode()


class PromptText(NamedTuple):
    """A prompt as `echo` shows it. offsets: the character at which each of its tokens begins."""

    text: str
    offsets: tuple[int, ...]


def prompt_text(tokenizer: Any, token_ids: Sequence[int], text: str | None) -> PromptText:
    """text: what the client wrote; None where it sent tokens, whose special ones are then shown by name."""
    tokens, decoder = token_text(tokenizer), decoder_for(tokenizer)
    pieces: list[str] = []
    offsets, at = [], 0
    for token_id in token_ids:
        offsets.append(at)
        if tokens.is_special(token_id):
            # One that the tokenizer added by itself is not in what the client wrote.
            name = tokens.name(token_id)
            piece = name if text is None or text.startswith(name, at) else ""
        else:
            piece = decoder.feed(token_id)
        pieces.append(piece)
        at += len(piece)
    return PromptText("".join(pieces) if text is None else text, tuple(offsets))


def token_text(tokenizer: Any) -> TokenText:
    """The one of this tokenizer."""
    if tokenizer not in _TEXTS:
        _TEXTS[tokenizer] = TokenText(tokenizer)
    return _TEXTS[tokenizer]


_TEXTS: WeakKeyDictionary[Any, TokenText] = WeakKeyDictionary()
