"""Alerts over HTTP and from the command line, against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from controlplane.alerts import Alert
from controlplane.alerts_cli import alerts_app

Ask = Callable[..., httpx.Response]
ALERT = Alert("canary", "ngram@1", "critical", 1_790_000_000.0, 1_790_000_060.0, 3, "text is not the target's")
OLD = Alert("canary", "ngram@0", "critical", 1.0, 2.0, 1, "older", "cleared", 3.0, "ann", "replaced")


@pytest.fixture(autouse=True)
def raised(backend: Any) -> None:
    backend.raised = [ALERT, OLD]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["canary:ngram@1"]),
        ("?state=cleared", ["canary:ngram@0"]),
        ("?state=all", ["canary:ngram@1", "canary:ngram@0"]),
    ],
)
def test_alerts_are_listed_by_state(ask: Ask, query: str, names: list[str]) -> None:
    assert [alert["name"] for alert in ask("GET", f"/admin/alerts{query}").json()["alerts"]] == names


def test_an_unknown_state_is_a_400(ask: Ask) -> None:
    response = ask("GET", "/admin/alerts?state=open")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "state")


def test_a_cleared_alert_says_by_whom_and_why(ask: Ask, backend: Any) -> None:
    body = {"clear": "canary:ngram@1", "reason": "kernel fixed"}
    alert = ask("PUT", "/admin/alerts?by=ann", json=body).json()
    assert (alert["state"], alert["cleared_by"], alert["why"]) == ("cleared", "ann", "kernel fixed")
    assert backend.orders == [("alert", "canary:ngram@1", "kernel fixed", "ann")]


def test_clearing_what_is_not_active_is_a_404_that_names_it(ask: Ask) -> None:
    response = ask("PUT", "/admin/alerts", json={"clear": "canary:ngram@0", "reason": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "alert_not_found")
    assert "canary:ngram@0" in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [{"clear": "a"}, {"clear": "", "reason": "x"}, {"reason": "x"}, {"clear": 1}])
def test_a_bad_order_is_a_400(ask: Ask, body: dict[str, Any]) -> None:
    assert ask("PUT", "/admin/alerts", json=body).status_code == 400


def test_no_controller_is_a_503(ask: Ask, backend: Any) -> None:
    backend.controller_is_gone = True
    assert ask("GET", "/admin/alerts").status_code == 503


def run(base_url: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(alerts_app, [*arguments, "--url", base_url])
    return result.exit_code, result.output


def test_the_command_lists_and_clears(base_url: str, backend: Any) -> None:
    assert run(base_url, "list") == (
        0,
        "canary:ngram@1  critical, 3 times from 2026-09-21T14:13:20Z to 2026-09-21T14:14:20Z\n"
        "    text is not the target's\n",
    )
    assert run(base_url, "clear", "canary:ngram@1", "--why", "fixed") == (
        0,
        "canary:ngram@1: cleared after 3 sightings\n",
    )
    assert run(base_url, "list") == (0, "no active alerts\n")
    code, text = run(base_url, "list", "--state", "all", "--json")
    assert (code, [alert["state"] for alert in json.loads(text)["alerts"]]) == (0, ["cleared", "cleared"])


def test_the_command_says_in_one_line_what_was_refused(base_url: str) -> None:
    assert run(base_url, "clear", "canary:x@1", "--why", "y") == (1, "No active alert is named 'canary:x@1'.\n")
