"""Shadow drafts say what speculation would have found, and touch nothing that a client, a bill or a drafter can see."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import structlog

import workers.engine
import workers.shadow
from controlplane.telemetry import LOAD_BUCKETS
from workers.commit import Committed
from workers.detokenizer import Detokenizer
from workers.plan_client import constant_plan
from workers.proposers.base import NoFeatures, Proposal
from workers.sequence import EngineRequest, SamplingParams, Sequence
from workers.shadow import SAVED_S, TIME_SHARE, ShadowDrafts

DEPTH = 4


@pytest.fixture
def all_the_time(monkeypatch):
    """No budget: every sequence whose K is 0 has a shadow."""
    monkeypatch.setattr(workers.shadow, "TIME_SHARE", 1e9)
    monkeypatch.setattr(workers.shadow, "SAVED_S", 1e9)


def outcomes(cells):
    """How often (drafted, accepted, ended) was counted."""
    counted = Counter()
    for cell in cells:
        counted.update({count[:3]: count.steps for count in cell.counts})
    return counted


def window_of(engine):
    (cohort,) = engine.close_window().cohorts
    return cohort


def run(make_engine, ask, drain, prompt, k, proposer, **request):
    """One request, at K = 0 up to its second token and at `k` from there on; the cohort's window."""
    engine = make_engine(0, proposer, eos=(), shadow_depth=DEPTH)
    engine.submit(ask(prompt, max_tokens=60, **request))
    while engine.scheduler.waiting or engine.scheduler.running[0].completion_length < 2:
        engine.step()
    engine.plan_client.plan = constant_plan(k, ["default"])
    drain(engine)
    return window_of(engine)


@pytest.mark.parametrize(
    ("proposer", "sampling"),
    [
        ("ngram", {}),
        ("ngram", {"temperature": 0.9, "seed": 3}),
        ("close", {}),
        ("close", {"temperature": 0.9, "seed": 3, "frequency_penalty": 1.0, "repetition_penalty": 1.2, "min_p": 0.02}),
    ],
)
def test_shadows_find_exactly_what_speculation_finds(
    make_engine, ask, drain, prompts, all_the_time, proposer, sampling
) -> None:
    shadow, real = Counter(), Counter()
    some = prompts[3:5] + prompts[12:]
    for prompt in some:
        shadow += outcomes(run(make_engine, ask, drain, prompt, 0, proposer, **sampling).shadow)
        real += outcomes(run(make_engine, ask, drain, prompt, DEPTH, proposer, **sampling).cells)
    real[0, 0, False] -= len(some)  # the plain step that each began with
    assert any(accepted for _, accepted, _ in real)
    assert shadow == +real


def test_on_unseeded_text_shadows_of_a_sure_drafter_are_kept_as_often_as_its_drafts(
    make_engine, ask, drain, all_the_time, monkeypatch
) -> None:
    """Against the probabilities that verification computes itself."""
    numbers = random.Random(4)
    monkeypatch.setattr(workers.engine.secrets, "randbits", numbers.getrandbits)

    def window(k):
        engine = make_engine(k, "ngram", eos=(), shadow_depth=1)
        for i in range(16):
            engine.submit(ask([3 + i, 4, 5], f"{i}", temperature=0.7, max_tokens=100))
        drain(engine)
        return window_of(engine)

    shadow, real = outcomes(window(0).shadow), window(1).cells
    drafted = sum(n for (drafted, *_), n in shadow.items() if drafted)
    kept = sum(n for (_, accepted, _), n in shadow.items() if accepted)
    expected = sum(c.overlap[0] for c in real if c.overlap) / sum(c.overlap_steps[0] for c in real if c.overlap)
    deviation = (expected * (1 - expected) / drafted) ** 0.5
    assert drafted > 800
    assert abs(kept / drafted - expected) < 3 * deviation


@pytest.mark.parametrize("proposer", ["ngram", "close", "eagle", "medusa"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 3}])
def test_text_and_counts_are_those_without_shadows(
    make_engine, ask, drain, prompts, all_the_time, proposer, sampling
) -> None:
    def window(depth):
        engine = make_engine(0, proposer, shadow_depth=depth)
        for i, prompt in enumerate(prompts):
            engine.submit(ask(prompt, f"{i}", **sampling))
        done = drain(engine)
        cohort = window_of(engine)
        counts = [(c.load_bucket, c.k, c.counts, c.overlap) for c in cohort.cells]
        return [done[f"{i}"].token_ids for i in range(len(prompts))], counts, cohort.positions, bool(cohort.shadow)

    with_shadows, without = window(DEPTH), window(0)
    assert with_shadows[:3] == without[:3]
    assert (with_shadows[3], without[3]) == (True, False)


