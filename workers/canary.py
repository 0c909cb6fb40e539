"""The canary: a sample of finished requests is computed again by the target alone, off the hot path.

Acceptance cannot see wrong text: a verifier that lets drafts pass, or a cache that keeps rejected tokens, makes it look
better. So the tokens that clients were sent are fed to the target once more, without any draft, in KV blocks that are
free anyway, and all of them: nothing of it comes from the prefix cache, nor goes there. The prompt goes in the chunks
that prefill uses, the completion in pieces of PIECE_ROWS, whose rows have the bits of decoding (docs/canary.md). Only
greedy and seeded text can be told from wrong text, so only that is sampled.

One piece at a time, between two steps or while nothing is served, within a share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from controlplane.alerts import CanaryCheck
from workers.canary_score import Comparison, compare, is_reproducible
from workers.engine import Engine
from workers.grammar import GrammarState
from workers.kv_cache import blocks_for
from workers.scheduler import PREFILL_CHUNK
from workers.sequence import Chunk, EngineRequest
from workers.step_layout import Rows

log = structlog.get_logger(__name__)

PIECE_ROWS = 32
"""Completion tokens computed at once: few enough that a step waits little, and of the shapes that decoding has."""
PIECE_S = 0.05
"""What a piece is expected to take before one was measured, seconds."""
COHORTS_MOST = 64
"""Cohorts of which a request is kept for a check; a request is a few thousand integers."""


@dataclass(slots=True)
class _Followed:
    """A request under way, and the tokens that were sent."""

    request: EngineRequest
    emitted: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Check:
    """A check under way in `blocks`: fed tokens of prompt and completion are computed.

    grammar: of a request that has one, at the end of what was compared.
    """

    followed: _Followed
    blocks: list[int]
    grammar: GrammarState | None = None
    fed: int = 0
    found: Comparison = field(default_factory=Comparison)
    rows: int = 0
    seconds: float = 0.0

    @property
    def next_rows(self) -> tuple[int, ...]:
        """The tokens of the next piece; empty when all is compared. The last token decides nothing."""
        request, emitted = self.followed.request, self.followed.emitted
        prompt_length = len(request.prompt_token_ids)
        if self.fed < prompt_length:
            return request.prompt_token_ids[self.fed : self.fed + PREFILL_CHUNK]
        start = self.fed - prompt_length
        return tuple(emitted[start : min(start + PIECE_ROWS, len(emitted) - 1)])


class Canary:
    """Follows requests by what is sent, and checks one at a time. Owned by the engine's thread.

    share: of wall time, 0 = off. clock: monotonic seconds; wall: unix seconds.
    """

    def __init__(
        self,
        engine: Engine,
        share: float,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._share = share
        self._clock, self._wall = clock, wall
        self._followed: dict[str, _Followed] = {}
        self._waiting: dict[str, _Followed] = {}
        self._turn: dict[str, int] = {}
        self._turns = 0
        self._check: _Check | None = None
        self._balance_s, self._earned_at = 0.0, clock()
        self._piece_s = PIECE_S
        self._eos_token_ids = sorted(engine.target.runner.eos_token_ids)

    def begin(self, request: EngineRequest) -> None:
        """A request was taken in."""
        if self._share > 0 and is_reproducible(request):
            self._followed[request.request_id] = _Followed(request)

    def follow(self, chunk: Chunk) -> None:
        """A chunk was sent. A finished request that drafted waits for a check, in place of its cohort's last one."""
        followed = self._followed.get(chunk.request_id)
        if followed is None:
            return
        followed.emitted += chunk.token_ids
        if chunk.finish_reason is None:
            return
        del self._followed[chunk.request_id]
        if chunk.finish_reason in ("stop", "length") and chunk.record is not None and chunk.record.draft_tokens:
            self._keep(followed)

    def forget(self) -> None:
        """Drop every request kept or followed: their drafter has been found out."""
        self._followed.clear()
        self._waiting.clear()

    def start_over(self) -> None:
        """Drop also the check under way: the target computes otherwise from now on, and cannot judge earlier text."""
        self.forget()
        if self._check is not None:
            self._stop()

    def is_due(self, busy: bool) -> bool:
        """Whether `piece` would do something now.

        busy: requests are being served, so a piece must have been saved up for. Else a check that began is brought to
        its end, and paid for before the next one.
        """
        if not busy and self._check is not None:
            return True
        if self._check is None and not self._has_room():
            return False
        return self._balance() >= (self._piece_s if busy else 0.0)

    def piece(self, busy: bool) -> CanaryCheck | None:
        """Compute one piece where one is due; the check that it completes."""
        if not self.is_due(busy):
            return None
        started = self._clock()
        self._engine.meter.count_own_work()
        try:
            check = self._check = self._check or self._start()
            self._advance(check)
        except Exception:
            # Serving goes on whatever happens to a check.
            log.exception("a canary check failed and was given up")
            if self._check is not None:
                self._stop()
            self._spend(self._clock() - started)
            return None
        seconds = self._clock() - started
        self._spend(seconds)
        check.seconds += seconds
        return None if check.next_rows else self._finish()

    def make_room(self) -> CanaryCheck | None:
        """Give the blocks back where a request lacks some; what was compared so far is the check."""
        if self._check is None or not self._engine.residency.is_short:
            return None
        return self.give_up()

    def give_up(self) -> CanaryCheck | None:
        """End the check under way: a result as far as it came, or the request waits again if none came after it."""
        check = self._check
        if check is None:
            return None
        if check.found.positions:
            return self._finish()
        self._stop()
        if check.followed.request.cohort not in self._waiting:
            self._keep(check.followed)
        return None

    def _keep(self, followed: _Followed) -> None:
        cohort = followed.request.cohort
        if cohort not in self._waiting and len(self._waiting) >= COHORTS_MOST:
            del self._waiting[max(self._waiting, key=lambda name: self._turn.get(name, 0))]
        self._waiting[cohort] = followed

    def _start(self) -> _Check:
        """Take the request of the cohort that has waited longest for its turn."""
        cohort = self._next()
        self._turns += 1
        self._turn = {**{name: self._turn[name] for name in self._waiting if name in self._turn}, cohort: self._turns}
        followed = self._waiting.pop(cohort)
        spec = followed.request.grammar
        grammar = None if spec is None else self._engine.grammars.start(spec)
        blocks = self._engine.tables.borrow(_needed(followed))
        assert blocks is not None
        return _Check(followed, blocks, grammar)

    def _next(self) -> str:
        """The cohort that has waited longest for its turn."""
        return min(self._waiting, key=lambda name: self._turn.get(name, 0))

    def _has_room(self) -> bool:
        """Whether a request waits for a check and there are blocks for it that no request lacks."""
        if not self._waiting or self._engine.residency.is_short:
            return False
        return _needed(self._waiting[self._next()]) <= self._engine.tables.available

    def _advance(self, check: _Check) -> None:
        request, emitted = check.followed.request, check.followed.emitted
        tokens, prompt_length = check.next_rows, len(request.prompt_token_ids)
        end = check.fed + len(tokens)
        # Row i decides the token after it: of the prompt's rows, only the last one decides any that was emitted.
        keep = range(len(tokens)) if check.fed >= prompt_length else [len(tokens) - 1]
        logits = self._engine.target.runner.forward([Rows(check.blocks, check.fed, tokens)], keep)
        if end >= prompt_length:
            at = max(check.fed - prompt_length + 1, 0)
            check.found += compare(logits, request, emitted, at, self._eos_token_ids, check.grammar)
            if check.grammar is not None:
                check.grammar.advance(emitted[at : at + len(logits)])
        else:
            float(logits[0, 0])  # a device that works behind our back would be paid for by the next step
        check.fed, check.rows = end, check.rows + len(tokens)

    def _finish(self) -> CanaryCheck:
        check = self._stop()
        found, request = check.found, check.followed.request
        meter = self._engine.meter
        return CanaryCheck(
            request_id=request.request_id,
            worker=meter.worker,
            cohort=request.cohort,
            drafter=meter.drafter,
            at=self._wall(),
            mode="greedy" if request.sampling.temperature == 0 else "seeded",
            positions=found.positions,
            near_ties=found.near_ties,
            mismatches=found.mismatches,
            worst_gap=found.worst_gap if found.worst_gap < float("inf") else None,
            tolerance=found.tolerance,
            first_mismatch=found.first_mismatch,
            rows=check.rows,
            seconds=check.seconds,
        )

    def _stop(self) -> _Check:
        check = self._check
        assert check is not None
        self._check = None
        self._engine.tables.give_back(check.blocks)
        return check

    def _balance(self) -> float:
        """Seconds that may be spent: a share of those that passed, less what was spent.

        No more is saved than one piece takes, so that a busy worker never pays for a quiet hour.
        """
        now = self._clock()
        self._balance_s = min(self._balance_s + self._share * (now - self._earned_at), self._piece_s)
        self._earned_at = now
        return self._balance_s

    def _spend(self, seconds: float) -> None:
        self._balance_s = self._balance() - seconds
        # The dearest of late: pieces differ, and a machine may become slower.
        self._piece_s = max(seconds, 0.9 * self._piece_s)


def _needed(followed: _Followed) -> int:
    """Blocks that a check of it takes."""
    return blocks_for(len(followed.request.prompt_token_ids) + len(followed.emitted))
