"""Which parts of an engine are compiled already, and a thread that has the others compiled while it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import torch

from kernels.packed_linear import DTYPES
from workers.compiled.compilable import Compilable, compiled, compiled_before
from workers.compiled.compiler import obstacle
from workers.compiled.graph import CompiledGraph
from workers.compiled.skeleton import CannotCompile

log = structlog.get_logger(__name__)


def adopt_compiled(
    parts: Sequence[Compilable],
    cache: Path,
    adopt: Callable[[Compilable, CompiledGraph], None],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Compilable, ...]:
    """Let the parts whose packages are on disk use them, at once; the parts that are still to be compiled.

    cache: the folder of models. None is to be compiled on a GPU, nor where a reason against it was found: it is logged.
    """
    if device.type != "cpu" or not parts:
        return ()
    if dtype not in DTYPES:
        log.warning("the step stays eager", reason=f"{str(dtype)[6:]} is not compiled; use bfloat16 or float32")
        return ()
    left = []
    for part in parts:
        started = time.monotonic()
        try:
            graph = compiled_before(part, cache)
        except CannotCompile as error:
            log.warning("the step stays eager", part=type(part).__name__, reason=str(error))
            continue
        if graph is None:
            left.append(part)
        else:
            adopt(part, graph)
            log.info("the step is compiled", part=type(part).__name__, load_s=round(time.monotonic() - started, 2))
    reason = obstacle()
    if left and reason is not None:
        log.warning("the step stays eager", reason=reason)
        return ()
    return tuple(left)


def compile_now(parts: Sequence[Compilable], cache: Path, adopt: Callable[[Compilable, CompiledGraph], None]) -> None:
    """As a BackgroundCompiler does, and wait for it: for what measures. Raises CannotCompile."""
    for part in parts:
        adopt(part, compiled(part, cache))


class BackgroundCompiler:
    """Compiles parts one by one, and calls `adopt` with each and its graph, on a thread of its own."""

    def __init__(
        self, parts: Sequence[Compilable], cache: Path, adopt: Callable[[Compilable, CompiledGraph], None]
    ) -> None:
        self._parts, self._cache, self._adopt = parts, cache, adopt
        self._stopping = threading.Event()
        # As many threads as the engine has: the number is part of the code, and torch knows it by thread.
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="kadence-compiler", daemon=True)

    def start(self) -> None:
        if self._parts:
            self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the compiler's process, too."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        for part in self._parts:
            started = time.monotonic()
            try:
                graph = compiled(part, self._cache, self._stopping)
            except CannotCompile as error:
                if not self._stopping.is_set():
                    log.warning("the step stays eager", part=type(part).__name__, reason=str(error))
                continue
            log.info("compiled", part=type(part).__name__, seconds=round(time.monotonic() - started, 1))
            self._adopt(part, graph)
