"""What the drafter would be worth while it is off: drafts scored against committed tokens, and never verified.

A shadow walks a sequence as speculation would: it drafts, waits until the text has gone past its first wrong token (or
past its end), counts the draft as accepted up to there, and drafts again from that point. Nothing of it reaches the
target, so text, tokens and the cost of a request are untouched.

That is exact only where the token the target commits decides what would have been kept:

- a drafter that always says the same of a text (one token, no distribution): under rejection sampling its token x is
  kept with probability target_probs[x], which is how often the target's own sample is x;
- any drafter on a greedy or seeded sequence: the draft is then a function of text and seed, as the target's token is.

A drafter that samples, on an unseeded sequence, would need the target's distribution at every committed token; those
sequences are not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import structlog

from controlplane.telemetry import load_bucket
from workers.commit import Committed
from workers.proposers.base import Proposer
from workers.sequence import Sequence

log = structlog.get_logger(__name__)

TIME_SHARE = 0.01
"""Shadow seconds per second of decoding, at most."""
SAVED_S = 0.5
"""Shadow seconds that may be saved up; a draft that costs more than was saved is paid off before the next one."""
DEPTH_OF_A_MODEL = 4
"""Deepest shadow draft of a drafter that computes each of its tokens."""


class CountShadow(Protocol):
    def __call__(self, cohort: str, load_bucket: int, k: int, drafted: int, accepted: int, ended: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class _Draft:
    """What was drafted when the sequence had `start` tokens."""

    start: int
    token_ids: tuple[int, ...]
    load_bucket: int


class ShadowDrafts:
    """Scores `proposer` on sequences whose planned K is 0, for TIME_SHARE of the time that decoding takes.

    depth: draft tokens of a shadow, at most. clock: seconds. Not thread-safe: it belongs to an engine.
    """

    def __init__(
        self, proposer: Proposer, count: CountShadow, depth: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._proposer, self._count, self._clock = proposer, count, clock
        self._depth = depth if proposer.is_deterministic else min(depth, DEPTH_OF_A_MODEL)
        self._drafts: dict[str, _Draft] = {}
        self._saved_s = 0.0
        self._turn = 0
        self._broken = False

    def observe(self, committed: Seq[Committed], seconds: float) -> None:
        """After a step that took `seconds`: settle the drafts that its tokens decide, and draft where there is time.

        To be called before finished sequences are released.
        """
        if self._broken or self._depth < 1:
            return
        started = self._clock()
        self._saved_s = min(self._saved_s + TIME_SHARE * seconds, SAVED_S)
        try:
            self._settle(committed)
            self._draft(committed, started)
        except Exception:
            # A drafter that fails while it is off must not take the requests of this worker with it.
            log.exception("shadow drafting failed; it is off on this worker")
            self._broken = True
        self._saved_s -= self._clock() - started

    def forget(self, request_id: str) -> None:
        self._drafts.pop(request_id, None)

    def forget_all(self) -> None:
        self._drafts.clear()

    def _settle(self, committed: Seq[Committed]) -> None:
        for c in committed:
            draft = self._drafts.get(c.sequence.request.request_id)
            if draft is None:
                continue
            if c.planned_k:  # the drafter is at work again and gives evidence of its own
                self.forget(c.sequence.request.request_id)
                continue
            outcome = _outcome(draft, c.sequence, c.finish_reason is not None)
            if outcome is not None:
                self.forget(c.sequence.request.request_id)
                cohort, drafted = c.sequence.request.cohort, len(draft.token_ids)
                self._count(cohort, draft.load_bucket, self._depth, drafted, *outcome)

    def _draft(self, committed: Seq[Committed], started: float) -> None:
        rounds = [c for c in committed if not c.from_prefill]
        bucket = load_bucket(len(rounds))
        self._turn += 1
        for i in range(len(rounds)):
            if self._clock() - started >= self._saved_s:
                return
            c = rounds[(i + self._turn) % len(rounds)]
            sequence = c.sequence
            is_free = sequence.request.request_id not in self._drafts
            if is_free and c.planned_k == 0 and c.finish_reason is None and self._is_exact(sequence):
                # As in a step, which emits one token more than it drafts.
                proposal = self._proposer.propose([sequence], [min(self._depth, sequence.remaining - 1)])
                draft = _Draft(len(sequence.token_ids), tuple(proposal.tokens(0)), bucket)
                self._drafts[sequence.request.request_id] = draft

    def _is_exact(self, sequence: Sequence) -> bool:
        return self._proposer.is_deterministic or sequence.coupled or sequence.request.sampling.temperature == 0


def _outcome(draft: _Draft, sequence: Sequence, is_finished: bool) -> tuple[int, bool] | None:
    """(accepted, ended inside the draft) as verification would have had it; None while the text is too short to say."""
    text = sequence.token_ids[draft.start :]
    accepted = 0
    for drafted, committed in zip(draft.token_ids, text, strict=False):
        if drafted != committed:
            break
        accepted += 1
    if len(text) > accepted:
        return accepted, False
    return (accepted, True) if is_finished and accepted else None
