"""Keys over HTTP: who is let in and as whom, what limits answer, and that no token leaves a trace."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from controlplane.budgets.desk import Refusal
from controlplane.keys.ring import ApiKey, KeyLimits, KeyRing
from controlplane.keys.secret import RANDOM_BYTES, make
from workers import api_keys
from workers.api import create_app
from workers.key_use import duration

KEY, OTHER, ADMIN = (make(bytes([i]) * RANDOM_BYTES, is_admin=i == 3) for i in (1, 2, 3))
TEAM = ApiKey(KEY.id, "team-ide", KEY.digest, tenant="acme")
ROOT = ApiKey(ADMIN.id, "ops", ADMIN.digest, is_admin=True)
AFAR = "10.0.0.9"
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("POST", "/tokenize"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
]


def ring(*keys: ApiKey) -> KeyRing:
    kinds = {key.is_admin for key in keys}
    return KeyRing(keys, has_inference=False in kinds, has_admin=True in kinds)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.fixture
def post(ask: Any) -> Any:
    """POST to completions with this token, and fields or a client's address."""

    def send(token: str | None = None, client: str = "127.0.0.1", **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 5, **fields}
        headers = {} if token is None else bearer(token)
        return ask("POST", "/v1/completions", json=body, headers=headers, client=client)

    return send


def code(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, None if response.is_success else response.json()["error"]["code"]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_but_health_wants_a_key_once_there_is_one(ask: Any, backend: Any, method: str, path: str) -> None:
    backend.ring = ring(TEAM)
    answer = ask(method, path)
    assert code(answer) == (401, "missing_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    assert ask(method, path, headers=bearer(KEY.text)).status_code != 401


@pytest.mark.parametrize("path", ["/health", "/version"])
def test_whether_the_server_is_well_is_no_secret(ask: Any, backend: Any, path: str) -> None:
    backend.ring, backend.keys_demanded = ring(TEAM), True
    assert ask("GET", path, client=AFAR).status_code == 200


@pytest.mark.parametrize(
    ("demanded", "keys", "client", "status"),
    [
        (None, (), "127.0.0.1", 200),
        (None, (), AFAR, 401),
        (None, (TEAM,), "127.0.0.1", 401),
        (None, (ROOT,), "127.0.0.1", 200),
        (True, (), "127.0.0.1", 401),
        (False, (TEAM,), "127.0.0.1", 200),
        (False, (TEAM,), AFAR, 401),
    ],
)
def test_without_a_key_a_client_of_this_machine_may_while_none_are_in_force(
    post: Any, backend: Any, demanded: bool | None, keys: tuple[ApiKey, ...], client: str, status: int
) -> None:
    backend.keys_demanded, backend.ring = demanded, ring(*keys)
    assert post(client=client).status_code == status
    assert len(backend.requests) == (status == 200)


def test_a_client_that_a_proxy_speaks_for_is_from_afar(ask: Any) -> None:
    assert code(ask("GET", "/v1/models", headers={"x-forwarded-for": AFAR})) == (401, "missing_api_key")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("10.0.0.9", 200),
        ("localhost:8000", 200),
        ("app.localhost.", 200),
        ("kadence", 200),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("[::1", 403),
    ],
)
@pytest.mark.parametrize("path", ["/admin/policy", "/metrics"])
def test_a_page_whose_name_was_made_to_lead_here_is_from_afar(ask: Any, path: str, host: str, status: int) -> None:
    """DNS rebinding: a browser on this machine speaks for it, with the page's name."""
    answer = ask("GET", path, headers={"host": host})
    assert answer.status_code == status


def test_a_page_whose_name_was_made_to_lead_here_cannot_infer(ask: Any) -> None:
    assert code(ask("GET", "/v1/models", headers={"host": "evil.example"})) == (401, "missing_api_key")


def test_a_system_whose_last_key_was_revoked_does_not_fall_open(post: Any, backend: Any) -> None:
    backend.ring = KeyRing((), has_inference=True)
    assert code(post()) == (401, "missing_api_key")


@pytest.mark.parametrize("client", ["127.0.0.1", AFAR])
def test_a_key_opens_the_endpoint_from_everywhere(post: Any, backend: Any, client: str) -> None:
    backend.ring = ring(TEAM)
    assert post(KEY.text, client=client).status_code == 200


@pytest.mark.parametrize(
    ("token", "changes", "said"),
    [
        (OTHER.text, {}, "Incorrect"),
        (KEY.text[:-1] + "!", {}, "Incorrect"),
        ("unused", {}, "Incorrect"),
        ("team-ide", {}, "Incorrect"),
        (KEY.text, {"expires_at": 1.0}, "expired"),
        (KEY.text, {"ends_at": 1.0}, "replaced"),
        (KEY.text, {"ends_at": 1.0, "is_revoked": True}, "revoked"),
        (KEY.text, {"digest": OTHER.digest}, "Incorrect"),
    ],
)
def test_a_key_that_opens_nothing_is_a_401(
    post: Any, backend: Any, token: str, changes: dict[str, Any], said: str
) -> None:
    backend.ring = ring(replace(TEAM, **changes))
    answer = post(token)
    assert code(answer) == (401, "invalid_api_key")
    assert said in answer.json()["error"]["message"]
    assert token not in answer.text
    assert not backend.requests


