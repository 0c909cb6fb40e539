"""Grammars in the engine's thread: compiled beside it, and known to the canary."""

from __future__ import annotations

import queue
import string
import threading
import time
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import workers.sampling
from workers.canary import Canary
from workers.engine_loop import EngineLoop
from workers.sequence import GrammarSpec

LONG_S = 20.0
FEW = GrammarSpec("regex", "(f|g|h|k|9){4,30}")
CHARACTERS = string.ascii_lowercase + string.digits + string.ascii_uppercase[:12]  # as many as the model has tokens
WRONG = GrammarSpec("json_schema", '{"type": "array", "uniqueItems": true}')


@pytest.fixture
def make(make_engine):
    """Engines with a token for each character."""
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(CHARACTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    return lambda *args: make_engine(*args, tokenizer=tokenizer)


@pytest.fixture
def start():
    """A running loop around an engine, and the queue of its chunks; stopped after the test."""
    running = []

    def make(engine):
        chunks = queue.SimpleQueue()
        running.append(
            EngineLoop(engine, lambda given: [chunks.put(chunk) for chunk in given], lambda report: None, 0.05)
        )
        running[-1].start()
        return running[-1], chunks

    yield make
    for loop in running:
        loop.stop()


@pytest.fixture
def slow_compiler(monkeypatch):
    """Grammars that are compiled only when the event is set."""
    go = threading.Event()

    def make(engine):
        real = engine.grammars.compile
        monkeypatch.setattr(engine.grammars, "compile", lambda spec: go.wait(LONG_S) and real(spec))
        return engine

    make.go = go
    return make


def ended(chunks):
    """The next chunk that ends a request."""
    while True:
        chunk = chunks.get(timeout=LONG_S)
        if chunk.finish_reason is not None:
            return chunk


def test_no_request_waits_for_the_grammar_of_another(start, make, ask, slow_compiler) -> None:
    loop, chunks = start(slow_compiler(make(4)))
    loop.submit(replace(ask([3, 4], "grammar"), grammar=FEW))
    loop.submit(ask([3, 4], "free"))
    assert ended(chunks).request_id == "free"
    slow_compiler.go.set()
    last = ended(chunks)
    assert (last.request_id, last.error) == ("grammar", None)


def test_a_request_whose_grammar_is_known_does_not_wait_for_the_grammar_of_another(
    start, make, ask, monkeypatch
) -> None:
    """A lock around compiling and looking up alike would hold up the engine's thread, and all requests with it."""
    engine, go, begun = make(0, "none"), threading.Event(), threading.Event()
    engine.grammars.compile(FEW)
    real = engine.grammars._compile

    def slow(spec):
        begun.set()
        assert go.wait(LONG_S)
        return real(spec)

    monkeypatch.setattr(engine.grammars, "_compile", slow)
    loop, chunks = start(engine)
    loop.submit(replace(ask([3, 4], "new", max_tokens=3), grammar=GrammarSpec("regex", "k{4,9}")))
    assert begun.wait(LONG_S)
    loop.submit(replace(ask([3, 4], "known", max_tokens=3), grammar=FEW))
    try:
        assert chunks.get(timeout=LONG_S / 4).request_id == "known"
    finally:
        go.set()


def test_a_request_that_is_cancelled_while_its_grammar_is_compiled_ends(start, make, ask, slow_compiler) -> None:
    engine = slow_compiler(make(4))
    loop, chunks = start(engine)
    loop.submit(replace(ask([3, 4]), grammar=FEW))
    loop.cancel("r")
    assert ended(chunks).finish_reason == "cancelled"
    slow_compiler.go.set()
    loop.submit(ask([3, 4], "next"))
    assert ended(chunks).request_id == "next"
    assert not engine.has_work


def test_a_grammar_that_cannot_be_compiled_fails_its_request_alone(start, make, ask) -> None:
    loop, chunks = start(make(4))
    loop.submit(replace(ask([3, 4], "wrong"), grammar=WRONG))
    refused = ended(chunks)
    assert refused.finish_reason == "error"
    assert refused.error.startswith("grammar: ")
    loop.submit(replace(ask([3, 4], "right"), grammar=FEW))
    assert ended(chunks).error is None


def test_a_server_that_stops_answers_those_whose_grammar_is_being_compiled(start, make, ask, slow_compiler) -> None:
    loop, chunks = start(slow_compiler(make(4)))
    loop.submit(replace(ask([3, 4]), grammar=FEW))
    loop.stop()
    assert ended(chunks).error == "the server is shutting down"
    slow_compiler.go.set()


def checks_of(engine, ask, prompts):
    """Verdicts of the canary on requests with a grammar, served and checked."""
    now = [0.0]
    canary = Canary(engine, 0.5, clock=lambda: now[0], wall=time.time)
    found = []
    for i, sampling in enumerate(({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}) * 3):
        request = replace(ask(prompts[i + 3], f"{i}", max_tokens=40, **sampling), grammar=FEW)
        engine.submit(request)
        canary.begin(request)
        while engine.has_work:
            for chunk in engine.step():
                canary.follow(chunk)
        now[0] += 1000.0
        while canary.is_due(busy=False):
            found.append(canary.piece(busy=False))
            now[0] += 1000.0
    return [check.verdict for check in found if check is not None]


def test_the_canary_knows_grammars(make, ask, prompts, monkeypatch) -> None:
    engine = make(4, "close")
    assert set(checks_of(engine, ask, prompts)) == {"same"}
    real = workers.sampling._allowed

    def without_half(*args):
        found = real(*args)
        for rows in found:
            rows[:, [5, 6, 7]] = False  # f, g and h
        return found

    monkeypatch.setattr(workers.sampling, "_allowed", without_half)
    assert "mismatch" in checks_of(make(4, "close"), ask, prompts)
