"""Which sequences run in this step: every decoding one, and one chunk of the oldest prefilling one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.sequence import Sequence

PREFILL_CHUNK = 128
"""Prompt tokens a step computes at most. Chunks start at multiples of it, so a prompt is always cut the same way."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one step.

    decoding: those that draft and verify. prefill: one whose prompt is being computed, its next chunk being
    prompt[kv_length : prefill_end]; when that completes the prompt, the step also samples its first token.
    """

    decoding: tuple[Sequence, ...] = ()
    prefill: Sequence | None = None
    prefill_end: int = 0

    @property
    def prefill_length(self) -> int:
        return self.prefill_end - self.prefill.kv_length if self.prefill else 0

    @property
    def completes_prefill(self) -> bool:
        return self.prefill is not None and self.prefill_end == self.prefill.prompt_length

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Those that a token is sampled for: the decoding ones, then the one whose prompt completes."""
        return (*self.decoding, self.prefill) if self.prefill and self.completes_prefill else self.decoding

    def __bool__(self) -> bool:
        return bool(self.decoding) or self.prefill is not None


@dataclass(slots=True)
class Scheduler:
    """First come, first served, as slots allow."""

    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)

    def schedule(self) -> Batch:
        decoding = tuple(s for s in self.running if not s.is_prefilling)
        prefill = next((s for s in self.running if s.is_prefilling), None)
        if prefill is None:
            return Batch(decoding)
        return Batch(decoding, prefill, min(prefill.kv_length + PREFILL_CHUNK, prefill.prompt_length))
