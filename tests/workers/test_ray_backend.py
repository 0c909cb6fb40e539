"""The endpoint's view of a controller that answers and then goes away. No Ray is started."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controlplane.policy_control import PolicyStatus
from controlplane.settings import load_settings
from workers.backend import Draining, JournalCounts, WorkerError
from workers.plan_client import unplanned
from workers.sequence import EngineRequest, SamplingParams
from workers.worker_totals import MetricsSnapshot

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve complains about pydantic as it is imported
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

    def options(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(generate=None)

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


class Cancelled:
    """The answer to a call that Ray cancelled, as its client left."""

    def remote(self, _: Any) -> Cancelled:
        return self

    async def __aiter__(self) -> Any:
        raise RequestCancelledError("r")
        yield

    def cancel(self) -> None:
        pass


def test_a_client_that_leaves_is_no_lost_worker_in_the_log() -> None:
    class Workers(NoWorkers):
        def options(self, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(generate=Cancelled())

    async def ask() -> None:
        backend = RayBackend(Workers(), load_settings(), FIRST, tokenizer=None, max_context=16)
        async for _ in backend.generate(EngineRequest("r", (1,), SamplingParams(4), "default")):
            pass

    with capture_logs() as lines, pytest.raises(WorkerError, match="cancelled"):
        asyncio.run(ask())
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