def test_a_drafter_that_samples_is_not_judged_by_unseeded_text(make_engine, ask, drain, all_the_time) -> None:
    engine = make_engine(0, "close", eos=(), shadow_depth=DEPTH)
    engine.submit(ask([3, 4, 5], temperature=1.0))
    drain(engine)
    assert window_of(engine).shadow == ()


def test_a_cohort_that_speculates_has_no_shadow(make_engine, ask, drain, prompts, all_the_time) -> None:
    engine = make_engine(2, "ngram", eos=(), shadow_depth=DEPTH)
    engine.submit(ask(prompts[-1]))
    drain(engine)
    assert window_of(engine).shadow == ()


class Spy(NoFeatures):
    """A drafter that takes `seconds` a draft by `now`, or fails."""

    name, version, is_deterministic = "spy", "1", True

    def __init__(self, seconds=0.0, error=None):
        self.now, self.drafts = 0.0, 0
        self._seconds, self._error = seconds, error

    def clock(self):
        return self.now

    def propose(self, batch, k):
        if any(k):
            self.drafts += 1
            self.now += self._seconds
            if self._error:
                raise self._error
        return Proposal.of([(3,) * n for n in k])

    def prime(self, batch):
        pass

    def release(self, sequence):
        pass


@pytest.mark.parametrize("stop", [{"kill_switch": "zero"}, {"blocked_drafters": ("",)}])
def test_a_drafter_that_was_switched_off_does_not_even_draft_shadows(
    make_engine, ask, drain, all_the_time, stop
) -> None:
    spy = Spy()
    engine = make_engine(0, spy, eos=(), shadow_depth=DEPTH)
    engine.plan_client.plan = replace(engine.plan_client.plan, **stop)
    engine.submit(ask([3, 4, 5]))
    drain(engine)
    assert spy.drafts == 0


def test_a_drafter_that_fails_while_it_is_off_harms_no_request(make_engine, ask, drain, all_the_time) -> None:
    spy = Spy(error=RuntimeError("out of memory"))
    engine = make_engine(0, spy, eos=(), shadow_depth=DEPTH)
    engine.submit(ask([3, 4, 5]))
    with structlog.testing.capture_logs() as logs:
        done = drain(engine)
    assert len(done["r"].token_ids) == 24
    assert (spy.drafts, [entry["log_level"] for entry in logs]) == (1, ["error"])


@pytest.mark.parametrize("draft_s", [0.0001, 0.02, 2.0])
def test_shadows_take_their_share_of_time_at_most(tokenizer, draft_s) -> None:
    spy = Spy(draft_s)
    shadows = ShadowDrafts(spy, lambda *args, **kwargs: None, DEPTH, spy.clock)
    request = EngineRequest("r", (3, 4), SamplingParams(100_000), "default")
    sequence = Sequence(request, [3, 4, 5], 0, Detokenizer(tokenizer))
    steps, step_s = 20_000, 0.05
    for _ in range(steps):
        sequence.token_ids.append(9)
        shadows.observe([Committed(sequence, (9,), "", 0, 0, False, False, 0, None)], step_s)
    allowed = TIME_SHARE * steps * step_s
    assert 0.8 * min(allowed, steps * draft_s) <= spy.now <= allowed + draft_s


def test_what_was_saved_up_in_a_quiet_hour_is_not_spent_at_once() -> None:
    spy = Spy(0.01)
    shadows = ShadowDrafts(spy, lambda *args, **kwargs: None, DEPTH, spy.clock)
    shadows.observe([], 1e9)
    assert shadows._saved_s == SAVED_S


def test_evidence_is_of_the_load_at_which_it_was_drafted(make_engine, ask, drain, prompts, all_the_time) -> None:
    engine = make_engine(0, "ngram", eos=(), shadow_depth=2)
    for i in range(3):
        engine.submit(ask([3, 4], f"{i}", max_tokens=40))
    drain(engine)
    cells = window_of(engine).shadow
    assert {LOAD_BUCKETS[cell.load_bucket] for cell in cells} >= {4}
    assert {cell.k for cell in cells} == {2}
    assert sum(cell.step_seconds for cell in cells) == 0
