"""Our arms of the decode benchmark: an engine each, those with one drafter on the same loaded models.

Only one of them runs at a time, and none keeps KV between requests, so the models' blocks can be shared. What an arm
counts, plans and drafts in the shadow is its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from benchmarks.decode_arms import OurArm, Prompt, cohort_of
from benchmarks.decode_figures import BenchmarkError, Run
from benchmarks.drift_arms import START_AT, TICK_S, MemoryJournal, TurnClock
from benchmarks.drift_policy import ADAPTIVE, LADDER, policy_of
from controlplane.controller import Controller
from controlplane.policy import Policy
from controlplane.settings import Settings
from controlplane.telemetry import Report, RequestRecord
from workers.build import build_engine
from workers.compiled.background import compile_now
from workers.engine import Engine
from workers.latency_profile import LatencyProfile, step_sizes
from workers.meter import Meter
from workers.plan_client import PlanClient, constant_plan, unplanned
from workers.sequence import Chunk, EngineRequest, SamplingParams
from workers.shadow import ShadowDrafts

_request_ids = (str(number) for number in count(1))
"""Of all arms together: a drafter keeps what it knows of a request by its id."""


class LoadedModels:
    """Target and drafter, loaded and compiled once for all arms that use them.

    Raises ModelError, DrafterError, UnsupportedModel or CannotCompile.
    """

    def __init__(self, settings: Settings, policy: Policy) -> None:
        self.settings, self.policy = settings, policy
        self._engine, self.tokenizer = build_engine(settings, policy, worker=settings.drafter)
        compile_now(self._engine.uncompiled, settings.model_cache, self._engine.adopt)

    @property
    def eos_token_ids(self) -> list[int]:
        return sorted(self._engine.target.runner.eos_token_ids)

    def engine(self, arm: OurArm, clock: Callable[[], float], plan_client: PlanClient) -> Engine:
        """An engine as `build_engine` makes them, with a plan client, meter and shadow of its own."""
        of, runner = self._engine, self._engine.target.runner
        meter = Meter(arm.name, time.time_ns(), of.meter.model, of.meter.drafter, of.meter.device, clock, elapsed=clock)
        shadow = None if of.proposer.name == "none" else ShadowDrafts(of.proposer, meter.count_shadow, LADDER[-1])
        return Engine(
            of.target, of.proposer, of.verifier, plan_client, meter, self.tokenizer, runner.eos_token_ids, clock,
            shadow=shadow, prefix_cache=False, trees=arm.trees,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """The drafter's name@version."""
        return self._engine.meter.drafter

    @property
    def context(self) -> int:
        return self._engine.target.runner.context


class FixedArm:
    """One K for every request."""

    def __init__(self, arm: OurArm, models: LoadedModels, max_tokens: int) -> None:
        assert arm.k is not None
        self._name, self._k, self._max_tokens = arm.name, arm.k, max_tokens
        plan = constant_plan(arm.k, [cohort.name for cohort in models.policy.cohorts])
        self._engine = models.engine(arm, time.time, PlanClient(plan, time.time, arm.name, models.label))

    def run(self, prompt: Prompt, temperature: float, round: int) -> Run:
        chunks: list[Chunk] = []
        started = time.perf_counter()
        self._engine.submit(request_of(prompt, temperature, self._max_tokens, time.time()))
        while self._engine.has_work:
            chunks += self._engine.step()
        seconds = time.perf_counter() - started
        record = record_of(chunks)
        steps = record.spec_steps + record.plain_steps
        return run_of(self._name, prompt, temperature, round, chunks, seconds, steps, self._k * steps)


