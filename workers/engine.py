"""The decoding loop. `step()` is the only place that knows the order of its stages."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import structlog

from controlplane.telemetry import FinishReason, RequestRecord, WorkerWindow
from workers.block_tables import BlockTables
from workers.commit import Committed, commit
from workers.compiled.compilable import Compilable
from workers.compiled.graph import CompiledGraph
from workers.deadlines import Deadlines
from workers.detokenizer import Detokenizer
from workers.energy import EnergySampler
from workers.fair_queue import cost_of
from workers.freed_memory import give_back_freed_memory
from workers.grammar import Grammars
from workers.kv_cache import BLOCK_SIZE, blocks_for
from workers.latency_profile import LatencyProfile, StepSize, StepTime, scratch_sequences
from workers.logprobs import prompt_logprobs
from workers.meter import Gauges, Meter
from workers.plan_client import PlanClient
from workers.proposers.base import NO_TREES, Proposal, Proposer
from workers.residency import Residency
from workers.scheduler import Batch, Scheduler
from workers.sequence import Chunk, EngineRequest, Sequence
from workers.shadow import ShadowDrafts
from workers.submission import check_request, check_room
from workers.target import Score, Target
from workers.token_tree import Trees, tree_for
from workers.tree_rows import tree_obstacle
from workers.uniform_rows import has_uniform_rows
from workers.upload import index
from workers.verifier import Accepted, Verifier

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify round and prefill chunks, committed.

    draft_positions: positions computed by a draft model for each decoding sequence. seconds: wall time without
    prefill, draft_seconds of it for drafting. context: tokens of the decoding sequences before it.
    """

    committed: list[Committed]
    draft_positions: Seq[int]
    seconds: float
    draft_seconds: float
    context: int
    prefill_s: float


