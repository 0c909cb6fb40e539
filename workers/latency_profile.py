"""How long a step takes by its size, measured before there is traffic to learn it from.

Only while the engine is idle, one step at a time, so that no request waits for more than the step that runs as it
arrives. The sizes are gone through in turns and each one's median counts: what else the machine does then hits all of
them alike. Every step is a real one, in blocks that nobody owns and of sequences that nobody asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import structlog

from controlplane.telemetry import ProfileCell
from workers.detokenizer import Detokenizer
from workers.sequence import EngineRequest, SamplingParams, Sequence

log = structlog.get_logger(__name__)

NEAR_CONTEXT = 128
FAR_CONTEXT = 1024
ROUNDS_LEAST = 3
ROUNDS_MOST = 9
RESEND_S = 60.0
PERIOD = 31
SCRATCH = "\0profile"
"""In the names of made-up requests: no client's request can be called so."""


class StepSize(NamedTuple):
    """A step of `sequences` with `k` draft tokens each, at `context` tokens of context each."""

    sequences: int
    k: int
    context: int


class StepTime(NamedTuple):
    """What a step of that size took: seconds, drafting included; drafted: draft tokens that it really had.

    tree: the parents of the token tree that each sequence drafted; empty for chains.
    """

    seconds: float
    draft_seconds: float
    drafted: int
    tree: tuple[int, ...] = ()


def step_sizes(rungs: Iterable[int], max_sequences: int, context: int) -> tuple[StepSize, ...]:
    """The sizes worth measuring, the most telling ones first, for slots of `context` tokens.

    First K = 0, the largest rung and the smallest positive one at 1 and `max_sequences` sequences (the jump from no
    draft to one is not the slope from one to many), then the first two at 2, 4, 8, ..., then further into the context
    (a step's cost rises with it), then the other rungs.
    """
    near = max(1, min(NEAR_CONTEXT, context // 4))
    ladder = sorted(k for k in {0, *rungs} if near + k + 1 <= context)
    ends = list(dict.fromkeys((ladder[0], ladder[-1])))
    powers = [1 << i for i in range(max_sequences.bit_length()) if 1 << i <= max_sequences]
    counts = list(dict.fromkeys((1, max_sequences, *powers)))
    far = min(FAR_CONTEXT, context - ladder[-1] - 1)
    first = dict.fromkeys((*ends, ladder[min(1, len(ladder) - 1)]))
    sizes = [StepSize(n, k, near) for n in counts[:2] for k in first]
    sizes += [StepSize(n, k, near) for n in counts[2:] for k in ends]
    if far >= 2 * near:
        sizes += [StepSize(n, k, far) for n in counts[:2] for k in ends]
    sizes += [StepSize(n, k, near) for n in sorted(counts) for k in ladder]
    return tuple(dict.fromkeys(sizes))


def scratch_sequences(size: StepSize, tables: Iterable[list[int]], vocab_size: int, tokenizer: Any) -> list[Sequence]:
    """Decoding sequences that nobody asked for, one for each block table, with their context taken as computed.

    Their text repeats itself, so that an n-gram drafter finds something to say.
    """
    period = min(PERIOD, max(1, size.context // 3))
    token_ids = [(5 + 7 * (i % period)) % vocab_size for i in range(size.context)]
    sampling = SamplingParams(size.k + 2, temperature=0.0, ignore_eos=True)
    return [
        Sequence(
            # A prompt one shorter: the token that prefill yields is there, so this is a decoding sequence.
            EngineRequest(f"{SCRATCH}{number}", tuple(token_ids[:-1]), sampling, SCRATCH),
            list(token_ids),
            noise_seed=0,
            detokenizer=Detokenizer(tokenizer),
            blocks=blocks,
            kv_length=size.context - 1,
        )
        for number, blocks in enumerate(tables)
    ]


@dataclass(slots=True)
class _Samples:
    seconds: list[float] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    tree: tuple[int, ...] = ()

    def add(self, took: StepTime) -> None:
        self.seconds.append(took.seconds)
        self.draft_seconds.append(took.draft_seconds)
        self.tree = took.tree


class LatencyProfile:
    """Measures `sizes` by `run` (None: not now) within about `budget_s` seconds; `advance` does one step of it.

    Warm-up comes first, once through the sizes, up to a quarter of the budget (the very first step is free): sizes
    behind that are left out. Then rounds, ROUNDS_LEAST or as many as the budget holds. A size whose drafter had less to
    say is left out, too.
    """

    def __init__(
        self,
        sizes: Iterable[StepSize],
        run: Callable[[StepSize], StepTime | None],
        budget_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run, self._budget_s, self._clock = run, budget_s, clock
        self._todo = list(sizes) if budget_s > 0 else []
        self._samples: dict[StepSize, _Samples] = {}
        self._rounds_done = 0  # the warm-up is the first
        self._spent_s = 0.0
        self._is_begun = False
        self._sent: tuple[int, float] | None = None
        self.cells: tuple[ProfileCell, ...] = ()

    def advance(self) -> bool:
        """Run one step; False when there is nothing left to measure. Raises what the step raises."""
        if not self._todo:
            return False
        size = self._todo.pop(0)
        started = self._clock()
        took = self._run(size)
        # The very first step pays for what a device does once; on a busy start it would use up the warm-up alone.
        self._spent_s += self._clock() - started if self._is_begun else 0.0
        self._is_begun = True
        if self._rounds_done:
            if took is not None:
                self._samples[size].add(took)
        else:
            if took is not None and took.drafted == size.sequences * size.k:
                self._samples[size] = _Samples()
            if self._spent_s >= self._budget_s / 4:
                self._todo.clear()
        if not self._todo or self._is_far_over:
            self._end_round()
        return bool(self._todo)

    @property
    def _is_far_over(self) -> bool:
        """The machine became so slow that the rounds planned for the budget take twice as long."""
        return self._spent_s >= 2 * self._budget_s

    def _end_round(self) -> None:
        self._rounds_done += 1
        measured = self._rounds_done - 1
        has_time = self._spent_s * (1 + 1 / self._rounds_done) <= self._budget_s
        if not self._is_far_over and measured < ROUNDS_MOST and (measured < ROUNDS_LEAST or has_time):
            # By turns from both ends, so that a drift of the machine cancels.
            self._todo = list(self._samples)[:: -1 if measured % 2 else 1]
            return
        self._todo = []
        self.cells = tuple(
            ProfileCell(*size, median(samples.seconds), median(samples.draft_seconds), samples.tree)
            for size, samples in sorted(self._samples.items())
            if len(samples.seconds) >= ROUNDS_LEAST
        )
        log.info("latency profile", cells=len(self.cells), rounds=measured, seconds=round(self._spent_s, 2))

    def to_send(self, plan_epoch: int, now: float) -> tuple[ProfileCell, ...]:
        """The cells, where a controller may lack them: once measured, to each new controller, and every RESEND_S.

        now: seconds of a monotonic clock.
        """
        if not self.cells or (self._sent is not None and self._sent[0] == plan_epoch and now < self._sent[1]):
            return ()
        self._sent = plan_epoch, now + RESEND_S
        return self.cells
