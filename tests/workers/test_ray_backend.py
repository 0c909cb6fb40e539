"""The endpoint's view of a controller that answers and then goes away. No Ray is started."""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from controlplane.settings import load_settings
from workers.backend import WorkerError
from workers.plan_client import unplanned

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve complains about pydantic as it is imported
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
