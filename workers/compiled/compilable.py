"""What the compiler is given of a model or a drafter, and how a compiled one gets back to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from kernels import packed_linear
from workers.compiled.compiler import REASON_LENGTH, ensure, is_ready, package_of, touch
from workers.compiled.form import Form
from workers.compiled.graph import CompiledGraph, try_out
from workers.compiled.skeleton import CannotCompile, pack, strip
from workers.first_line import first_line


class Compilable(Protocol):
    """form: what is to be compiled, on the weights as they are. tried_inputs: its arguments for rows of those numbers,
    all of them kept. adopt: computes by the graph from now on; called by the thread that owns it. drop_eager: gives up
    the weights that it needed before.
    """

    def form(self) -> Form: ...

    def tried_inputs(self, numbers: Sequence[int]) -> tuple[torch.Tensor, ...]: ...

    def adopt(self, graph: CompiledGraph) -> None: ...

    def drop_eager(self) -> None: ...


def compiled(part: Compilable, cache: Path, stop: threading.Event | None = None) -> CompiledGraph:
    """Its graph, compiled first where no package of it is in `cache`, the folder of models: that may take minutes.

    Raises CannotCompile with the reason.
    """
    with _reasons():
        form = part.form()
        skeleton = strip(form)
        package = package_of(skeleton, cache)
        ensure(skeleton, package, stop)
        return _loaded(part, form, skeleton, package)


def compiled_before(part: Compilable, cache: Path) -> CompiledGraph | None:
    """Its graph, where nothing needs compiling for it. Raises CannotCompile where it is not fit for use."""
    with _reasons():
        form = part.form()
        skeleton = strip(form)
        package = package_of(skeleton, cache)
        return _loaded(part, form, skeleton, package) if is_ready(package) else None


def _loaded(part: Compilable, form: Form, skeleton: Form, package: Path) -> CompiledGraph:
    packed_linear.load()
    touch(package)
    graph = CompiledGraph(package, pack(form))
    try_out(graph, skeleton, part.tried_inputs)
    return graph


@contextmanager
def _reasons() -> Iterator[None]:
    """Whatever goes wrong inside is a reason to stay eager: serving goes on."""
    try:
        yield
    except CannotCompile:
        raise
    except Exception as error:  # of the compiler's libraries, mostly
        raise CannotCompile(first_line(error)[:REASON_LENGTH]) from error
