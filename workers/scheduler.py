"""Which sequences run in this step: every decoding one, and chunks of prompts up to a budget of tokens.

A preempted sequence comes back as a prompt does, by chunks, and goes on behind its prompt with what it had emitted:
in pieces of the size that decoding has, so that their KV is what decoding gave (workers/attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.fair_queue import FairQueue
from workers.sequence import Sequence

PREFILL_CHUNK = 128
"""Prompt tokens a step computes at most. Chunks start at multiples of it, so a prompt is always cut the same way, but
for what the prefix cache has of it."""
REPLAY_ROWS = 32
"""Emitted tokens whose KV a step computes again at most: of the shapes that decoding has."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The next chunk of a text whose KV is missing: token_ids[sequence.kv_length : end], until that is computed.

    is_replay: of tokens that were emitted before a preemption, not of the prompt.
    """

    sequence: Sequence
    end: int
    is_replay: bool = False

    @property
    def length(self) -> int:
        return self.end - self.sequence.kv_length

    @property
    def completes(self) -> bool:
        """Whether it is the prompt's last one; the step then samples the first token, too, unless that came before."""
        return self.end == self.sequence.prompt_length and self.sequence.completion_length == 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one step. decoding: those that draft and verify. prefills: chunks of prompts, then replays."""

    decoding: tuple[Sequence, ...] = ()
    prefills: tuple[Prefill, ...] = ()

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Those that a token is sampled for: the decoding ones, then those whose prompt completes."""
        return (*self.decoding, *(prefill.sequence for prefill in self.prefills if prefill.completes))

    def __bool__(self) -> bool:
        return bool(self.decoding or self.prefills)


def next_chunk(sequence: Sequence) -> Prefill:
    start, prompt_length = sequence.kv_length, sequence.prompt_length
    if start < prompt_length:
        return Prefill(sequence, min(start - start % PREFILL_CHUNK + PREFILL_CHUNK, prompt_length))
    return Prefill(sequence, min(start + REPLAY_ROWS, len(sequence.token_ids) - 1), is_replay=True)


@dataclass(slots=True)
class Scheduler:
    """waiting: for a place, by fair share. running: those that have one. turns: ids of the prompts, whose turn is next
    first.
    """

    waiting: FairQueue = field(default_factory=FairQueue)
    running: list[Sequence] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)

    def schedule(self) -> Batch:
        """Prompts take turns, a chunk each: a long one holds a short one up for a chunk and not for its length. Chunks
        that fit into what is left of PREFILL_CHUNK tokens go along, so that short prompts start together.
        """
        decoding = tuple(s for s in self.running if not s.is_prefilling)
        prompts = {s.request.request_id: s for s in self.running if s.is_prefilling}
        known = [name for name in self.turns if name in prompts]
        order = known + [name for name in prompts if name not in known]
        left = {False: PREFILL_CHUNK, True: REPLAY_ROWS}
        taken = []
        for name in order:
            chunk = next_chunk(prompts[name])
            if chunk.length <= left[chunk.is_replay]:
                taken.append(chunk)
                left[chunk.is_replay] -= chunk.length
        served = {chunk.sequence.request.request_id for chunk in taken}
        self.turns = [name for name in order if name not in served] + [name for name in order if name in served]
        return Batch(decoding, tuple(sorted(taken, key=lambda chunk: chunk.is_replay)))
