"""The thread that owns an engine: requests come in by a queue, chunks and reports go out by callbacks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from controlplane.telemetry import Report, RequestRecord
from workers.engine import Engine
from workers.sequence import Chunk, EngineRequest

log = structlog.get_logger(__name__)

FAILED_STEPS_MOST = 3
"""Failed steps in a row after which an engine counts as broken: a device in an error state fails every one."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


class EngineLoop:
    """Steps the engine while there is work, and closes a window every `tick_s`, busy or idle.

    on_chunk and on_report are called on the engine's thread and must not block. submit and cancel may be called from
    any thread.
    """

    def __init__(
        self,
        engine: Engine,
        on_chunk: Callable[[Chunk], None],
        on_report: Callable[[Report], None],
        tick_s: float = 1.0,
    ) -> None:
        self._engine = engine
        self._on_chunk = on_chunk
        self._on_report = on_report
        self._tick_s = tick_s
        self._inbox: queue.SimpleQueue[EngineRequest | _Cancel | None] = queue.SimpleQueue()
        self._records: list[RequestRecord] = []
        self._failed_steps = 0
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
        """Whether the thread runs and its steps do not all fail."""
        return self._thread.is_alive() and self._failed_steps < FAILED_STEPS_MOST

    def submit(self, request: EngineRequest) -> None:
        self._inbox.put(request)

    def cancel(self, request_id: str) -> None:
        self._inbox.put(_Cancel(request_id))

    def _run(self) -> None:
        next_close = time.monotonic() + self._tick_s
        while not self._stopping.is_set():
            self._read_inbox(0.0 if self._engine.has_work else max(0.0, next_close - time.monotonic()))
            if self._engine.has_work:
                self._step()
            if time.monotonic() >= next_close:
                self._report()
                next_close = max(next_close + self._tick_s, time.monotonic() + self._tick_s / 2)
        for chunk in self._engine.fail_all("the server is shutting down"):
            self._emit(chunk)
        self._report()

    def _step(self) -> None:
        try:
            chunks = self._engine.step()
            self._failed_steps = 0
        except Exception:
            self._failed_steps += 1
            # Whatever went wrong, the requests of this engine end with an error and the next ones find it empty.
            log.exception("engine step failed")
            chunks = self._engine.fail_all("the worker failed on this step; its requests were ended")
        for chunk in chunks:
            self._emit(chunk)

    def _read_inbox(self, timeout: float) -> None:
        """Take everything that waits; when nothing does, wait up to `timeout` seconds for the first item."""
        try:
            item = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
            while True:
                self._take(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass

    def _take(self, item: EngineRequest | _Cancel | None) -> None:
        if isinstance(item, EngineRequest):
            try:
                self._engine.submit(item)
            except ValueError as error:
                self._emit(Chunk(item.request_id, (), "", finish_reason="error", error=str(error)))
            except Exception:
                # One request that nobody foresaw must not end the thread that serves all the others.
                log.exception("request could not be taken", request_id=item.request_id)
                refused = "the worker could not take this request"
                self._emit(Chunk(item.request_id, (), "", finish_reason="error", error=refused))
        elif isinstance(item, _Cancel):
            chunk = self._engine.cancel(item.request_id)
            if chunk is not None:
                self._emit(chunk)

    def _emit(self, chunk: Chunk) -> None:
        if chunk.record is not None:
            self._records.append(chunk.record)
        self._on_chunk(chunk)

    def _report(self) -> None:
        records, self._records = tuple(self._records), []
        self._on_report(Report(self._engine.close_window(), records))