class Engine:
    """One model on one device, decoding many sequences at once. Not thread-safe: one thread owns it.

    max_sequences: that run at once; None for as many as the target's runner is for. prefix_cache: whether KV of a text
    serves the next one that begins alike. trees: whether a drafter that knows token trees may draft them; where the
    target's rows of a tree have other bits than its chains, it never does.
    """

    def __init__(
        self,
        target: Target,
        proposer: Proposer,
        verifier: Verifier,
        plan_client: PlanClient,
        meter: Meter,
        tokenizer: Any,
        eos_token_ids: Collection[int],
        clock: Callable[[], float] = time.time,
        shadow: ShadowDrafts | None = None,
        deadlines: Deadlines | None = None,
        max_sequences: int | None = None,
        prefix_cache: bool = True,
        trees: bool = True,
    ) -> None:
        self.target = target
        self.proposer = proposer
        self.verifier = verifier
        self.plan_client = plan_client
        self.meter = meter
        self.scheduler = Scheduler()
        self.max_sequences = max_sequences or target.runner.num_slots
        is_uniform = prefix_cache and has_uniform_rows(target.runner)
        self.tables = BlockTables(target.runner.kv.num_blocks, prefix_cache, is_uniform)
        self.residency = Residency(self.scheduler, self.tables, self.max_sequences, self._teach_found)
        if prefix_cache:
            target.keep_features()
        self._trees = _usable_trees(target, proposer) if trees else NO_TREES
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._clock = clock
        self._shadow = shadow
        self.grammars = Grammars(tokenizer, target.runner.vocab_size, eos_token_ids)
        self.uncompiled: tuple[Compilable, ...] = ()
        self.new_profile: Callable[[], LatencyProfile] | None = None
        self.profile: LatencyProfile | None = None
        self.energy: EnergySampler | None = None
        self.deadlines = deadlines or Deadlines()
        self.overdue: Counter[str] = Counter()
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def drafts_trees(self) -> bool:
        """Whether drafts may be trees."""
        return bool(self._trees)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises ValueError for one that cannot be served as asked, or whose id is in use.

        A grammar that `grammars` does not have yet is compiled here, which may take a second.
        """
        runner = self.target.runner
        check_request(request, runner.context, runner.vocab_size)
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        check_room(request, self.tables.num_blocks * BLOCK_SIZE)
        sampling, grammar = request.sampling, request.grammar
        sequence = Sequence(
            request,
            list(request.prompt_token_ids),
            noise_seed=secrets.randbits(63) if sampling.seed is None else sampling.seed % 2**63,
            detokenizer=Detokenizer(
                self._tokenizer, sampling.stop, request.prompt_token_ids, min_tokens=sampling.min_tokens
            ),
            grammar=None if grammar is None else self.grammars.start(grammar),
        )
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._sequences[request.request_id] = sequence
        self.scheduler.waiting.append(sequence)
        deadline_at = request.deadline_at
        self.deadlines.start(request.request_id, None if deadline_at is None else deadline_at - self._clock())
        self.meter.count_start(sequence)

    def cancel(self, request_id: str) -> Chunk | None:
        """Forget a request and free its blocks; its last chunk carries the record. None where there is no such one."""
        sequence = self._sequences.get(request_id)
        return None if sequence is None else self._end(sequence, "cancelled")

    def fail_all(self, error: str) -> list[Chunk]:
        """End every request with an error, so that one bad step leaves an empty, working engine."""
        return [self._end(s, "error", error) for s in list(self._sequences.values())]

    def end_overdue(self) -> list[Chunk]:
        """End the requests whose time is up, each with the reason (workers/deadlines.py) as its error, and count
        them by it; to be called before each step.
        """
        ended = [(self._sequences[name], reason) for name, reason in self.deadlines.overdue()]
        self.overdue.update(reason for _, reason in ended)
        return [self._end(sequence, "error", reason) for sequence, reason in ended]

    def step(self) -> list[Chunk]:
        """One draft-verify round of every decoding sequence, and chunks of prompts; a Chunk per sequence that moved."""
        preempted = self.residency.make_room()
        for sequence in preempted:
            self._set_aside(sequence)
        if not preempted:
            self._admit()
        self.residency.skip()
        batch = self.scheduler.schedule()
        if not batch:
            return []
        k = self.plan_client.k_for(batch.decoding)
        self.residency.make_draft_room(batch.decoding, k)
        started, computed = time.perf_counter(), [p.sequence.prefill_positions for p in batch.prefills]
        try:
            outcome = self._round(batch, k)
        except Exception:
            self._count_prefill(batch, computed, time.perf_counter() - started)
            raise
        self._count_prefill(batch, computed, outcome.prefill_s)
        self._count(batch, outcome)
        self._score_shadows(outcome)
        for prefill in batch.prefills:
            self.tables.publish(prefill.sequence)
        for c in outcome.committed:
            self.tables.publish(c.sequence)
        return [self._chunk(c) for c in outcome.committed]

    def rehearse(self, size: StepSize) -> StepTime | None:
        """Run one step of that size on made-up sequences and say what it took: nothing is counted, nothing remains.

        None, and no step, while there is work, too few blocks are free, or the drafter must not run.
        """
        is_forbidden = size.k > 0 and self.plan_client.is_drafter_off
        each = blocks_for(size.context + size.k)
        if self.has_work or is_forbidden or size.sequences > self.max_sequences:
            return None
        blocks = self.tables.borrow(each * size.sequences)
        if blocks is None:
            return None
        tables = [blocks[i : i + each] for i in range(0, len(blocks), each)]
        sequences = scratch_sequences(size, tables, self.target.runner.vocab_size, self._tokenizer)
        try:
            # At K = 0 the drafter is off, and so is what keeps it up to date.
            self.proposer.prime(sequences if size.k else ())
            self.meter.count_own_work()
            outcome = self._round(Batch(tuple(sequences)), (size.k,) * size.sequences)
        finally:
            for sequence in sequences:
                self.proposer.release(sequence)
            self.tables.give_back(blocks)
        trees = {c.tree.parents for c in outcome.committed if c.tree is not None}
        drafted = sum(c.drafted for c in outcome.committed)
        return StepTime(outcome.seconds, outcome.draft_seconds, drafted, next(iter(trees), ()))

    def adopt(self, part: Compilable, graph: CompiledGraph, at_once: bool = False) -> None:
        """Compute `part`, of the target or the drafter, by what was compiled of it.

        A text that has begun goes on as it began unless `at_once`: compiled, logits round otherwise. What was known of
        step times is forgotten.
        """
        part.adopt(graph)
        if part is self.target.runner:
            self.tables.is_compiled = True
            for sequence in self._sequences.values():
                sequence.is_eager = (sequence.prefill_positions > 0 or sequence.kv_length > 0) and not at_once
        else:
            part.drop_eager()
        self._drop_eager()
        if self.new_profile is not None:
            self.profile = self.new_profile()

    def _drop_eager(self) -> None:
        """Free what the eager forward alone needs, once the last text that began with it has ended."""
        runner = self.target.runner
        if runner.is_compiled and runner.has_eager and not any(s.is_eager for s in self._sequences.values()):
            runner.drop_eager()
            give_back_freed_memory()

    def close_window(self) -> WorkerWindow:
        """Close the meter's window with the engine's present state."""
        plan = self.plan_client
        profile = () if self.profile is None else self.profile.to_send(plan.plan.epoch, time.monotonic())
        return self.meter.close(
            Gauges(
                plan_version=plan.plan.version,
                plan_expired=plan.is_expired,
                plan_age_s=plan.age_s,
                running=len(self.scheduler.running),
                waiting=len(self.scheduler.waiting),
                kv_used=self.residency.used_tokens,
                kv_total=self.tables.num_blocks * BLOCK_SIZE,
                profile=profile,
            )
        )

    def _admit(self) -> None:
        for sequence in self.residency.admit():
            sequence.started_at = sequence.started_at or self._clock()
            self.deadlines.progress(sequence.request.request_id)

    def _set_aside(self, sequence: Sequence) -> None:
        """It was preempted: its drafter's state goes as its KV did, and comes back as that does."""
        self._forget_drafts(sequence)
        self.deadlines.pause(sequence.request.request_id)

    def _forget_drafts(self, sequence: Sequence) -> None:
        self.proposer.release(sequence)
        if self._shadow is not None:
            self._shadow.forget(sequence.request.request_id)

    def _teach_found(self, sequence: Sequence, start: int) -> None:
        """A drafter that reads features is told of those that were found with the KV, as of computed ones."""
        kv = self.target.runner.kv
        if kv.features is not None:
            self.proposer.learn(sequence, start, kv.read_features(sequence.blocks, start, sequence.kv_length))

    def _round(self, batch: Batch, k: Seq[int]) -> Round:
        """Draft, score, verify, commit; k: the plan's K of each decoding sequence."""
        context = sum(len(s.token_ids) for s in batch.decoding)
        started = time.perf_counter()
        budget = self._within_budget(batch, k)
        trees = [tree_for(self._trees, n) for n in budget] if self._trees else ()
        proposal = self.proposer.propose(batch.decoding, budget, *((trees,) if any(trees) else ()))
        draft_s = time.perf_counter() - started
        score = self.target.score(batch, proposal)
        verdict = self.verifier.verify(batch.sequences, proposal, score)
        kv_lengths = [s.kv_length for s in batch.decoding]
        self.target.keep_paths(batch.decoding, [v.nodes for v in verdict[: len(batch.decoding)]])
        committed = self._commit(batch, verdict, score.cu_draft, k, proposal)
        self._teach(batch, score, kv_lengths, [v.nodes for v in verdict])
        self._score_prompts(batch, score)
        seconds = time.perf_counter() - started - score.prefill_s
        return Round(committed, proposal.positions, seconds, draft_s, context, score.prefill_s)

    def _teach(self, batch: Batch, score: Score, kv_lengths: Seq[int], paths: Seq[tuple[int, ...] | None]) -> None:
        """Tell a drafter that reads features of the positions that stay.

        kv_lengths: of those decoding, before. paths: nodes of the trees that were accepted, None for chains.
        """
        if score.prefill_features:
            for prefill, features in zip(batch.prefills, score.prefill_features, strict=True):
                self.proposer.learn(prefill.sequence, prefill.end - len(features), features)
        if score.features is not None:
            for b, (sequence, start) in enumerate(zip(batch.decoding, kv_lengths, strict=True)):
                first, path = score.cu_draft[b] + b, paths[b]
                own = score.features[first : score.cu_draft[b + 1] + b + 1]
                if path is not None:
                    own = own[index([0, *(node + 1 for node in path)], own.device)]
                    self.target.runner.kv.write_features_of(sequence.blocks, start, own)
                self.proposer.learn(sequence, start, own[: sequence.kv_length - start].clone())

    @staticmethod
    def _score_prompts(batch: Batch, score: Score) -> None:
        """Keep the log-probabilities of prompt tokens that these chunks decide, where they are asked for."""
        for prefill, logits in zip(batch.prefills, score.prompt_logits, strict=True):
            if logits is None:
                continue
            sequence, known = prefill.sequence, len(prefill.sequence.prompt_logprobs)
            # After a preemption a chunk may decide again what is known.
            end = min(prefill.end, sequence.prompt_length - 1)
            logits = logits[max(len(logits) - (end - known), 0) :]
            token_ids = sequence.request.prompt_token_ids[known + 1 : known + 1 + len(logits)]
            num_top = sequence.request.sampling.prompt_logprobs or 0
            sequence.prompt_logprobs += prompt_logprobs(logits, token_ids, num_top)

    @staticmethod
    def _within_budget(batch: Batch, k: Seq[int]) -> list[int]:
        """A draft longer than what may still be emitted besides the extra token would be wasted, and its KV needs room.

        The room depends on the load only, never on what would be drafted.
        """
        return [min(n, s.remaining - 1, BlockTables.room(s)) for s, n in zip(batch.decoding, k, strict=True)]

    def _commit(
        self, batch: Batch, verdict: Seq[Accepted], cu_draft: Seq[int], k: Seq[int], proposal: Proposal
    ) -> list[Committed]:
        sequences = batch.sequences
        none = (0,) * len(sequences)
        planned, of_prediction = (*k, *none), (*proposal.predicted, *none)
        return [
            commit(
                s, verdict[b], cu_draft[b + 1] - cu_draft[b], planned[b], self._eos_token_ids, of_prediction[b],
                proposal.tree(b),
            )
            for b, s in enumerate(sequences)
        ]  # fmt: skip

    def _count(self, batch: Batch, outcome: Round) -> None:
        self.meter.count_step(
            outcome.committed, outcome.draft_positions, outcome.seconds, outcome.draft_seconds, outcome.context
        )
        for c, n in zip(outcome.committed, outcome.draft_positions, strict=False):
            c.sequence.draft_positions += n
        plan_version = self.plan_client.plan.version
        for sequence in [p.sequence for p in batch.prefills] + [c.sequence for c in outcome.committed if c.token_ids]:
            self.deadlines.progress(sequence.request.request_id)
        for c in outcome.committed:
            c.sequence.plan_version = plan_version
            if c.from_prefill and c.token_ids:
                c.sequence.first_token_at = self._clock()
                self.meter.count_first_token(c.sequence, c.sequence.first_token_at - c.sequence.request.created_at)

    def _count_prefill(self, batch: Batch, before: Seq[int], seconds: float) -> None:
        """What this step computed of prompts that had `before` positions computed: also where the step then failed."""
        done = [(p.sequence, p.sequence.prefill_positions - n) for p, n in zip(batch.prefills, before, strict=True)]
        total = sum(positions for _, positions in done)
        for sequence, positions in done:
            if positions > 0:
                # A prompt's tokens count as input with its first chunk.
                input_tokens = sequence.prompt_length if positions == sequence.prefill_positions else 0
                self.meter.count_prefill(sequence, positions, seconds * positions / total, input_tokens)

    def _score_shadows(self, outcome: Round) -> None:
        if self._shadow is None:
            return
        if self.plan_client.is_drafter_off:
            # Not only its drafts unused: whoever pulled the switch does not want it to run.
            self._shadow.forget_all()
        else:
            self._shadow.observe(outcome.committed, outcome.seconds)

    def _chunk(self, c: Committed) -> Chunk:
        request, grammar = c.sequence.request, c.sequence.grammar
        if grammar is not None and grammar.error is not None:
            return self._end(c.sequence, "error", grammar.error)
        steps = () if c.from_prefill else ((c.drafted, c.accepted),)
        record = self._release(c.sequence, c.finish_reason) if c.finish_reason else None
        is_scored = c.from_prefill and request.sampling.prompt_logprobs is not None
        scored = (None, *c.sequence.prompt_logprobs) if is_scored else ()
        return Chunk(
            request.request_id, c.token_ids, c.text, steps, c.finish_reason, record,
            logprobs=c.logprobs, prompt_logprobs=scored,
            prediction=_kept_and_lost(c), queue_s=c.sequence.queue_s if record else None,
            cached_tokens=c.sequence.cached_tokens if record or c.from_prefill else 0,
        )  # fmt: skip

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> Chunk:
        record = self._release(sequence, reason)
        return Chunk(
            sequence.request.request_id, (), "", (), reason, record, error,
            queue_s=sequence.queue_s, cached_tokens=sequence.cached_tokens,
        )  # fmt: skip

    def _release(self, sequence: Sequence, reason: FinishReason) -> RequestRecord:
        """Free what the sequence holds and write its record."""
        del self._sequences[sequence.request.request_id]
        self._drop_eager()
        self.deadlines.end(sequence.request.request_id)
        self._forget_drafts(sequence)
        if sequence in self.scheduler.running:
            self.residency.leave(sequence)
        else:
            self.scheduler.waiting.remove(sequence)
        if sequence.started_at:
            spent = sequence.prompt_length + sequence.completion_length
            self.scheduler.waiting.refund(sequence.request, cost_of(sequence.request) - spent)
        record = sequence.record(self._clock(), reason, self.meter)
        self.meter.count_end(sequence, record.tpot_s, failed=reason in ("error", "cancelled"))
        return record


def _usable_trees(target: Target, proposer: Proposer) -> Trees:
    """The proposer's, where the target computes their rows to the bit as it computes chains; else none, with a word."""
    if not proposer.trees:
        return NO_TREES
    obstacle = tree_obstacle(target.runner)
    if obstacle is None:
        return proposer.trees
    log.warning("drafts are chains, not trees", drafter=proposer.name, reason=obstacle)
    return NO_TREES


def _kept_and_lost(c: Committed) -> tuple[int, int]:
    """Draft tokens of a step that were from the request's prediction: those kept, and those drafted in vain."""
    kept = min(c.accepted, c.predicted)
    return kept, c.predicted - kept