@pytest.mark.parametrize("token", [OTHER.text, "kd-mistyped", "team-ide"])
def test_what_is_meant_as_a_key_is_looked_at_also_where_none_is_needed(post: Any, backend: Any, token: str) -> None:
    backend.ring, backend.keys_demanded = ring(TEAM), False
    assert code(post(token)) == (401, "invalid_api_key")


def test_the_openai_client_raises_what_it_should(base_url: str, backend: Any) -> None:
    backend.ring = ring(TEAM)
    wrong = openai.OpenAI(api_key="nonsense", base_url=f"{base_url}/v1", max_retries=2)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.models.list()
    with openai.OpenAI(api_key=KEY.text, base_url=f"{base_url}/v1") as client:
        assert client.models.list().data[0].id == "tiny"


def test_the_policy_matches_the_name_and_the_tenant_is_the_keys(post: Any, backend: Any) -> None:
    backend.ring = ring(TEAM)
    post(KEY.text)
    assert (backend.requests[0].cohort, backend.requests[0].tenant) == ("code", "acme")
    assert backend.asked[0].tenant == "acme"


@pytest.mark.parametrize(("bound_to", "cohort"), [("flex", "flex"), ("gone", "code")])
def test_a_key_that_is_bound_to_a_cohort_goes_there_whatever_it_says(
    ask: Any, backend: Any, bound_to: str, cohort: str
) -> None:
    """While the policy has no such cohort, its match decides."""
    backend.ring = ring(replace(TEAM, cohort=bound_to))
    headers = bearer(KEY.text) | {"x-kadence-cohort": "trusted"}
    ask("POST", "/v1/completions", json={"model": "tiny", "prompt": "a"}, headers=headers)
    assert backend.requests[0].cohort == cohort


def test_a_name_is_enough_only_while_no_key_has_it(post: Any, backend: Any) -> None:
    backend.ring, backend.keys_demanded = ring(replace(TEAM, name="other")), False
    assert post("team-ide").status_code == 200
    assert (backend.requests[0].cohort, backend.requests[0].tenant) == ("code", "team-ide")


def test_an_admin_key_does_not_infer(post: Any, backend: Any) -> None:
    backend.ring = ring(TEAM, ROOT)
    assert code(post(ADMIN.text)) == (403, "inference_key_required")
    assert not backend.requests


@pytest.mark.parametrize("path", ["/admin/plan", "/metrics"])
def test_an_admin_key_of_the_database_opens_administration_from_afar(ask: Any, backend: Any, path: str) -> None:
    backend.ring = ring(TEAM, ROOT)
    for headers, status in [({}, 401), (bearer(KEY.text), 403), (bearer("x"), 403), (bearer(ADMIN.text), 200)]:
        assert ask("GET", path, headers=headers, client=AFAR).status_code == status


def test_once_there_is_an_admin_key_administration_wants_one_on_this_machine_too(ask: Any, backend: Any) -> None:
    assert ask("GET", "/admin/plan").status_code == 200
    backend.ring = ring(ROOT)
    assert code(ask("GET", "/admin/plan")) == (401, "missing_api_key")


def test_a_revoked_admin_key_opens_nothing(ask: Any, backend: Any) -> None:
    backend.ring = ring(replace(ROOT, ends_at=1.0, is_revoked=True))
    assert code(ask("GET", "/admin/plan", headers=bearer(ADMIN.text))) == (401, "invalid_api_key")


def test_the_admin_key_of_the_environment_works_beside_those_on_record(ask: Any, backend: Any) -> None:
    backend.ring, backend.admin_key = ring(ROOT), "secret"
    assert [ask("GET", "/admin/plan", headers=bearer(t)).status_code for t in ("secret", ADMIN.text)] == [200, 200]


class Client:
    """Several requests to one application, whose limits they share."""

    def __init__(self, backend: Any, **limits: int) -> None:
        backend.ring = ring(replace(TEAM, limits=KeyLimits(**limits)))
        self._transport = httpx.ASGITransport(create_app(backend))

    async def post(self, token: str = KEY.text, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 5, **fields}
        async with httpx.AsyncClient(transport=self._transport, base_url="http://kadence") as http:
            return await http.post("/v1/completions", json=body, headers=bearer(token))

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://kadence") as http:
            return await http.get(path, headers=bearer(KEY.text))


def test_requests_over_the_limit_are_a_429_that_says_when_and_compute_nothing(backend: Any) -> None:
    client = Client(backend, requests_per_minute=2)

    async def three() -> list[httpx.Response]:
        return [await client.post() for _ in range(3)]

    *_, last = asyncio.run(three())
    assert code(last) == (429, "rate_limit_exceeded")
    assert 29 <= int(last.headers["retry-after"]) <= 30
    assert last.headers["x-ratelimit-remaining-requests"] == "0"
    assert (len(backend.requests), len(backend.asked)) == (2, 2)


