"""One choice as it is read from the engine's chunks: pieces of text, each with the log-probabilities of its tokens."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from workers.api_calls import CallDelta, CallReader
from workers.detokenizer import decoder_for
from workers.sequence import Chunk, EngineRequest, TokenLogprob
from workers.token_text import PromptText


class Scored(NamedTuple):
    """A token with its log-probability, None for the first of a prompt. offset: the character at which it begins."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


class Piece(NamedTuple):
    """What may be shown next. scored: of the tokens that begin in it; the last piece has all that are left. calls: what
    is added to calls of tools, which is no part of `text`.
    """

    text: str
    scored: tuple[Scored, ...]
    calls: tuple[CallDelta, ...] = ()


class ChoiceReader:
    """Text that may still become a stop string, and half a character, come late: their tokens' scores wait for them.

    has_logprobs: whether the client sees scores. echo: the prompt, where it is part of the answer. calls: reads calls
    of tools, where there may be any.
    """

    def __init__(
        self,
        tokenizer: Any,
        request: EngineRequest,
        has_logprobs: bool,
        echo: PromptText | None,
        calls: CallReader | None = None,
    ) -> None:
        self.calls = calls
        self._request = request
        self._has_logprobs = has_logprobs
        self._echo = echo
        self._decoder = decoder_for(tokenizer, request.prompt_token_ids) if has_logprobs else None
        self._at = 0 if echo is None else len(echo.text)  # where the next token begins
        self._shown = 0
        self._waiting: deque[Scored] = deque()
        self._has_begun = False

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self._request.prompt_token_ids

    def read(self, chunk: Chunk) -> Piece:
        text = chunk.text
        if not self._has_begun and self._echo is not None:
            text = self._echo.text + text
            self._wait_for_prompt(self._echo, chunk.prompt_logprobs)
        self._has_begun = True
        self._shown += len(text)
        if self._decoder is not None:
            for token in chunk.logprobs:
                self._waiting.append(Scored(token.token_id, token.logprob, token.top, self._at))
                self._at += len(self._decoder.feed(token.token_id))
        is_last = chunk.finish_reason is not None
        scored = tuple(self._release(is_last))
        if self.calls is None:
            return Piece(text, scored)
        content, deltas = self.calls.read(text, is_last)
        return Piece(content, scored, tuple(deltas))

    def _wait_for_prompt(self, echo: PromptText, logprobs: tuple[TokenLogprob | None, ...]) -> None:
        if self._has_logprobs and logprobs:
            token_ids = self._request.prompt_token_ids
            for token_id, offset, scored in zip(token_ids, echo.offsets, logprobs, strict=True):
                logprob, top = (None, ()) if scored is None else (scored.logprob, scored.top)
                self._waiting.append(Scored(token_id, logprob, top, offset))

    def _release(self, is_last: bool) -> list[Scored]:
        released = []
        while self._waiting and (is_last or self._waiting[0].offset < self._shown):
            released.append(self._waiting.popleft())
        return released
