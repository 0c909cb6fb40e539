"""Grammars that an answer must parse as: compiled once, then one state a sequence, as masks over the vocabulary.

A state moves on by committed tokens alone; drafts are looked at on a copy of it, so that nothing is ever rolled back.
The parser is llguidance's, which refuses a schema rather than ignore a part of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from workers.grammar_text import grammar_text
from workers.sequence import GrammarSpec
from workers.token_text import token_text
from workers.upload import upload

KEPT = 64
"""Compiled grammars that a worker keeps; the one used longest ago goes first."""
LIMITS = LLParserLimits(verbose_errors=False)
"""The library's own bounds on the time and memory of a grammar; its errors must not quote the text."""

PackedMask = bytes
"""One bit a token, lowest bit first: whether it may come next; padded to whole words of 32."""


class GrammarError(ValueError):
    """A grammar that cannot be compiled, with the reason in one line."""


class GrammarState:
    """How far the output of one sequence has got in its grammar. Not thread-safe.

    error: why nothing more can be said, where the parser gave up; from then on only the end is allowed.
    """

    def __init__(self, matcher: LLMatcher, end_token_ids: Collection[int], tokenizer: Any) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._ends = frozenset(end_token_ids)
        self.error: str | None = None

    def masks(self, drafts: Seq[int], rows: int) -> list[PackedMask | None]:
        """What may follow each of the last `rows` prefixes of `drafts`, the whole of them last.

        None for a row behind a draft that may not stand where it does: nothing will be read from that row.
        """
        first = len(drafts) + 1 - rows
        matcher = self._matcher.deep_copy() if drafts else self._matcher
        masks: list[PackedMask | None] = []
        for row in range(len(drafts) + 1):
            if row and not self._step(matcher, drafts[row - 1]):
                break
            if row >= first:
                masks.append(matcher.compute_bitmask())
        if matcher.is_error() and self.error is None:
            self.error = "the grammar is too complex for this text"
        return masks + [None] * (rows - len(masks))

    def valid(self, drafts: Seq[int]) -> int:
        """How many of the drafts, from the first on, may follow."""
        ended = next((i for i, token in enumerate(drafts) if token in self._ends), len(drafts))
        n: int = self._matcher.validate_tokens(list(drafts[:ended]))
        return n if n < ended or ended == len(drafts) else self._with_end(drafts, ended)

    def forced(self, most: int) -> list[int]:
        """Tokens that the grammar leaves no choice about, at most so many; there may be others that spell the same."""
        text: bytes = self._matcher.compute_ff_bytes() if most > 0 else b""
        forced = self._tokenizer.encode(text.decode(errors="ignore"), add_special_tokens=False)[:most] if text else []
        return forced[: self.valid(forced)]

    def advance(self, token_ids: Seq[int]) -> None:
        """The output has grown by these tokens."""
        taken = self._matcher.try_consume_tokens(list(token_ids))
        # Where nothing may follow, the library takes no end either: the state is as it should be.
        if taken < len(token_ids) and token_ids[taken] not in self._ends and self.error is None:
            self.error = "the output left its grammar"

    def _with_end(self, drafts: Seq[int], ended: int) -> int:
        copy = self._matcher.deep_copy()
        copy.try_consume_tokens(list(drafts[:ended]))
        return ended + int(copy.is_accepting())

    def _step(self, matcher: LLMatcher, token: int) -> bool:
        """Move a copy by one draft; whether it may stand there."""
        if token in self._ends and matcher.is_stopped():
            return not matcher.is_error()  # at the end, and what follows an end is another end
        return bool(matcher.try_consume_tokens([token]) == 1)