def test_tokens_are_reserved_at_the_most_and_corrected_at_the_end(backend: Any) -> None:
    backend.reply = "abc"
    client = Client(backend, tokens_per_minute=100)

    async def twice() -> list[httpx.Response]:
        return [await client.post(max_tokens=80), await client.get("/v1/models")]

    first, second = asyncio.run(twice())
    used = first.json()["usage"]["total_tokens"]
    assert used == 2 + 3
    assert second.headers["x-ratelimit-limit-tokens"] == "100"
    assert 100 - used <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 100 - used + 1
    assert second.headers["x-ratelimit-reset-tokens"].endswith("s")
    assert "x-ratelimit-limit-requests" not in second.headers


def test_a_request_of_more_than_a_minutes_tokens_is_not_to_be_repeated(backend: Any) -> None:
    answer = asyncio.run(Client(backend, tokens_per_minute=10).post(max_tokens=9))
    assert code(answer) == (429, "rate_limit_exceeded")
    assert (answer.headers["x-should-retry"], "retry-after" in answer.headers) == ("false", False)
    assert "11 tokens" in answer.json()["error"]["message"]


def test_requests_at_once_are_limited_until_one_has_ended(backend: Any) -> None:
    client = Client(backend, max_concurrent=1)
    backend.stalls, backend.chunks_before = True, 0

    async def overlap() -> list[tuple[int, str | None]]:
        first = asyncio.create_task(client.post())
        while not backend.requests:
            await asyncio.sleep(0)
        second = await client.post()
        first.cancel()  # its client has gone
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(0.01)
        backend.stalls = False
        return [code(second), code(await client.post())]

    assert asyncio.run(overlap()) == [(429, "rate_limit_exceeded"), (200, None)]


@pytest.mark.parametrize("trouble", ["budget", "failure", "stream"])
def test_however_a_request_ends_its_reservation_does(backend: Any, trouble: str) -> None:
    client = Client(backend, max_concurrent=1, tokens_per_minute=1000)
    if trouble == "budget":
        backend.over_budget = Refusal("b", "no", 1.0)
    if trouble == "failure":
        backend.failure = "the device was lost"

    async def twice() -> httpx.Response:
        await client.post(stream=trouble == "stream", max_tokens=20)
        await asyncio.sleep(0.01)
        backend.over_budget = backend.failure = None
        return await client.post()

    assert asyncio.run(twice()).status_code == 200


def test_a_key_without_limits_is_told_of_none(post: Any, backend: Any) -> None:
    backend.ring = ring(TEAM)
    assert not [name for name in post(KEY.text).headers if name.startswith("x-ratelimit")]


def test_what_keys_use_and_what_is_refused_are_counted(backend: Any) -> None:
    client = Client(backend, requests_per_minute=2)

    async def some() -> str:
        for _ in range(3):
            await client.post()
        await client.post(OTHER.text)
        await client.post("guess")
        return (await client.get("/metrics")).text

    shown = asyncio.run(some())
    assert {
        'kadence_key_requests_total{key="team-ide"} 2.0',
        'kadence_key_tokens_total{key="team-ide"} 14.0',
        'kadence_key_running_requests{key="team-ide"} 0.0',
        'kadence_key_requests_refused_total{key="team-ide",limit="requests"} 1.0',
        'kadence_key_rejections_total{reason="unknown"} 1.0',
        'kadence_key_rejections_total{reason="malformed"} 1.0',
    } <= set(shown.splitlines())
    assert not [text for text in (KEY.text, OTHER.text, "guess") if text in shown]


def test_no_token_is_logged(post: Any, backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    backend.ring = ring(TEAM)
    backend.failure = "the device was lost"
    with caplog.at_level(logging.DEBUG):
        for token in (KEY.text, OTHER.text, "guess-1234"):
            post(token)
    said = json.dumps([record.getMessage() for record in caplog.records])
    assert not [token for token in (KEY.text, OTHER.text, "guess-1234") if token in said]


def test_each_of_several_endpoints_keeps_to_its_part(backend: Any) -> None:
    backend.endpoints = 2
    client = Client(backend, requests_per_minute=5)

    async def four() -> list[int]:
        return [(await client.post()).status_code for _ in range(4)]

    assert asyncio.run(four()) == [200, 200, 429, 429]


@pytest.mark.parametrize(
    ("ns", "said"),
    [(0, "0s"), (1, "1ms"), (120 * 10**6, "120ms"), (8_640 * 10**6, "8.64s"), (10**9, "1s"), (10**10, "10s"),
     (360 * 10**9, "6m0s"), (60 * 10**9 - 1, "1m0s")],
)  # fmt: skip
def test_resets_are_written_as_openai_does(ns: int, said: str) -> None:
    assert duration(ns) == said


def test_a_key_that_expires_while_the_endpoint_runs_is_refused_then(
    post: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.ring = ring(replace(TEAM, expires_at=1_790_000_000.0))
    for now, status in [(1_789_999_999.9, 200), (1_790_000_000.0, 401)]:
        monkeypatch.setattr(api_keys, "time", SimpleNamespace(time=lambda now=now: now))
        assert post(KEY.text).status_code == status
