"""The calls in an answer with tools, read piece by piece as the text comes, however it is cut."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workers.api_tools import BEGIN, END

_HEAD = re.compile(r'\s*\{"name": "([a-zA-Z0-9_-]+)", "arguments": ')


class CallDelta(NamedTuple):
    """What is added to call `number`, from 0: its id and name first, then pieces of its arguments."""

    number: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Call:
    """A call as far as it has come; arguments: JSON text, cut where the answer was."""

    id: str
    name: str
    arguments: str = ""


class CallReader:
    """Takes an answer's text apart into content and calls. Text behind the first call is never content.

    calls: those begun. is_whole: whether none of them is under way.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._held = ""
        self._depth = 0
        self._in_string = self._is_escaped = False

    @property
    def is_whole(self) -> bool:
        return self._state == "text"

    def read(self, text: str, is_last: bool) -> tuple[str, list[CallDelta]]:
        """Content and what is added to calls; blanks before a call, and what may become its tag, come late or never."""
        self._held += text
        content, deltas = "", list[CallDelta]()
        while True:
            match self._state:
                case "text":
                    before, tag, after = self._held.partition(BEGIN)
                    keep = 0 if tag else _start_of_tag(before)
                    shown = before.rstrip() if tag else before[: len(before) - keep]
                    if is_last and not tag:
                        shown, keep = before, 0
                    if not self.calls:
                        content += shown
                    self._held = after if tag else before[len(before) - keep :]
                    if not tag:
                        return content, deltas
                    self._state = "head"
                case "head":
                    head = _HEAD.match(self._held)
                    if head is None:
                        return content, deltas
                    self.calls.append(Call(f"call_{uuid.uuid4().hex[:24]}", head[1]))
                    call = self.calls[-1]
                    deltas.append(CallDelta(len(self.calls) - 1, "", call.id, call.name))
                    self._held = self._held[head.end() :]
                    self._state, self._depth = "arguments", 0
                case "arguments":
                    end = self._end_of_object(self._held)
                    if end:
                        self.calls[-1].arguments += self._held[:end]
                        deltas.append(CallDelta(len(self.calls) - 1, self._held[:end]))
                        self._held = self._held[end:]
                    if self._depth or not end:
                        return content, deltas
                    self._state = "tail"
                case "tail":
                    _, tag, after = self._held.partition(END)
                    if not tag:
                        return content, deltas
                    self._held, self._state = after, "text"

    def _end_of_object(self, text: str) -> int:
        """How much of `text` belongs to the object that is under way; `_depth` is 0 where it ends there."""
        for i, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return len(text)


def _start_of_tag(text: str) -> int:
    """Length of the end of `text` that may still be the blanks before a tag, or a tag's beginning."""
    longest = next((n for n in range(min(len(BEGIN) - 1, len(text)), 0, -1) if text.endswith(BEGIN[:n])), 0)
    head = text[: len(text) - longest]
    return longest + len(head) - len(head.rstrip())
