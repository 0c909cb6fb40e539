"""The canary on the engine's own thread: wrong text stops the drafter here at once, and is reported at once."""

from __future__ import annotations

import itertools
import queue
import threading
import time

import pytest
import structlog

import workers.verifier
from controlplane.controller import Controller
from controlplane.decision.plan import Plan
from controlplane.policy import parse_policy
from kernels.verify import Verdict
from workers.canary import Canary
from workers.engine_loop import EngineLoop
from workers.plan_client import PlanClient, unplanned
from workers.reporter import Reporter

REQUESTS_MOST = 10
LONG_S = 20.0
TICK_S = 60.0
"""So that a report that comes is one that did not wait for its tick."""


class Running:
    """An EngineLoop with a canary on a real thread, asked one request at a time."""

    def __init__(self, engine, ask, tick_s=TICK_S, canary=True):
        self.engine, self.ask = engine, ask
        engine.plan_client = PlanClient(engine.plan_client.plan, time.time, drafter=engine.meter.drafter)
        self.chunks, self.reports = queue.SimpleQueue(), queue.SimpleQueue()
        self.report_to = self.reports.put
        self.loop = EngineLoop(
            engine,
            lambda given: [self.chunks.put(chunk) for chunk in given],
            lambda report: self.report_to(report),
            tick_s,
            canary=Canary(engine, 0.5) if canary else None,
        )
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

    def start(*args, tick_s=TICK_S, canary=True, **kwargs):
        running.append(Running(make_engine(*args, **kwargs, clock=time.time), ask, tick_s, canary))
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


POLICY = parse_policy("""
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 4], start: 4, fallback: 4}}
""")


class NoJournal:
    def record(self, *args):
        pass

    def policy_applied(self, *args):
        pass

    def alert(self, *args):
        pass


class Fleet:
    """Workers with reporters of their own, and one controller; a call at a time, as an actor's are."""

    def __init__(self, run):
        self.controller = Controller(POLICY, NoJournal(), epoch=time.time_ns(), plan_ttl_s=60.0)
        self.lock, self.run, self.reporters = threading.Lock(), run, []

    def send(self, reports):
        with self.lock:
            for report in reports:
                self.controller.observe(report)
            return self.controller.plan

    def worker(self, canary):
        running = self.run(4, "draft", eos=(), tick_s=0.1, canary=canary)
        client = PlanClient(unplanned(POLICY), time.time, drafter=running.engine.meter.drafter)
        running.engine.plan_client = client
        self.reporters.append(Reporter(self.send, client.accept))
        running.report_to = self.reporters[-1].put
        return running


@pytest.fixture
def fleet(run):
    made = Fleet(run)
    yield made
    for reporter in made.reporters:
        reporter.stop()


def until(condition, within=LONG_S):
    """Seconds until it holds."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + within
        time.sleep(0.01)
    return time.monotonic() - started


def test_every_worker_with_that_drafter_stops_within_a_second_and_starts_when_the_alert_is_cleared(
    fleet, prompts, every_draft_is_accepted
) -> None:
    checked, other = fleet.worker(canary=True), fleet.worker(canary=False)
    until(lambda: other.engine.plan_client.plan.version)
    assert other.serve(prompts[5], max_tokens=24).draft_tokens > 0
    checked.serve(prompts[5], max_tokens=24)
    until(lambda: fleet.controller.alerts.active)
    assert until(lambda: other.engine.plan_client.is_drafter_off) < 1.0
    assert [each.serve(prompts[6], max_tokens=24).draft_tokens for each in (checked, other)] == [0, 0]
    with fleet.lock:
        fleet.controller.clear_alert(next(iter(fleet.controller.alerts.active)), by="ops", why="", now=time.time())
    until(lambda: not checked.engine.plan_client.is_drafter_off and not other.engine.plan_client.is_drafter_off)
    assert other.serve(prompts[6], max_tokens=24).draft_tokens > 0
