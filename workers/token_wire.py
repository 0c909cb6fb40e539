"""What a worker and an endpoint say over their connection: chunks as frames of JSON.

Length-prefixed and nothing that runs code when it is read. A chunk is a list of its fields in their order, without the
trailing ones that have their default: most are an id, a token and its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, astuple, dataclass, fields
from typing import Any

from controlplane.telemetry import RequestRecord
from workers.sequence import Chunk, TokenLogprob

PREFIX = 4
"""Bytes of a frame's length, big-endian, which does not count itself."""
MOST_FRAME = 2**30
"""Bytes. A step of very many prompts with all their log-probabilities has some hundred MB."""
MOST_GREETING = 256
"""Bytes of the first frame, which comes from somebody who is not known yet."""

_to_json = json.JSONEncoder(separators=(",", ":")).encode
_NAMES = tuple(f.name for f in fields(Chunk))
_DEFAULTS = tuple(f.default for f in fields(Chunk))
_NEEDED = sum(default is MISSING for default in _DEFAULTS)
_RECORD = _NAMES.index("record")


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Where an endpoint takes tokens. secret: what a worker says first, so that nobody else can bring any.

    local: abstract name of a Unix socket, which a worker of the same machine reaches in half the time; "": none.
    """

    host: str
    port: int
    secret: str
    local: str = ""


class WireError(ValueError):
    """What came is no frame of ours."""


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(PREFIX, "big") + payload


def encode(chunks: Sequence[Chunk]) -> bytes:
    """One frame."""
    return framed(_to_json([_row(chunk) for chunk in chunks]).encode())


def decode(payload: bytes | bytearray | memoryview) -> list[Chunk]:
    """The chunks of a frame, without its length. Raises WireError."""
    try:
        return [_chunk(row) for row in json.loads(bytes(payload))]
    except (ValueError, TypeError, LookupError) as error:
        raise WireError(f"{type(error).__name__}: {error}") from None


class FrameReader:
    """Puts frames together from bytes as they arrive. most: bytes of a frame, may be changed between two of them."""

    def __init__(self, most: int = MOST_FRAME) -> None:
        self.most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now. Raises WireError where one says that it is longer than it may be."""
        self._buffer += data
        while len(self._buffer) >= PREFIX:
            length = int.from_bytes(self._buffer[:PREFIX], "big")
            if length > self.most:
                raise WireError(f"a frame of {length} bytes; at most {self.most} are taken")
            if len(self._buffer) < PREFIX + length:
                return
            frame = bytes(self._buffer[PREFIX : PREFIX + length])
            del self._buffer[: PREFIX + length]
            yield frame


def _row(chunk: Chunk) -> list[Any]:
    row = [getattr(chunk, name) for name in _NAMES]
    if chunk.record is not None:
        row[_RECORD] = astuple(chunk.record)
    while len(row) > _NEEDED and row[-1] == _DEFAULTS[len(row) - 1]:
        row.pop()
    return row


def _chunk(row: list[Any]) -> Chunk:
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=False))
    values["token_ids"] = tuple(values["token_ids"])
    if values.get("steps"):
        values["steps"] = tuple((drafted, accepted) for drafted, accepted in values["steps"])
    if values.get("record") is not None:
        values["record"] = RequestRecord(*values["record"])
    if values.get("logprobs"):
        values["logprobs"] = tuple(map(_logprob, values["logprobs"]))
    if values.get("prompt_logprobs"):
        values["prompt_logprobs"] = tuple(None if v is None else _logprob(v) for v in values["prompt_logprobs"])
    for name in ("steps", "logprobs", "prompt_logprobs", "prediction"):
        if name in values:
            values[name] = tuple(values[name])
    return Chunk(**values)


def _logprob(found: list[Any]) -> TokenLogprob:
    token_id, logprob, top = found
    return TokenLogprob(token_id, logprob, tuple((token, value) for token, value in top))
