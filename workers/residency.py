"""Who is in the KV cache: whom it takes in, who grows, and who has to leave so that others get on.

Preemption. A decoding sequence needs room for one more token; drafts take what room is left, and nobody is preempted
for them. Where there is none for a token, one sequence loses its blocks and waits at the head of its tenant's queue. It
is the youngest one of the tenant that holds most blocks (those of the tier `flex` first), so that a flood pays for
itself, and never the oldest of all: that one always gets on, so all do in turn. Nobody comes in in the same step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from workers.block_tables import BlockTables
from workers.fair_queue import FLEX, flow_of
from workers.kv_cache import BLOCK_SIZE
from workers.scheduler import Scheduler
from workers.sequence import Sequence


@dataclass(slots=True)
class CacheCounts:
    """By cohort, since the start. prompt_tokens: of the requests taken in; cached_tokens: of those, the ones that the
    prefix cache had. preemptions: of sequences.
    """

    prompt_tokens: Counter[str] = field(default_factory=Counter)
    cached_tokens: Counter[str] = field(default_factory=Counter)
    preemptions: Counter[str] = field(default_factory=Counter)


class Residency:
    """Places of `scheduler`'s sequences in the KV cache, at most `max_sequences` at once.

    on_found: told of a sequence, and the position from which on the prefix cache had more of its text.
    """

    def __init__(
        self, scheduler: Scheduler, tables: BlockTables, max_sequences: int, on_found: Callable[[Sequence, int], None]
    ) -> None:
        self._scheduler, self._tables = scheduler, tables
        self._max_sequences = max_sequences
        self._on_found = on_found
        self.counts = CacheCounts()

    @property
    def is_short(self) -> bool:
        """Whether more blocks would let a request in now, or save one from preemption."""
        growing = sum(self._tables.room(s) < 0 for s in self._decoding)
        return growing > self._tables.available or (self._has_next and not self._fits)

    @property
    def used_tokens(self) -> int:
        """Tokens that the blocks of running sequences have room for; a block that several share counts once."""
        return len({block for s in self._scheduler.running for block in s.blocks}) * BLOCK_SIZE

    def make_room(self) -> list[Sequence]:
        """Have every decoding sequence hold a block for its next token. Returns those that lost theirs for it."""
        preempted: list[Sequence] = []
        for sequence in sorted(self._decoding, key=lambda s: s.arrival):
            while sequence not in preempted and not self._tables.grow(sequence, len(sequence.token_ids)):
                preempted.append(self._preempt())
        return preempted

    def admit(self) -> list[Sequence]:
        """Take in those that are next, while there is room for their tokens and a block for each one that runs."""
        admitted = []
        while self._has_next and self._fits:
            sequence = self._scheduler.waiting.popleft()
            self._tables.admit(sequence)
            if not sequence.preemptions:
                self.counts.prompt_tokens[sequence.request.cohort] += sequence.prompt_length
            self._scheduler.running.append(sequence)
            self._found(sequence, 0)
            admitted.append(sequence)
        return admitted

    def skip(self) -> None:
        """Whoever is about to compute what another one has computed meanwhile takes that."""
        for sequence in self._scheduler.running:
            if sequence.is_prefilling:
                start = sequence.kv_length
                self._tables.skip(sequence)
                self._found(sequence, start)

    def make_draft_room(self, decoding: Seq[Sequence], k: Seq[int]) -> None:
        """Have them hold blocks for their drafts, too, as far as there are any."""
        for sequence, n in zip(decoding, k, strict=True):
            self._tables.grow(sequence, len(sequence.token_ids) + max(min(n, sequence.remaining - 1), 0))

    def leave(self, sequence: Sequence) -> None:
        """A running sequence has ended."""
        self._tables.publish(sequence)
        self._tables.release(sequence)
        self._scheduler.running.remove(sequence)

    @property
    def _decoding(self) -> list[Sequence]:
        return [s for s in self._scheduler.running if not s.is_prefilling]

    @property
    def _has_next(self) -> bool:
        return bool(self._scheduler.waiting) and len(self._scheduler.running) < self._max_sequences

    @property
    def _fits(self) -> bool:
        """Whether there is room for the sequence that is next. Alone it needs no reserve: it was found to fit alone."""
        head, running = self._scheduler.waiting.head, len(self._scheduler.running)
        reserve = running + 1 if running else 0
        return head is not None and self._tables.missing(head) + reserve <= self._tables.available

    def _preempt(self) -> Sequence:
        running = self._scheduler.running
        held: Counter[str] = Counter()
        for s in running:
            held[flow_of(s.request)] += len(s.blocks)
        oldest = min(running, key=lambda s: s.arrival)

        def rank(s: Sequence) -> tuple[bool, bool, int, int]:
            return s is not oldest, s.request.service_tier == FLEX, held[flow_of(s.request)], s.arrival

        victim = max(running, key=rank)
        self.leave(victim)
        victim.preemptions += 1
        self.counts.preemptions[victim.request.cohort] += 1
        self._scheduler.waiting.put_back(victim)
        return victim

    def _found(self, sequence: Sequence, start: int) -> None:
        found = sequence.kv_length - start
        if not found:
            return
        if not sequence.preemptions:
            sequence.cached_tokens += found
            self.counts.cached_tokens[sequence.request.cohort] += found
        self._on_found(sequence, start)
