"""From `kadence keys` in the database to an endpoint's memory, through a real controller. No Ray is started."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.keys.ring import ApiKey, KeyRing, look_up
from controlplane.keys.secret import RANDOM_BYTES, make
from controlplane.settings import Settings, load_settings
from controlplane.store.api_keys import add_key, read_ring, revoke_key
from controlplane.store.engine import open_database
from workers import controller_actor
from workers.backend import WorkerError
from workers.controller_actor import ControllerActor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve complains about pydantic as it is imported
    from workers import ray_backend
    from workers.ray_backend import RayBackend

POLICY = (
    "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
    "    speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}\n"
)
NEW = make(bytes(RANDOM_BYTES))
KEY = ApiKey(NEW.id, "team", NEW.digest, tenant="team")
EFFECTIVE_WITHIN_S = 2.0


class NoWorkers:
    """A deployment handle without a replica behind it."""

    def options(self, **_: Any) -> Any:
        return self

    generate = None


class Endpoint(RayBackend):
    """Asks the controller by a plain call, as long as there is one."""

    def __init__(self, settings: Settings, controller: ControllerActor | None, keys: KeyRing | None = None) -> None:
        super().__init__(NoWorkers(), settings, POLICY, tokenizer=None, max_context=16, keys=keys)
        self.controller = controller
        self.sent: list[KeyRing | None] = []

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self.controller is None:
            raise WorkerError("the controller does not answer")
        answer = await getattr(self.controller, method)(*arguments)
        self.sent.append(answer.keys)
        return answer

    def opens(self) -> bool:
        return isinstance(look_up(self.keys(), NEW.text, time.time()), ApiKey)

    async def within(self, wanted: bool) -> float:
        """Seconds until the key opens or does not."""
        began = time.monotonic()
        while self.opens() is not wanted:
            assert time.monotonic() < began + 10, "still not"
            await asyncio.sleep(0.01)
        return time.monotonic() - began


@pytest.fixture
def settings(sqlite_ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(controller_actor, "_was_restarted", lambda: False)
    (tmp_path / "policies.yaml").write_text(POLICY)
    policy = tmp_path / "policies.yaml"
    return load_settings(home=tmp_path, database_url=sqlite_ledger_url, tick_s=60.0, plan_ttl_s=100.0, policy=policy)


def live(settings: Settings, act: Callable[[Endpoint], Awaitable[None]]) -> None:
    async def life() -> None:
        controller = ControllerActor(settings, POLICY)
        endpoint = Endpoint(settings, controller)
        await endpoint.learn_keys()
        await act(endpoint)
        assert endpoint._refreshing is not None
        endpoint._refreshing.cancel()
        await controller.close()

    asyncio.run(life())


def test_a_new_key_and_its_end_are_in_force_within_two_seconds(settings: Settings) -> None:
    engine = open_database(settings.database_url)

    async def act(endpoint: Endpoint) -> None:
        add_key(engine, KEY, "")
        assert await endpoint.within(True) < EFFECTIVE_WITHIN_S
        revoke_key(engine, "team", "ada", "leaked", time.time())
        assert await endpoint.within(False) < EFFECTIVE_WITHIN_S
        assert look_up(endpoint.keys(), NEW.text, time.time()) == "revoked"

    live(settings, act)
    engine.dispose()


def test_keys_that_did_not_change_are_not_sent_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "REFRESH_S", 0.02)
    engine = open_database(settings.database_url)
    add_key(engine, KEY, "")
    engine.dispose()

    async def act(endpoint: Endpoint) -> None:
        await endpoint.within(True)
        before = len(endpoint.sent)
        while len(endpoint.sent) < before + 3:
            await asyncio.sleep(0.01)
        assert [ring is not None for ring in endpoint.sent].count(True) <= 2  # the empty one, and this

    live(settings, act)


def test_without_a_controller_the_keys_known_last_hold(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_backend, "REFRESH_S", 0.02)
    engine = open_database(settings.database_url)
    add_key(engine, KEY, "")
    at_start = read_ring(engine, time.time())
    engine.dispose()

    async def act(endpoint: Endpoint) -> None:
        await endpoint.within(True)
        endpoint.controller = None
        await asyncio.sleep(0.1)
        assert endpoint.opens()
        fresh = Endpoint(settings, None, at_start)  # an endpoint that starts now
        await fresh.learn_keys()
        assert fresh.opens()
        assert fresh._refreshing is not None
        fresh._refreshing.cancel()

    live(settings, act)


def test_the_first_request_waits_for_the_keys(settings: Settings) -> None:
    """An endpoint that has only just started must not let a revoked key in that it learnt at the start of serving."""
    engine = open_database(settings.database_url)
    add_key(engine, KEY, "")
    stale = read_ring(engine, time.time())
    revoke_key(engine, "team", "ada", "", time.time())
    engine.dispose()

    async def life() -> tuple[bool, bool]:
        controller = ControllerActor(settings, POLICY)
        controller._keys.look()
        endpoint = Endpoint(settings, controller, stale)
        before = endpoint.opens()
        await endpoint.learn_keys()
        after = endpoint.opens()
        assert endpoint._refreshing is not None
        endpoint._refreshing.cancel()
        await controller.close()
        return before, after

    assert asyncio.run(life()) == (True, False)


def test_a_controller_that_hangs_holds_up_no_request_for_long(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_backend, "LEARN_WITHIN_S", 0.05)

    class Hanging(Endpoint):
        async def _ask(self, method: str, *arguments: Any) -> Any:
            await asyncio.Event().wait()

    async def life() -> float:
        endpoint, began = Hanging(settings, None), time.monotonic()
        await endpoint.learn_keys()
        assert endpoint._refreshing is not None
        endpoint._refreshing.cancel()
        return time.monotonic() - began

    assert 0.04 < asyncio.run(life()) < 1.0
