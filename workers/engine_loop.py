"""The thread that owns an engine: requests come in by a queue, chunks and reports go out by callbacks."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog

from controlplane.alerts import CanaryCheck
from controlplane.telemetry import Report, RequestRecord
from workers.canary import Canary
from workers.compiled.compilable import Compilable
from workers.compiled.graph import CompiledGraph
from workers.engine import Engine
from workers.sequence import Chunk, EngineRequest

log = structlog.get_logger(__name__)

FAILED_STEPS_MOST = 3
"""Failed steps in a row after which an engine counts as broken: a device in an error state fails every one."""

QUIET_S = 1.0
"""Seconds without a request before anything else is done: clients that pause between requests never wait for it."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A request whose grammar was compiled, or why it could not be."""

    request: EngineRequest
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _EndAll:
    error: str


@dataclass(frozen=True, slots=True)
class _Adopt:
    part: Compilable
    graph: CompiledGraph
    at_once: bool


_Item = EngineRequest | _Compiled | _Cancel | _EndAll | _Adopt


class EngineLoop:
    """Steps the engine while there is work, and closes a window every `tick_s`, busy or idle.

    on_chunks has all chunks of a step at once; it and on_report are called on the engine's thread and must not block.
    submit and cancel may be called from any thread. idle_work: called again and again, on the engine's thread, once
    there was no request for QUIET_S, until it answers False; a request that arrives waits for the call that runs.
    canary: checks finished text, a piece between two steps; where text is not the target's, this worker stops drafting
    at once and reports without waiting for its tick. None: nothing is checked. step_limit_s: a step that takes longer
    has hung, and the loop is not healthy.
    """

    def __init__(
        self,
        engine: Engine,
        on_chunks: Callable[[Sequence[Chunk]], None],
        on_report: Callable[[Report], None],
        tick_s: float = 1.0,
        idle_work: Callable[[], bool] | None = None,
        canary: Canary | None = None,
        step_limit_s: float = math.inf,
    ) -> None:
        self._engine = engine
        self._canary = canary
        self._checks: list[CanaryCheck] = []
        self._is_urgent = False
        self._on_chunks = on_chunks
        self._on_report = on_report
        self._tick_s = tick_s
        self._idle_work = idle_work
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._compiling: set[str] = set()
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._records: list[RequestRecord] = []
        self._failed_steps = 0
        self._step_limit_s = step_limit_s
        self._stepping_since = math.inf
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kadence-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """End all requests as cancelled, send the last report, and wait for the thread."""
        self._stopping.set()
        self._inbox.put(None)
        self._thread.join(timeout)

    @property
    def is_healthy(self) -> bool:
        """Whether the thread runs, and its steps neither all fail nor hang."""
        is_stuck = time.monotonic() - self._stepping_since > self._step_limit_s
        return self._thread.is_alive() and self._failed_steps < FAILED_STEPS_MOST and not is_stuck

    def submit(self, request: EngineRequest) -> None:
        if request.grammar is None or self._engine.grammars.has(request.grammar):
            self._inbox.put(request)
        else:
            self._compiling.add(request.request_id)
            self._compiler.submit(self._compile, request)

    def cancel(self, request_id: str) -> None:
        self._inbox.put(_Cancel(request_id))

    def _compile(self, request: EngineRequest) -> None:
        """Beside the engine's thread: a grammar may take a second, and every request there would wait for it."""
        assert request.grammar is not None
        item = _Compiled(request)
        try:
            self._engine.grammars.compile(request.grammar)
        except ValueError as error:
            item = _Compiled(request, str(error))
        except Exception:
            log.exception("grammar could not be compiled", request_id=request.request_id)
            item = _Compiled(request, "the worker could not take this request")
        self._inbox.put(item)

    def _take_compiled(self, item: _Compiled) -> None:
        request_id = item.request.request_id
        if request_id not in self._compiling:
            return  # cancelled meanwhile
        self._compiling.discard(request_id)
        if item.error is None:
            self._take(item.request)
        else:
            self._emit(Chunk(request_id, (), "", finish_reason="error", error=item.error))

    def _drop_compiling(self, error: str) -> None:
        while self._compiling:
            self._emit(Chunk(self._compiling.pop(), (), "", finish_reason="error", error=error))

    def end_all(self, error: str) -> None:
        """End all requests with an error, within a step; those that come later are served."""
        self._inbox.put(_EndAll(error))

    def adopt(self, part: Compilable, graph: CompiledGraph, at_once: bool) -> None:
        """Compute a part of the engine by `graph`, from the next step on (`Engine.adopt`)."""
        self._inbox.put(_Adopt(part, graph, at_once))

    def _run(self) -> None:
        next_close = time.monotonic() + self._tick_s
        quiet_at = time.monotonic() + QUIET_S
        while not self._stopping.is_set():
            wake_at = next_close if self._idle_work is None else min(next_close, quiet_at)
            has_something = self._engine.has_work or (self._canary is not None and self._canary.is_due(busy=False))
            self._read_inbox(0.0 if has_something else max(0.0, wake_at - time.monotonic()))
            if self._engine.has_work:
                self._step()
                quiet_at = time.monotonic() + QUIET_S
            elif self._idle_work is not None and time.monotonic() >= quiet_at:
                self._work_idly(self._idle_work)
            if self._canary is not None:
                self._take_check(self._canary.piece(busy=self._engine.has_work))
            if self._is_urgent or time.monotonic() >= next_close:
                self._report()
                next_close = max(next_close + self._tick_s, time.monotonic() + self._tick_s / 2)
        self._emit(*self._engine.fail_all("the server is shutting down"))
        self._drop_compiling("the server is shutting down")
        self._compiler.shutdown(wait=False, cancel_futures=True)
        self._report()

    def _step(self) -> None:
        if self._canary is not None:
            self._take_check(self._canary.make_room())
        self._emit(*self._engine.end_overdue())
        self._stepping_since = time.monotonic()
        try:
            chunks = self._engine.step()
            self._failed_steps = 0
        except Exception:
            self._failed_steps += 1
            # Whatever went wrong, the requests of this engine end with an error and the next ones find it empty.
            log.exception("engine step failed")
            chunks = self._engine.fail_all("the worker failed on this step; its requests were ended")
        self._stepping_since = math.inf
        self._emit(*chunks)

    def _work_idly(self, work: Callable[[], bool]) -> None:
        try:
            has_more = work()
        except Exception:
            log.exception("idle work failed; serving goes on without it")
            has_more = False
        if not has_more:
            self._idle_work = None

    def _read_inbox(self, timeout: float) -> None:
        """Take everything that waits; when nothing does, wait up to `timeout` seconds for the first item."""
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
            while True:
                self._take(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _take(self, item: _Item | None) -> None:
        if isinstance(item, EngineRequest):
            try:
                self._engine.submit(item)
                if self._canary is not None:
                    self._canary.begin(item)
            except ValueError as error:
                self._emit(Chunk(item.request_id, (), "", finish_reason="error", error=str(error)))
            except Exception:
                # One request that nobody foresaw must not end the thread that serves all the others.
                log.exception("request could not be taken", request_id=item.request_id)
                refused = "the worker could not take this request"
                self._emit(Chunk(item.request_id, (), "", finish_reason="error", error=refused))
        elif isinstance(item, _Compiled):
            self._take_compiled(item)
        elif isinstance(item, _Cancel) and item.request_id in self._compiling:
            self._compiling.discard(item.request_id)
            self._emit(Chunk(item.request_id, (), "", finish_reason="cancelled"))
        elif isinstance(item, _Cancel):
            chunk = self._engine.cancel(item.request_id)
            if chunk is not None:
                self._emit(chunk)
        elif isinstance(item, _EndAll):
            self._emit(*self._engine.fail_all(item.error))
            self._drop_compiling(item.error)
        elif isinstance(item, _Adopt):
            self._swap(item)

    def _swap(self, item: _Adopt) -> None:
        self._engine.adopt(item.part, item.graph, item.at_once)
        if self._canary is not None:
            self._canary.start_over()
        if self._engine.profile is not None:
            self._idle_work = self._engine.profile.advance
        log.info("the step is compiled from here on", part=type(item.part).__name__)

    def _emit(self, *chunks: Chunk) -> None:
        if not chunks:
            return
        self._records.extend(chunk.record for chunk in chunks if chunk.record is not None)
        self._on_chunks(chunks)
        if self._canary is not None:
            for chunk in chunks:
                self._canary.follow(chunk)

    def _take_check(self, check: CanaryCheck | None) -> None:
        """Keep a check for the report; wrong text stops the drafter here and now, and everywhere with the report."""
        if check is None:
            return
        self._checks.append(check)
        if check.verdict == "mismatch" and self._canary is not None:
            log.error("canary: the drafter's text is not the target's; drafting stops", **_shown(check))
            self._engine.plan_client.block_drafter()
            self._canary.forget()
            self._is_urgent = True

    def _report(self) -> None:
        records, self._records = tuple(self._records), []
        checks, self._checks = tuple(self._checks), []
        self._is_urgent = False
        self._on_report(Report(self._engine.close_window(), records, checks))


def _shown(check: CanaryCheck) -> dict[str, Any]:
    """For a log line."""
    return {name: getattr(check, name) for name in CanaryCheck.__dataclass_fields__}
