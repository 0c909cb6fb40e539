"""`kadence policy` against a running endpoint: the real command over real HTTP, a scripted backend behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controlplane.policy import parse_policy
from controlplane.policy_cli import policy_app
from controlplane.policy_control import PolicyStatus

NEW = """\
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}
    slo: {tpot_p95: 5s}
    budget: {usd: 5, period: day}
"""


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(NEW)
    return path


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(policy_app, [str(a) for a in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_apply_puts_a_file_in_force_with_its_reason(base_url: str, backend: Any, new: Path) -> None:
    code, out, err = run("apply", new, "--why", "cheaper", "--url", base_url)
    assert (code, backend.policy_now.text, backend.orders[0][2]) == (0, NEW, "cheaper")
    assert f"in force at {base_url}, revision {parse_policy(NEW).revision}" in out
    assert "warning: cohorts[0].slo" in err


def test_a_refused_apply_is_exit_code_1_with_what_the_endpoint_said(base_url: str, backend: Any, new: Path) -> None:
    backend.admin_key = "secret"
    code, out, err = run("apply", new, "--url", base_url)
    assert (code, out, err.strip()) == (1, "", "Send the admin key in the authorization header as a bearer token.")
    assert run("apply", new, "--url", base_url, "--admin-key", "secret")[0] == 0


def test_an_endpoint_that_is_not_there_is_one_line(new: Path) -> None:
    code, out, _ = run("apply", new, "--url", "http://127.0.0.1:9", "--json")
    assert (code, "cannot be reached" in json.loads(out)["message"]) == (1, True)


def test_the_effective_policy_is_that_of_the_endpoint(base_url: str, backend: Any) -> None:
    backend.status = PolicyStatus("ann", "rename", 1.5, "/p.yaml", ("p.yaml:3: bad",))
    code, out, _ = run("show", "--effective", "--cohort", "flex", "--url", base_url)
    assert code == 0
    assert out.splitlines()[:5] == [
        f"revision {backend.policy_now.revision}",
        "applied by ann: rename",
        "file not in force: p.yaml:3: bad",
        "",
        "flex",
    ]


def test_a_cohort_that_the_endpoint_does_not_have_is_wrong_use(base_url: str) -> None:
    code, _, err = run("show", "--effective", "--cohort", "nobody", "--url", base_url)
    assert (code, "there are code, flex, trusted, default" in err) == (2, True)


def test_a_staged_apply_changes_nothing_at_once(base_url: str, backend: Any, new: Path) -> None:
    before = backend.policy_now
    text = before.text.replace("start: 2", "start: 4", 1)
    new.write_text(text)
    code, out, _ = run("apply", new, "--stage", "40%", "--why", "deeper", "--min-windows", 30, "--url", base_url)
    assert (code, backend.policy_now) == (0, before)
    assert "tried on 40% of the replicas" in out
    order = backend.rollout.order
    assert (order.share, order.unit, order.min_windows, order.max_s) == (0.4, "replicas", 30, 1800)
    assert (backend.rollout.candidate.text, backend.rollout.why) == (text, "deeper")


def test_a_rollout_is_shown_and_aborted(base_url: str, backend: Any, new: Path) -> None:
    new.write_text(backend.policy_now.text.replace("start: 2", "start: 4", 1))
    assert "no policy is being tried" in run("rollout", "--url", base_url)[1]
    run("apply", new, "--stage", "0.5", "--unit", "cohorts", "--url", base_url)
    assert "on 50% of the cohorts: code" in run("rollout", "--url", base_url)[1]
    code, out, _ = run("rollout", "--abort", "--why", "enough", "--url", base_url, "--json")
    assert (code, json.loads(out)["rollout"]["stage"]) == (0, "aborted")
    assert json.loads(out)["rollout"]["sentence"].endswith("enough")


def test_aborting_without_a_rollout_is_exit_code_1(base_url: str) -> None:
    code, _, err = run("rollout", "--abort", "--url", base_url)
    assert (code, err.strip()) == (1, "no policy is being tried")


def test_waiting_ends_with_the_rollout_and_its_exit_code(base_url: str, backend: Any, new: Path) -> None:
    new.write_text(backend.policy_now.text.replace("start: 2", "start: 4", 1))
    aborting = threading.Timer(0.5, lambda: asyncio.run(backend.abort_rollout("bob", "too slow")))
    aborting.start()
    code, out, err = run("apply", new, "--stage", "50%", "--wait", "--url", base_url, "--json")
    aborting.join()
    assert (code, json.loads(out)["ok"], json.loads(out)["rollout"]["stage"]) == (1, False, "aborted")
    assert err.splitlines() == ["waiting: nothing seen yet", "aborted by bob: too slow"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--stage", "0%"), 2, "--stage: '0%' is not a share"),
        (("--stage", "ten"), 2, "--stage: 'ten' is not a share"),
        (("--wait",), 2, "nothing to wait for"),
        (("--stage", "10%", "--min-windows", "1"), 1, "min_windows: 1 is not within"),
        (("--stage", "10%", "--max-s", "5"), 1, "max_s: 5 is not over min_windows"),
    ],
)
def test_a_stage_that_cannot_be_is_named(
    base_url: str, backend: Any, new: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    found, _, err = run("apply", new, *arguments, "--url", base_url)
    assert (found, says in err) == (code, True)
    assert not backend.orders


def test_one_replica_cannot_be_staged(base_url: str, backend: Any, new: Path) -> None:
    backend.replicas = 1
    new.write_text(backend.policy_now.text.replace("start: 2", "start: 4", 1))
    code, _, err = run("apply", new, "--stage", "50%", "--url", base_url)
    assert (code, "choose unit cohorts" in err) == (1, True)
