"""The canary on the engine's own thread: wrong text stops the drafter here at once, and is reported at once."""

from __future__ import annotations

import itertools
import queue
import time

import pytest
import structlog

import workers.verifier
from controlplane.decision.plan import Plan
from kernels.verify import Verdict
from workers.canary import Canary
from workers.engine_loop import EngineLoop
from workers.plan_client import PlanClient

REQUESTS_MOST = 10
LONG_S = 20.0
TICK_S = 60.0
"""So that a report that comes is one that did not wait for its tick."""


class Running:
    """An EngineLoop with a canary on a real thread, asked one request at a time."""

    def __init__(self, engine, ask):
        self.engine, self.ask = engine, ask
        engine.plan_client = PlanClient(engine.plan_client.plan, time.time, drafter=engine.meter.drafter)
        self.chunks, self.reports = queue.SimpleQueue(), queue.SimpleQueue()
        self.loop = EngineLoop(engine, self.chunks.put, self.reports.put, TICK_S, canary=Canary(engine, 0.5))
        self.loop.start()
        self.numbers = itertools.count()

    def serve(self, prompt, **sampling):
        """The record of one more request."""
        self.loop.submit(self.ask(prompt, f"{next(self.numbers)}", **sampling))
        while True:
            chunk = self.chunks.get(timeout=LONG_S)
            if chunk.finish_reason is not None:
                return chunk.record


@pytest.fixture
def run(make_engine, ask):
    running = []

    def start(*args, **kwargs):
        running.append(Running(make_engine(*args, **kwargs, clock=time.time), ask))
        return running[-1]

    yield start
    for each in running:
        each.loop.stop()


@pytest.fixture
def every_draft_is_accepted(monkeypatch):
    def accept_all(logits, draft_token_ids, draft_logits, cu_draft, *args, **kwargs):
        verdict = real(logits, draft_token_ids, draft_logits, cu_draft, *args, **kwargs)
        tokens, accepted = verdict.token_ids.clone(), cu_draft.diff().to(verdict.num_accepted.dtype)
        for b, (start, k) in enumerate(zip(cu_draft[:-1].tolist(), accepted.tolist(), strict=True)):
            last = tokens[b][int(verdict.num_accepted[b])].clone()
            tokens[b, :k], tokens[b, k] = draft_token_ids[start : start + k], last
        return Verdict(accepted, tokens, verdict.overlap)

    real = workers.verifier.verify_chain
    monkeypatch.setattr(workers.verifier, "verify_chain", accept_all)


def caught(running, prompt):
    """The report with a mismatch, within REQUESTS_MOST requests."""
    for _ in range(REQUESTS_MOST):
        running.serve(prompt, max_tokens=24)
        try:
            report = running.reports.get(timeout=0.5)
        except queue.Empty:
            continue
        if any(check.verdict == "mismatch" for check in report.canary):
            return report
    raise AssertionError(f"not caught within {REQUESTS_MOST} requests")


def test_a_broken_verifier_is_caught_and_drafting_stops(run, prompts, every_draft_is_accepted) -> None:
    running = run(4, "draft", eos=())
    with structlog.testing.capture_logs() as logs:
        report = caught(running, prompts[5])
    assert report.canary[0].drafter == running.engine.meter.drafter
    assert running.serve(prompts[6], max_tokens=24).draft_tokens == 0
    (line,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (line["cohort"], line["drafter"]) == ("default", report.canary[0].drafter)


def test_drafting_begins_again_only_when_the_controller_says_so(run, prompts, every_draft_is_accepted) -> None:
    running = run(4, "draft", eos=())
    drafter = caught(running, prompts[5]).canary[0].drafter
    client, by_load = running.engine.plan_client, dict(running.engine.plan_client.plan.k)
    blocking = Plan(1, 1, time.time(), time.time() + 60, by_load, {}, "x", blocked_drafters=(drafter,))
    client.accept(Plan(1, 0, time.time(), time.time() + 60, by_load, {}, "x"))  # issued before it knew
    assert running.serve(prompts[6], max_tokens=24).draft_tokens == 0
    client.accept(blocking)
    assert running.serve(prompts[6], max_tokens=24).draft_tokens == 0
    client.accept(Plan(1, 2, time.time(), time.time() + 60, by_load, {}, "x"))  # an operator cleared it
    assert running.serve(prompts[6], max_tokens=24).draft_tokens > 0


def test_right_text_goes_on_being_drafted(run, prompts) -> None:
    running = run(4, "close", eos=())
    records = [running.serve(prompts[i % 9], max_tokens=24, **({"seed": i, "temperature": 0.8} if i % 2 else {}))
               for i in range(12)]  # fmt: skip
    time.sleep(0.2)
    running.loop.stop()
    checks = running.reports.get(timeout=LONG_S).canary
    assert records[-1].draft_tokens > 0
    assert checks
    assert {check.verdict for check in checks} == {"same"}
