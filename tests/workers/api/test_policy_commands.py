"""`kadence policy` against a running endpoint: the real command over real HTTP, a scripted backend behind it."""

from __future__ import annotations

import json
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
    speculation: {tuner: threshold, ladder: [0, 2], start: 2, fallback: 0}
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
    assert "warning: cohorts[0].budget" in err


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
