"""Health, models, metrics, administration, and the headers on every answer."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from controlplane.decision.plan import StagedPlan
from controlplane.policy_control import PolicyStatus
from controlplane.store.policies import PolicyEntry
from controlplane.telemetry import CohortWindow
from workers.api import create_app
from workers.worker_totals import MetricsSnapshot

Ask = Callable[..., httpx.Response]
KEY = {"authorization": "Bearer admin-secret"}
ADMIN_ROUTES = [
    ("GET", "/admin/plan"),
    ("GET", "/admin/policy"),
    ("GET", "/admin/policy/history"),
    ("GET", "/admin/policy/rollout"),
    ("DELETE", "/admin/policy/rollout"),
    ("PUT", "/admin/policy"),
    ("PUT", "/admin/kill-switch"),
    ("GET", "/admin/alerts"),
    ("PUT", "/admin/alerts"),
]


def test_health_says_when_it_is_ready(ask: Ask, backend: Any) -> None:
    assert ask("GET", "/health").json() == {"status": "ok"}
    backend.is_ready = False
    assert ask("GET", "/health").status_code == 503


def test_the_model_is_listed_and_can_be_asked_for(ask: Ask, backend: Any) -> None:
    backend.model_id = "org/tiny-model"
    (card,) = ask("GET", "/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("org/tiny-model", "model", 200)
    alone = ask("GET", "/v1/models/org/tiny-model").json()
    assert alone == {**card, "created": alone["created"]}  # each question has an endpoint of its own here


def test_the_version_is_that_of_the_package(ask: Ask) -> None:
    assert ask("GET", "/version").json()["version"].count(".") >= 1


def test_metrics_of_a_new_endpoint_leave_out_what_workers_had_counted_before_it(backend: Any) -> None:
    backend.shown = [MetricsSnapshot("w", time.time_ns(), "tiny", {"code": CohortWindow("code", first_tokens=3)})]

    async def serve() -> str:
        app = create_app(backend)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://kadence") as http:
                return (await http.get("/metrics")).text

    assert 'kadence_emitted_tokens_total{cohort="code",model="tiny"} 0.0' in asyncio.run(serve())


def test_metrics_show_workers_and_journal(ask: Ask, backend: Any) -> None:
    backend.shown = [MetricsSnapshot("w", time.time_ns(), "tiny", {"code": CohortWindow("code", first_tokens=3)})]
    text = ask("GET", "/metrics").text
    assert 'kadence_emitted_tokens_total{cohort="code",model="tiny"} 3.0' in text
    assert 'kadence_decisions_total{cohort="code",reason="hold"} 2.0' in text


def test_metrics_outlive_the_controller(ask: Ask, backend: Any) -> None:
    backend.controller_is_gone = True
    response = ask("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")


def test_metrics_need_a_key_only_from_afar(ask: Ask, backend: Any) -> None:
    backend.admin_key = "admin-secret"
    status = [
        ask("GET", "/metrics").status_code,
        ask("GET", "/metrics", client="10.0.0.9").status_code,
        ask("GET", "/metrics", client="10.0.0.9", headers=KEY).status_code,
    ]
    assert status == [200, 401, 200]


def test_the_plan_is_shown(ask: Ask) -> None:
    plan = ask("GET", "/admin/plan").json()
    assert (plan["version"], plan["kill_switch"], plan["fallback"]) == (7, "off", {"code": 0})
    assert len(plan["k"]["code"]) == len(plan["load_buckets"])


def test_the_plan_says_which_workers_try_another_policy(ask: Ask, backend: Any) -> None:
    assert ask("GET", "/admin/plan").json()["staged"] is None
    backend.staged = StagedPlan(("w-1",), {"code": (4,) * 9}, {"code": 2}, "abc")
    assert ask("GET", "/admin/plan").json()["staged"] == {
        "workers": ["w-1"],
        "policy_revision": "abc",
        "k": {"code": [4] * 9},
        "fallback": {"code": 2},
    }


def test_a_plan_that_cannot_be_had_is_a_503(ask: Ask, backend: Any) -> None:
    backend.controller_is_gone = True
    assert ask("GET", "/admin/plan").json()["error"]["type"] == "server_error"


def test_a_policy_is_put_in_force_and_read_back(ask: Ask, backend: Any) -> None:
    text = backend.policy_now.text.replace("name: flex", "name: relaxed")
    revision = ask("PUT", "/admin/policy?by=ann&why=rename", content=text).json()["revision"]
    response = ask("GET", "/admin/policy")
    assert (response.text, response.headers["etag"]) == (text, f'"{revision}"')
    assert backend.orders == [("policy", "ann", "rename")]


def test_the_policy_as_json_has_every_value_its_origin_and_what_is_wrong_with_the_file(ask: Ask, backend: Any) -> None:
    backend.status = PolicyStatus("ann", "rename", 1.5, "/p.yaml", ("p.yaml:3: bad",))
    view = ask("GET", "/admin/policy?format=json").json()
    assert view["cohorts"][0]["origin"]["guard.hold_s"] == {"from": "default", "line": None}
    assert (view["revision"], view["applied_by"], view["file_problems"]) == (
        backend.policy_now.revision,
        "ann",
        ["p.yaml:3: bad"],
    )
    assert ask("GET", "/admin/policy").headers["x-kadence-file-problems"] == "1"


def test_the_history_is_answered_up_to_its_limit(ask: Ask, backend: Any) -> None:
    backend.history = [PolicyEntry("abc", 1_790_000_000.0, "ann", "first"), PolicyEntry("def", 1.0, "bob", "older")]
    (entry,) = ask("GET", "/admin/policy/history?limit=1").json()["history"]
    assert (entry["revision"], entry["at"], entry["what"]) == ("abc", "2026-09-21T14:13:20Z", "applied")


@pytest.mark.parametrize(
    ("path", "field"),
    [("policy?format=xml", "format"), ("policy/history?limit=0", "limit"), ("policy/history?limit=x", "limit")],
)
def test_a_wrong_parameter_is_a_400_that_names_it(ask: Ask, path: str, field: str) -> None:
    response = ask("GET", f"/admin/{path}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("query", "field"),
    [("stage=1", "stage"), ("stage=x", "stage"), ("stage=0.1&unit=all", "unit"), ("stage=0.1&max_s=1", "max_s"),
     ("stage=0.1&min_windows=1e99", "min_windows"), ("stage=0.1&min_windows=nan", "min_windows")],
)  # fmt: skip
def test_a_stage_that_cannot_be_is_a_400_that_names_its_field(ask: Ask, backend: Any, query: str, field: str) -> None:
    response = ask("PUT", f"/admin/policy?{query}", content=backend.policy_now.text)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


def test_a_history_that_cannot_be_had_is_a_503(ask: Ask, backend: Any) -> None:
    backend.controller_is_gone = True
    assert ask("GET", "/admin/policy/history").status_code == 503


@pytest.mark.parametrize("text", [b"", b"\xff", b"version: 1\ncohorts: []\n", b"version: [", b"a: &a [*a]"])
def test_a_bad_policy_changes_nothing(ask: Ask, backend: Any, text: bytes) -> None:
    response = ask("PUT", "/admin/policy", content=text)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert not backend.orders


def test_a_bad_policy_is_answered_with_all_its_problems(ask: Ask, backend: Any) -> None:
    text = backend.policy_now.text.replace("start: 2", "start: 3", 2)
    problems = ask("PUT", "/admin/policy", content=text).json()["error"]["problems"]
    assert [p["line"] for p in problems] == [5, 8]


@pytest.mark.parametrize("mode", ["off", "fallback", "zero"])
def test_the_kill_switch_is_passed_on(ask: Ask, backend: Any, mode: str) -> None:
    ask("PUT", "/admin/kill-switch", json={"mode": mode, "reason": "drill"})
    assert backend.orders == [("kill-switch", mode, "drill", "admin")]


@pytest.mark.parametrize("body", [{}, {"mode": "off"}, {"mode": "on", "reason": "x"}, {"mode": "off", "reason": ""}])
def test_a_bad_order_to_the_kill_switch_is_a_400(ask: Ask, backend: Any, body: dict[str, str]) -> None:
    assert ask("PUT", "/admin/kill-switch", json=body).status_code == 400
    assert not backend.orders


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_admin_routes_tell_no_key_from_a_wrong_one(ask: Ask, backend: Any, method: str, path: str) -> None:
    backend.admin_key = "admin-secret"
    assert ask(method, path).status_code == 401
    response = ask(method, path, headers={"authorization": "Bearer team-ide"})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
    assert ask(method, path, headers=KEY).status_code not in (401, 403)


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
@pytest.mark.parametrize(
    ("client", "headers"), [("10.0.0.9", {}), ("testclient", {}), ("127.0.0.1", {"x-forwarded-for": "10.0.0.9"})]
)
def test_without_an_admin_key_only_loopback_may_administer(
    ask: Ask, method: str, path: str, client: str, headers: dict[str, str]
) -> None:
    assert ask(method, path, client=client, headers=headers).status_code == 403


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_every_loopback_address_may_administer(ask: Ask, client: str) -> None:
    assert ask("GET", "/admin/plan", client=client).status_code == 200


def test_the_admin_key_is_never_used_for_inference_nor_kept_as_a_tenant(ask: Ask, backend: Any) -> None:
    backend.admin_key = "team-ide"
    headers = {"authorization": "Bearer team-ide"}
    answer = ask("POST", "/v1/completions", json={"model": "tiny", "prompt": "a"}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "inference_key_required")
    assert not backend.requests


def test_a_sane_request_id_is_kept(ask: Ask) -> None:
    assert ask("GET", "/health", headers={"x-request-id": "abc-123.x:y"}).headers["x-request-id"] == "abc-123.x:y"


@pytest.mark.parametrize("given", ["", "a b", "x" * 200, "<script>", "a%0d%0ab"])
def test_any_other_request_id_is_replaced(ask: Ask, given: str) -> None:
    assert ask("GET", "/health", headers={"x-request-id": given}).headers["x-request-id"].startswith("req-")


def test_every_answer_says_how_long_it_took(ask: Ask) -> None:
    for path in ("/health", "/nowhere"):
        assert int(ask("GET", path).headers["openai-processing-ms"]) >= 0


def test_a_long_chat_is_rendered_beside_the_event_loop(ask: Ask, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered_on = set()
    render = backend.tokenizer.apply_chat_template

    def watched(*args: Any, **options: Any) -> Any:
        rendered_on.add(threading.current_thread())
        return render(*args, **options)

    monkeypatch.setattr(backend.tokenizer, "apply_chat_template", watched)
    messages = [{"role": "user", "content": "a"}] * 500
    ask("POST", "/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert rendered_on
    assert threading.main_thread() not in rendered_on
