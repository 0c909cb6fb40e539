"""The savings experiment over HTTP and from the command line, against a real server and a real controller."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from controlplane.controller import Controller
from controlplane.experiment_cli import experiment_app
from controlplane.experiment_control import ExperimentControl
from controlplane.policy import parse_policy

Ask = Callable[..., httpx.Response]
TEXT = """
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}}
experiment: {holdout: 10%, unit: window, window: 5m, burn_in: 1m}
"""


def nowhere(*_: Any, **__: Any) -> None:
    """A journal that keeps nothing."""


@pytest.fixture(autouse=True)
def control(backend: Any) -> ExperimentControl:
    """The controller's experiment behind the backend."""
    log: Any = SimpleNamespace(
        record=nowhere, policy_applied=nowhere, told=nowhere, experiment=nowhere, experiment_windows=nowhere
    )
    made = ExperimentControl(Controller(parse_policy(TEXT), log, epoch=1), log)

    async def experiment() -> dict[str, Any] | None:
        return made.status()

    async def start_experiment(asked: dict[str, Any], by: str, why: str, seed: int | None) -> dict[str, Any]:
        made.start(asked, by, why, seed)
        return made.status() or {}

    async def stop_experiment(by: str, why: str) -> dict[str, Any]:
        made.stop(by, why)
        return made.status() or {}

    backend.experiment, backend.start_experiment = experiment, start_experiment
    backend.stop_experiment = stop_experiment
    return made


def test_without_one_there_is_nothing_to_show(ask: Ask) -> None:
    assert ask("GET", "/admin/experiment").json() == {"experiment": None}


def test_it_starts_with_the_policys_settings_and_the_seed_that_was_given(ask: Ask) -> None:
    found = ask("PUT", "/admin/experiment?by=ann", json={"why": "to see", "seed": 5, "pairs": 20}).json()["experiment"]
    assert (found["unit"], found["holdout"], found["window_s"], found["pairs"], found["seed"]) == (
        "window", 0.1, 300.0, 20, 5,
    )  # fmt: skip
    assert (found["by"], found["why"], found["state"], found["done"]) == ("ann", "to see", "running", 0)
    assert ask("GET", "/admin/experiment").json()["experiment"]["id"] == found["id"]


def test_it_ends_when_it_is_stopped(ask: Ask) -> None:
    ask("PUT", "/admin/experiment", json={})
    found = ask("DELETE", "/admin/experiment?by=bob&why=enough").json()["experiment"]
    assert (found["state"], found["sentence"]) == ("stopped", "stopped by bob: enough")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"unit": "request"}, "unit"),
        ({"holdout": 0.9}, "holdout"),
        ({"window_s": 1}, "window_s"),
        ({"pairs": 1}, "pairs"),
        ({"seed": -1}, "seed"),
        ({"why": 1}, "why"),
        ({"colour": "red"}, "colour"),
        ({"unit": "replica"}, "unit"),
    ],
)
def test_a_bad_order_is_a_400_that_names_the_field(ask: Ask, body: dict[str, Any], param: str) -> None:
    response = ask("PUT", "/admin/experiment", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("field", ["pairs", "holdout", "window_s", "burn_in_s"])
def test_a_number_beyond_all_numbers_is_a_400_too(ask: Ask, field: str) -> None:
    """JSON's 1e400 is valid, and infinity once it is read."""
    body = f'{{"{field}": 1e400}}'
    response = ask("PUT", "/admin/experiment", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


def test_a_second_one_and_stopping_none_are_conflicts(ask: Ask) -> None:
    assert ask("DELETE", "/admin/experiment").status_code == 409
    ask("PUT", "/admin/experiment", json={})
    response = ask("PUT", "/admin/experiment", json={})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "invalid_experiment")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_it_takes_the_admin_key(ask: Ask, backend: Any, method: str) -> None:
    backend.admin_key = "secret"
    arguments = {"json": {}} if method == "PUT" else {}
    assert ask(method, "/admin/experiment", **arguments).status_code == 401


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(experiment_app, [str(a) for a in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_start_show_and_stop_it(base_url: str) -> None:
    code, out, _ = run("start", "--holdout", "20%", "--window", "2m", "--pairs", 10, "--seed", 3, "--url", base_url)
    assert code == 0
    assert "10 pairs by window" in out
    code, out, _ = run("status", "--json", "--url", base_url)
    found = json.loads(out)["experiment"]
    assert (found["holdout"], found["window_s"], found["seed"]) == (0.2, 120.0, 3)
    assert "running, 0 of 10 pairs complete" in run("status", "--url", base_url)[1]
    code, out, _ = run("stop", "--why", "enough", "--url", base_url)
    assert (code, "stopped after 0 complete pairs" in out) == (0, True)


def test_what_the_endpoint_refuses_is_exit_code_1_and_what_is_no_share_2(base_url: str) -> None:
    code, _, err = run("start", "--unit", "replica", "--url", base_url)
    assert (code, "no replica without a drafter was heard of" in err) == (1, True)
    code, _, err = run("start", "--holdout", "much", "--url", base_url)
    assert (code, "--holdout: 'much' is not a share" in err) == (2, True)
    code, _, err = run("start", "--window", "long", "--url", base_url)
    assert (code, "--window: 'long' is not a duration" in err) == (2, True)


def test_nobody_there_is_exit_code_1() -> None:
    code, _, err = run("status", "--url", "http://127.0.0.1:9")
    assert (code, "cannot be reached" in err) == (1, True)
