"""Budgets over HTTP: who is asked about, what a refused client is told, and that every end is settled."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.utils import floatToGoString
from typer.testing import CliRunner

from controlplane.budget_cli import budget_app
from controlplane.budgets.desk import Refusal
from controlplane.finops.attribution import NS_PER_HOUR
from controlplane.finops.budget import fresh, status
from controlplane.finops.forecast import Forecast
from controlplane.finops.spending import Spent
from controlplane.policy import parse_policy
from workers.api import create_app
from workers.api_choice import ChoiceReader
from workers.backend import Draining, JournalCounts, Overloaded
from workers.generation import Generation
from workers.metrics import render
from workers.sequence import EngineRequest, SamplingParams

NOON = 1_790_596_800.0
MESSAGE = "The budget 'team' (key team-ide) is exhausted: 5.00 of 5.00 USD are spent in 2026-09; it resets at ..."
REFUSAL = Refusal("team", MESSAGE, NOON + 3600)
BUDGETS = """
budgets:
  - {name: team, tenant: team-web, usd: 5, period: month, soft: [50%, 80%], on_exceeded: reject}
"""


def body(route: str, **fields: Any) -> dict[str, Any]:
    said = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in route else {"prompt": "hi"}
    return {"model": "tiny", "max_tokens": 12, **said, **fields}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_no_route_passes_a_budget_by(ask: Any, backend: Any, route: str, stream: bool) -> None:
    """Budgets that some routes ignored let agents bypass the cap."""
    backend.over_budget = REFUSAL
    answer = ask("POST", route, json=body(route, stream=stream))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert "retry-after" not in answer.headers
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["message"]) == ("insufficient_quota", "insufficient_quota", MESSAGE)
    assert (error["budget"], backend.requests) == ("team", [])


def test_the_openai_client_does_not_try_again(base_url: str, backend: Any) -> None:
    backend.over_budget = REFUSAL
    client = openai.OpenAI(api_key="team-ide", base_url=f"{base_url}/v1", max_retries=2)
    with client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
    assert (caught.value.code, len(backend.asked)) == ("insufficient_quota", 1)


def test_a_request_is_asked_about_with_all_that_it_may_use(complete: Any, backend: Any) -> None:
    complete(prompt=["abc", "defgh"], max_tokens=20, **{})
    (asked,) = backend.asked
    assert (asked.cohort, asked.tenant, asked.input_tokens, asked.output_tokens) == ("default", None, 8, 40)


def test_a_key_that_only_a_budget_names_is_a_tenant(ask: Any, backend: Any) -> None:
    backend.policy_now = parse_policy(backend.policy_now.text + BUDGETS)
    headers = {"authorization": "Bearer team-web"}
    ask("POST", "/v1/completions", json=body("/v1/completions"), headers=headers)
    assert (backend.asked[0].tenant, backend.requests[0].tenant) == ("team-web", "team-web")


def test_what_a_request_did_use_is_settled(chat: Any, backend: Any) -> None:
    usage = chat(max_tokens=20).json()["usage"]
    (settled,) = backend.settled
    assert settled.id == backend.asked[0].id
    assert (settled.input_tokens, settled.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_is_settled_with_what_it_had(chat: Any, backend: Any, stream: bool) -> None:
    """Streamed and broken-off requests were logged with nothing spent."""
    backend.failure = "the device was lost"
    chat(stream=stream, max_tokens=20)
    (settled,) = backend.settled
    assert (settled.output_tokens, settled.input_tokens > 0) == (2, True)  # the first token and a plain step


@pytest.mark.parametrize("refusal", [Overloaded(1.0), Draining()], ids=["overloaded", "draining"])
def test_a_request_that_was_never_taken_in_is_settled_with_nothing(chat: Any, backend: Any, refusal: Exception) -> None:
    backend.refusal = refusal
    assert chat().status_code in (429, 503)
    assert [(s.input_tokens, s.output_tokens) for s in backend.settled] == [(0, 0)]


@pytest.mark.parametrize("chunks_before", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_settled(backend: Any, stream: bool, chunks_before: int) -> None:
    """With its prompt also where it did not wait for a first token: reading that has its cost."""
    backend.stalls, backend.chunks_before = True, chunks_before

    async def leave() -> None:
        transport = httpx.ASGITransport(create_app(backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://kadence") as http:
            route = "/v1/completions"
            asking = asyncio.create_task(http.post(route, json=body(route, stream=stream)))
            while not backend.requests:
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    (settled,) = backend.settled
    assert (settled.input_tokens, settled.output_tokens) == (2, chunks_before)


def test_tokens_that_a_slow_client_had_not_read_are_settled(backend: Any) -> None:
    settled: list[tuple[int, int]] = []

    async def leave() -> None:
        request = EngineRequest("r", (1, 2, 3), SamplingParams(max_tokens=20), "code")
        reader = ChoiceReader(backend.tokenizer, request, False, None)
        generation = Generation(backend, [request], [reader], lambda *tokens: settled.append(tokens))
        await generation.start()
        steps = generation.steps()
        for _ in range(2):  # the first chunk, and one that came while it was asked for
            await anext(steps)
        for _ in range(50):
            await asyncio.sleep(0)
        generation.abandon()
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert settled == [(3, 20)]


def said(cents: float, **changes: Any) -> Any:
    named = parse_policy("version: 1\ncohorts: [{name: d, match: {}, speculation: {tuner: fixed, ladder: [0], "
                         "start: 0, fallback: 0}}]" + BUDGETS).budgets[0]  # fmt: skip
    money = Spent(total=int(cents * 10**7) * NS_PER_HOUR, why=changes.pop("why", ""))
    ahead = Forecast(6 * 10**9, 5 * 10**9, 7 * 10**9, 10**7, NOON + 3600)
    return replace(status(named, fresh(named, NOON), money, NOON, ahead), **changes)


def test_the_budgets_are_shown_to_those_with_the_admin_key(ask: Any, backend: Any) -> None:
    backend.spent = [said(450, reserved_nano=10**7)]
    (budget,) = ask("GET", "/admin/budgets").json()["budgets"]
    assert (budget["spent"], budget["limit"], budget["left"], budget["reserved"]) == ("4.50", "5.00", "0.50", "0.01")
    assert (budget["state"], budget["resets_at_local"]) == ("soft", "2026-10-01T00:00+00:00")
    backend.admin_key = "secret"
    assert ask("GET", "/admin/budgets").status_code == 401


def test_without_a_controller_budgets_are_a_503(ask: Any, backend: Any) -> None:
    backend.controller_is_gone = True
    assert ask("GET", "/admin/budgets").status_code == 503


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(budget_app, ["status", *arguments])
    return result.exit_code, result.stdout


def test_the_command_says_what_is_spent_expected_and_when_it_resets(base_url: str, backend: Any) -> None:
    backend.spent = [said(450, rejections=3)]
    code, out = run("--url", base_url)
    assert (code, out.splitlines()) == (0, [
        "team  soft  (tenant team-web, 2026-09)",
        "    spent     4.50 of 5.00 USD; alerts at 50 %, 80 %, 100 %",
        "    expected  6.00 (5.00 to 7.00) at the reset, exceeded on 2026-09-28T13:00:00Z at this rate",
        "    resets    2026-10-01T00:00+00:00; when it is exceeded: reject",
        "    refused   3 requests since the controller started",
    ])  # fmt: skip


def test_a_budget_of_less_than_a_cent_is_read_as_written(base_url: str, backend: Any) -> None:
    small = said(0, limit_nano=15_000, spent_nano=1_500, reserved_nano=3, soft=(1.0,), forecast=None)
    backend.spent = [small]
    lines = run("--url", base_url)[1].splitlines()
    assert lines[1:3] == [
        "    spent     0.0000015 of 0.000015 USD; alerts at 100 %",
        "    reserved  0.000000003 for requests under way",
    ]


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", "ftp://host", "http://"])
def test_a_url_that_is_none_is_wrong_use(url: str) -> None:
    result = CliRunner().invoke(budget_app, ["status", "--url", url])
    assert (result.exit_code, result.stderr.splitlines()) == (
        2, [f"--url: {url!r} is not an address such as http://127.0.0.1:8000"]
    )  # fmt: skip


def test_an_exceeded_budget_is_exit_code_1(base_url: str, backend: Any) -> None:
    backend.spent = [said(600)]
    code, out = run("--url", base_url, "--json")
    assert (code, json.loads(out)["ok"], json.loads(out)["budgets"][0]["state"]) == (1, False, "exceeded")
    assert "exceeded already" in run("--url", base_url)[1]


def test_an_unknown_budget_says_what_is_missing(base_url: str, backend: Any) -> None:
    backend.spent = [said(100, why="gpu has no price")]
    code, out = run("team", "--url", base_url)
    assert (code, "at least 1.00 of 5.00" in out, "gpu has no price: not enforced" in out) == (0, True, True)


def test_a_budget_that_is_not_there_is_wrong_use(base_url: str, backend: Any) -> None:
    backend.spent = [said(1)]
    assert run("nobody", "--url", base_url)[0] == 2


def test_budgets_are_metrics_and_unknown_spending_is_absent() -> None:
    counts = JournalCounts(
        budgets=(said(450, rejections=3), said(1, name="dark", standing="unknown")), budgets_unasked=2
    )
    lines = set(render([], counts, []).decode().splitlines())
    assert {
        'kadence_budget_spent_usd{budget="team"} 4.5',
        'kadence_budget_limit_usd{budget="team"} 5.0',
        'kadence_budget_limit_usd{budget="dark"} 5.0',
        'kadence_budget_forecast_usd{budget="team"} 6.0',
        f'kadence_budget_period_seconds{{budget="team"}} {floatToGoString(30 * 86400.0)}',
        f'kadence_budget_reset_timestamp_seconds{{budget="team"}} {floatToGoString(said(1).period.end)}',
        'kadence_budget_rejections_total{budget="team"} 3.0',
        "kadence_budget_unasked_total 2.0",
    } <= lines
    assert not [line for line in lines if line.startswith('kadence_budget_spent_usd{budget="dark"}')]
