"""The endpoint's view of a controller that answers and then goes away. No Ray is started."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controlplane.policy_control import PolicyStatus
from controlplane.settings import load_settings
from workers import token_inlet
from workers.backend import Draining, JournalCounts, Overloaded, WorkerError
from workers.plan_client import unplanned
from workers.sequence import Chunk, EngineRequest, SamplingParams
from workers.token_inlet import TokenInlet
from workers.token_outlet import Outlets
from workers.token_wire import EndpointAddress
from workers.worker_totals import MetricsSnapshot

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve complains about pydantic as it is imported
    from ray.exceptions import ActorDiedError, RayTaskError
    from ray.serve.exceptions import RequestCancelledError

    from workers.controller_actor import ControllerState
    from workers.ray_backend import RayBackend

FIRST, SECOND = (
    "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
    f"    speculation: {{tuner: fixed, ladder: [0, 2, 4], start: {start}, fallback: 0}}\n"
    for start in (2, 4)
)


class NoWorkers:
    """A deployment handle without a replica behind it."""

    def broadcast(self, *_: Any) -> NoWorkers:
        return self

    async def results_async(self, **_: Any) -> list[Any]:
        return []


class OneAnswer(RayBackend):
    """Its controller applies a policy, and answers nothing after that."""

    answered = False

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self.answered:
            raise WorkerError("the controller does not answer")
        self.answered = True
        return replace(unplanned(self._policy), version=2)


def test_a_policy_in_force_is_answered_with_its_revision_even_if_the_controller_dies_then() -> None:
    async def apply() -> tuple[str, str]:
        backend = OneAnswer(NoWorkers(), load_settings(), FIRST, tokenizer=None, max_context=16)
        revision = await backend.apply_policy(SECOND, by="ada", why="more")
        return revision, backend.policy().revision

    answered, in_force = asyncio.run(apply())
    assert answered == in_force


class Response:
    """The answer to a call of a worker, which brings `chunks` and then ends as `end` says; None: it never ends."""

    def __init__(self, request: EngineRequest, address: EndpointAddress, chunks: list[Chunk], end: Any) -> None:
        self.is_cancelled = False
        self._work = asyncio.ensure_future(self._bring(request, address, chunks, end))

    async def _bring(self, request: EngineRequest, address: EndpointAddress, chunks: list[Chunk], end: Any) -> None:
        outlets = Outlets()
        outlet = await outlets.reach(address)
        outlet.send([replace(chunk, request_id=request.request_id) for chunk in chunks])
        if end is None:
            await asyncio.Event().wait()
        if isinstance(end, Exception):
            raise end

    def __await__(self) -> Any:
        return self._work.__await__()

    def cancel(self) -> None:
        self.is_cancelled = True
        self._work.cancel()


class Bringing(NoWorkers):
    """Workers of which each call brings the same chunks and has the same end."""

    def __init__(self, chunks: list[Chunk], end: Any) -> None:
        self.generate = self
        self.calls: list[Response] = []
        self._script = chunks, end

    def remote(self, request: EngineRequest, address: EndpointAddress) -> Response:
        self.calls.append(Response(request, address, *self._script))
        return self.calls[-1]


LAST = Chunk("", (2,), "b", finish_reason="stop")
BEGUN = Chunk("", (1,), "a")


def ask(workers: Bringing, most: int = 99) -> str:
    """The text of an answer, of which the client reads so many chunks."""

    async def read() -> str:
        inlet = TokenInlet()
        backend = RayBackend(workers, load_settings(), FIRST, tokenizer=None, max_context=16, inlet=inlet)
        text = ""
        stream = backend.generate(EngineRequest("r", (1,), SamplingParams(4), "default"))
        try:
            for _ in range(most):
                try:
                    text += (await anext(stream)).text
                except StopAsyncIteration:
                    break
        finally:
            await stream.aclose()  # type: ignore[attr-defined]
            assert inlet.open_streams == 0
            await asyncio.sleep(0)
            inlet.stop()
        return text

    return asyncio.run(read())


def test_tokens_come_until_the_last_one_and_then_nothing_is_cancelled() -> None:
    workers = Bringing([BEGUN, LAST], end=None)
    assert ask(workers) == "ab"
    assert not workers.calls[0].is_cancelled


def test_a_client_that_leaves_ends_its_call() -> None:
    workers = Bringing([BEGUN], end=None)
    assert ask(workers, most=1) == "a"
    assert workers.calls[0].is_cancelled


@pytest.mark.parametrize("refusal", [Overloaded(3.0), Draining()])
def test_a_worker_that_takes_nothing_in_says_so_through_its_call(refusal: Exception) -> None:
    with pytest.raises(type(refusal)):
        ask(Bringing([], end=refusal))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ActorDiedError(), "the worker went away while serving this request; try again"),
        (RayTaskError("generate", "", RuntimeError("device")), "the worker failed while serving this request"),
        (RequestCancelledError("r"), "this request was cancelled"),
    ],
)
def test_a_call_that_ends_badly_in_the_middle_of_a_stream_is_a_workers_error(end: Exception, said: str) -> None:
    workers = Bringing([BEGUN], end)
    with capture_logs(), pytest.raises(WorkerError, match=said):
        ask(workers)


def test_a_call_that_ends_without_the_last_token_is_a_workers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_inlet, "LATE_S", 0.02)
    with pytest.raises(WorkerError, match="without a result"):
        ask(Bringing([BEGUN], end="done"))


def test_a_client_that_leaves_is_no_lost_worker_in_the_log() -> None:
    with capture_logs() as lines, pytest.raises(WorkerError, match="cancelled"):
        ask(Bringing([], RequestCancelledError("r")))
    assert lines == []


class Stated(RayBackend):
    """Its controller answers once with the state it is given, and then no more."""

    state: ControllerState | None = None

    async def _ask(self, method: str, *arguments: Any) -> Any:
        state, self.state = self.state, None
        if state is None:
            raise WorkerError("the controller does not answer")
        return state


def test_the_silence_of_a_controller_grows_from_its_last_answer_and_is_unknown_before_the_first() -> None:
    async def listen() -> tuple[float | None, float | None, float | None]:
        backend = Stated(NoWorkers(), load_settings(), FIRST, tokenizer=None, max_context=16)
        with contextlib.suppress(WorkerError):
            await backend._refresh()
        never = (await backend.journal_counts()).silence_s
        plan = unplanned(backend._policy)
        backend.state = ControllerState(FIRST, backend._policy.revision, plan, JournalCounts(), PolicyStatus())
        await backend._refresh()
        heard = (await backend.journal_counts()).silence_s
        await asyncio.sleep(0.05)
        with contextlib.suppress(WorkerError):
            await backend._refresh()
        return never, heard, (await backend.journal_counts()).silence_s

    never, heard, silent = asyncio.run(listen())
    assert never is None
    assert heard is not None
    assert silent is not None
    assert silent - heard >= 0.05


def test_without_workers_it_is_ready_only_where_a_request_starts_one() -> None:
    async def ready(**settings: Any) -> bool:
        backend = Stated(NoWorkers(), load_settings(**settings), FIRST, tokenizer=None, max_context=16)
        return await backend.ready()

    found = [asyncio.run(ready(**given)) for given in ({}, {"max_replicas": 2}, {"max_replicas": 2, "min_replicas": 0})]
    assert found == [False, False, True]


def test_it_takes_nothing_in_once_every_worker_drains() -> None:
    class Workers(NoWorkers):
        draining: tuple[bool, ...] = ()

        async def results_async(self, **_: Any) -> list[Any]:
            return [MetricsSnapshot(f"w{i}", 1, "m", {}, is_draining=d) for i, d in enumerate(self.draining)]

    async def ready(*draining: bool) -> bool:
        workers = Workers()
        workers.draining = draining
        return await Stated(workers, load_settings(), FIRST, tokenizer=None, max_context=16).ready()

    assert asyncio.run(ready(True, False))
    with pytest.raises(Draining):
        asyncio.run(ready(True, True))