class AdaptiveArm:
    """K by a production Controller, which has a report a second of the arm's own time, and keeps what it learns.

    Its work is within the arm's seconds; a worker's controller is another process.
    """

    def __init__(self, arm: OurArm, models: LoadedModels, max_tokens: int) -> None:
        self._name, self._max_tokens = arm.name, max_tokens
        self.clock = TurnClock()
        policy = models.policy
        epoch = int(START_AT * 1e9) + sum(arm.name.encode())
        self.journal = MemoryJournal()
        self._controller = Controller(policy, self.journal, epoch=epoch, plan_ttl_s=10 * TICK_S)
        # Its own clock on both counts: a plan must not grow old while another arm has its turn.
        client = PlanClient(unplanned(policy), self.clock, arm.name, models.label, monotonic=self.clock)
        self._engine = models.engine(arm, self.clock, client)
        sizes = step_sizes(LADDER, models.settings.max_sequences, models.context)
        self._engine.profile = LatencyProfile(sizes, self._engine.rehearse, models.settings.profile_s)
        self._report_at, self._tick_at = START_AT + TICK_S, START_AT + TICK_S
        self._records: list[RequestRecord] = []
        self._k: Counter[int] = Counter()

    def settle(self, prompts: Sequence[Prompt], temperatures: Sequence[float], seconds: float) -> None:
        """Measure step times, as a worker does before its first request; then traffic of that many seconds, uncounted.

        Every prompt has its turn at every temperature: each is a cohort of its own to the controller.
        """
        profile = self._engine.profile
        while profile is not None and profile.advance():
            pass
        turn = 0
        while self.clock.seconds < seconds:
            at = turn % (len(prompts) * len(temperatures))
            self.run(prompts[at % len(prompts)], temperatures[at // len(prompts)], round=-1)
            turn += 1

    def run(self, prompt: Prompt, temperature: float, round: int) -> Run:
        chunks: list[Chunk] = []
        self._k.clear()
        self.clock.go()
        started = time.perf_counter()
        self._engine.submit(request_of(prompt, temperature, self._max_tokens, self.clock()))
        while self._engine.has_work:
            chunks += self._engine.step()
            if self.clock() >= self._report_at:
                self._report()
        seconds = time.perf_counter() - started
        self._records.append(record_of(chunks))
        # No window lies across two turns, so this one's steps can be told.
        self._report()
        self.clock.stand()
        planned = sum(k * steps for k, steps in self._k.items())
        return run_of(self._name, prompt, temperature, round, chunks, seconds, self._k.total(), planned)

    def _report(self) -> None:
        """What a worker's reporter and a controller do once a second; the answer is the plan of the tick before."""
        records, self._records = tuple(self._records), []
        window = self._engine.close_window()
        for cohort in window.cohorts:
            for cell in cohort.cells:
                self._k[cell.k] += sum(counted.steps for counted in cell.counts)
        self._engine.plan_client.accept(self._controller.observe(Report(window, records)))
        now = self.clock()
        self._report_at = now + TICK_S
        if now >= self._tick_at:
            self._controller.tick(now)
            self._tick_at = now + TICK_S


def load_ours(
    arms: Sequence[OurArm], settings: Callable[[str], Settings], cohorts: Sequence[str], max_tokens: int
) -> tuple[dict[str, FixedArm | AdaptiveArm], LoadedModels]:
    """The arms by name, and the models of the last. settings: of a drafter."""
    policy = policy_of(cohorts, ADAPTIVE["adaptive"])
    models = {drafter: LoadedModels(settings(drafter), policy) for drafter in dict.fromkeys(a.drafter for a in arms)}
    made = {
        arm.name: (AdaptiveArm if arm.k is None else FixedArm)(arm, models[arm.drafter], max_tokens) for arm in arms
    }
    return made, models[arms[-1].drafter]


def request_of(prompt: Prompt, temperature: float, max_tokens: int, now: float) -> EngineRequest:
    """Seeded where it samples: its text is then a function of the prompt, whatever drafts."""
    sampling = SamplingParams(max_tokens, temperature, seed=prompt.seed if temperature else None)
    cohort = cohort_of(prompt.domain, temperature)
    return EngineRequest(next(_request_ids), prompt.token_ids, sampling, cohort, created_at=now)


def record_of(chunks: Sequence[Chunk]) -> RequestRecord:
    """Of the request that they are all of. Raises BenchmarkError where it failed."""
    last = chunks[-1]
    if last.record is None or last.error is not None:
        raise BenchmarkError(f"a request failed: {last.error or last.finish_reason}")
    return last.record


def run_of(
    arm: str, prompt: Prompt, temperature: float, round: int, chunks: Sequence[Chunk], seconds: float, steps: int,
    planned: int,
) -> Run:  # fmt: skip
    record = record_of(chunks)
    token_ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
    text = "".join(chunk.text for chunk in chunks)
    return Run(
        arm, prompt.domain, prompt.index, round, token_ids, text, seconds, record.spec_steps, record.accepted_tokens,
        temperature, steps, planned,
    )  # fmt: skip