class Grammars:
    """Compiles grammars for one tokenizer and keeps the last of them. Thread-safe.

    vocab_size: of the model's logits; ids without a token are never allowed. end_token_ids: what ends a text.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, end_token_ids: Collection[int]) -> None:
        self._hf_tokenizer, self._vocab_size = tokenizer, vocab_size
        self._ends = tuple(sorted(end_token_ids))
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()
        self._lock, self._compiling = threading.Lock(), threading.Lock()

    def has(self, spec: GrammarSpec) -> bool:
        """Whether `start` would not have to compile."""
        return spec in self._compiled

    def compile(self, spec: GrammarSpec) -> LLMatcher:
        """The matcher at the start of the grammar, from then on kept. Raises GrammarError.

        The first one also builds the trie of the vocabulary, about a second for 50000 tokens. One is compiled at a
        time; those that are kept wait for none.
        """
        kept = self._kept(spec)
        if kept is not None:
            return kept
        with self._compiling:
            matcher = self._kept(spec) or self._compile(spec)
            with self._lock:
                self._compiled[spec] = matcher
                while len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            return matcher

    def start(self, spec: GrammarSpec) -> GrammarState:
        """A state at the start of the grammar. Raises GrammarError."""
        return GrammarState(self.compile(spec).deep_copy(), self._ends, self._hf_tokenizer)

    def _kept(self, spec: GrammarSpec) -> LLMatcher | None:
        with self._lock:
            matcher = self._compiled.get(spec)
            if matcher is not None:
                self._compiled.move_to_end(spec)
            return matcher

    def _compile(self, spec: GrammarSpec) -> LLMatcher:
        try:
            text = grammar_text(spec)
        except ValueError as error:
            raise GrammarError(f"grammar: {error}") from None
        if not self._ends:
            raise GrammarError("grammar: this model has no token that ends a text; leave it out")
        if self._tokenizer is None:
            vocabulary = _Vocabulary(self._hf_tokenizer, self._vocab_size, self._ends)
            self._tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), self._vocab_size, list(self._ends))
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
        matcher.compute_bitmask()  # the first mask builds the lexer: here, and not in a step
        if matcher.is_error():
            raise GrammarError(f"grammar: {matcher.get_error().splitlines()[0]}")
        return matcher


class _Vocabulary:
    """A transformers tokenizer as llguidance wants to see it."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, vocab_size: int, end_token_ids: Seq[int]) -> None:
        texts, known = token_text(tokenizer), len(tokenizer)
        self._tokenizer = tokenizer
        self.eos_token_id = end_token_ids[0]
        # A token that never shows in a text cannot be part of one that parses.
        silent = {i for i in range(vocab_size) if i >= known or i in end_token_ids or not texts.bytes_of(i)}
        self.special_token_ids = sorted(silent)
        self.tokens = [f"<{i}>".encode() if i in silent else texts.bytes_of(i) for i in range(vocab_size)]
        self._by_bytes = {token: i for i, token in enumerate(self.tokens) if i not in silent}
        self._longest_token = max(map(len, self._by_bytes), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """The tokens that spell `text`: where a grammar leaves one text, the library allows this spelling alone."""
        wanted = text if isinstance(text, bytes) else text.encode()
        token_ids = list(self._tokenizer.encode(wanted.decode(errors="replace"), add_special_tokens=False))
        if b"".join(self.tokens[i] for i in token_ids) == wanted:
            return token_ids
        # A tokenizer that begins a text with a blank, or has no token for a part of it: the longest tokens that fit.
        return self._longest(wanted)

    def _longest(self, wanted: bytes) -> list[int]:
        token_ids, at = [], 0
        while at < len(wanted):
            ends = (end for end in range(min(len(wanted), at + self._longest_token), at, -1))
            found = next(
                ((self._by_bytes[wanted[at:end]], end) for end in ends if wanted[at:end] in self._by_bytes), None
            )
            if found is None:
                break
            token_ids.append(found[0])
            at = found[1]
        return token_ids


def unpack(masks: Seq[PackedMask | None], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Masks as [len(masks), vocab_size] bool on that device, by one transfer; a row without one allows all."""
    width = next((len(mask) for mask in masks if mask is not None), -(-vocab_size // 8))
    everything = b"\xff" * width
    packed = np.frombuffer(b"".join(mask or everything for mask in masks), dtype=np.uint8).reshape(len(masks), width)
    if device.type == "cpu":
        bits = np.unpackbits(packed, axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    # An eighth of the bytes go to the device.
    (sent,) = upload([torch.tensor(packed)], device)
    spread = (sent[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    return spread.view(len(masks), 8 * width)[:, :vocab_size].bool()
