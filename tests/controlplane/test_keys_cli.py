"""`kadence keys`: the secret once and alone on stdout, wrong use refused before anything is written."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from controlplane.keys.ring import ApiKey, KeyLimits, look_up
from controlplane.keys_cli import keys_app
from controlplane.policy import parse_policy
from controlplane.store.api_keys import all_keys, read_ring
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal

POLICY = (
    "version: 1\ncohorts:\n  - name: default\n    match: {}\n"
    "    speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}\n"
)


@pytest.fixture
def keys(sqlite_ledger_url: str) -> Any:
    """Run one command on an empty ledger."""

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(keys_app, [*arguments, "--database-url", sqlite_ledger_url])

    run.url = sqlite_ledger_url  # type: ignore[attr-defined]
    return run


def found(url: str, secret: str) -> ApiKey | str:
    engine = open_database(url)
    try:
        return look_up(read_ring(engine, time.time()), secret, time.time())
    finally:
        engine.dispose()


def test_the_secret_is_alone_on_stdout_and_opens_the_key(keys: Any) -> None:
    result = keys(
        "create", "team", "--tenant", "acme", "--cohort", "code", "--requests-per-minute", "60",
        "--tokens-per-minute", "9000", "--max-concurrent", "4", "--expires", "90d", "--note", "IDE",
    )  # fmt: skip
    secret = result.stdout.removesuffix("\n")
    key = found(keys.url, secret)
    assert isinstance(key, ApiKey)
    assert (key.name, key.tenant, key.cohort, key.note) == ("team", "acme", "code", "IDE")
    assert key.limits == KeyLimits(60, 9000, 4)
    assert key.expires_at == pytest.approx(time.time() + 90 * 86400, abs=60)
    assert "shown once" in result.stderr
    assert secret not in result.stderr


def test_as_json_all_of_a_key_is_one_object_with_its_secret(keys: Any) -> None:
    said = json.loads(keys("create", "team", "--json").stdout)
    assert isinstance(found(keys.url, said["secret"]), ApiKey)
    assert (said["name"], said["kind"], said["state"], said["tenant"]) == ("team", "inference", "valid", "team")


def test_two_keys_have_nothing_in_common(keys: Any) -> None:
    one, other = (keys("create", name).stdout.strip() for name in ("a", "b"))
    assert not {*one.split("-")[1:]} & {*other.split("-")[1:]}


def test_a_secret_is_not_shown_again(keys: Any) -> None:
    secret = keys("create", "team").stdout.strip()
    shown = "".join(keys(*words).output for words in (["list"], ["list", "--json"], ["show", "team"]))
    assert "team" in shown
    assert secret.rpartition("-")[2] not in shown


def test_the_first_key_may_come_before_the_first_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/kadence.db"
    secret = CliRunner().invoke(keys_app, ["create", "team", "--database-url", url]).stdout.strip()
    assert isinstance(found(url, secret), ApiKey)


def test_an_admin_key_is_of_another_kind(keys: Any) -> None:
    secret = keys("create", "ops", "--admin").stdout.strip()
    key = found(keys.url, secret)
    assert isinstance(key, ApiKey)
    assert (secret.startswith("kda-"), key.is_admin, key.tenant) == (True, True, None)
    rotated = keys("rotate", "ops").stdout.strip()
    assert (rotated.startswith("kda-"), found(keys.url, rotated).is_admin) == (True, True)


def test_a_rotation_leaves_the_old_secret_its_grace(keys: Any) -> None:
    old = keys("create", "team", "--cohort", "code").stdout.strip()
    new = keys("rotate", "team", "--grace", "1h", "--why", "monthly").stdout.strip()
    ends = found(keys.url, old).ends_at
    assert ends == pytest.approx(time.time() + 3600, abs=60)
    assert found(keys.url, new).cohort == "code"


def test_without_grace_the_old_secret_ends_at_once(keys: Any) -> None:
    old = keys("create", "team").stdout.strip()
    keys("rotate", "team", "--grace", "0s")
    assert found(keys.url, old) == "rotated"


def test_a_revoked_key_is_refused_and_who_did_it_is_shown(keys: Any) -> None:
    secret = keys("create", "team", "--why", "a new team").stdout.strip()
    assert keys("revoke", "team", "--why", "leaked").exit_code == 0
    assert found(keys.url, secret) == "revoked"
    shown = json.loads(keys("show", "team", "--json").stdout)
    assert [(each["what"], each["why"]) for each in shown["events"]] == [
        ("revoked", "leaked"),
        ("created", "a new team"),
    ]
    assert "leaked" in keys("show", "team").stdout


def test_only_valid_keys_are_listed_unless_all_are_wanted(keys: Any) -> None:
    keys("create", "team")
    keys("create", "other")
    keys("revoke", "team")
    listed = [
        [key["name"] for key in json.loads(keys("list", "--json", *more).stdout)["keys"]] for more in ([], ["--all"])
    ]
    assert listed == [["other"], ["other", "team"]]


def test_without_keys_the_way_to_one_is_said(keys: Any) -> None:
    assert keys("list").stdout == "no keys; make one: kadence keys create NAME\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bad name"], "NAME: 'bad name' is not"),
        (["kd-x"], "NAME: a name must not begin as a key's text"),
        (["_x"], "NAME: '_x' is not"),
        (["a" * 65], "is not up to 64"),
        (["a", "--expires", "soon"], "--expires: 'soon' is not a duration"),
        (["a", "--expires", "0s"], "--expires: a key that is never valid"),
        (["a", "--expires", "9999999d"], "--expires: '9999999d' is more than 100 years"),
        (["a", "--cohort", " "], "--cohort: must be"),
        (["a", "--tenant", "x\ny"], "--tenant: must be"),
        (["a", "--note", "x\x1b[2Jy"], "--note: must be one line"),
        (["a", "--note", "x\ny"], "--note: must be one line"),
        (["a", "--why", "\udcff"], "--why: must be one line"),
        (["a", "--why", "x" * 501], "--why: must be one line of up to 500"),
        (["a", "--admin", "--cohort", "code"], "--admin: an admin key cannot infer, so --cohort"),
        (["a", "--admin", "--tokens-per-minute", "5"], "--admin: an admin key cannot infer, so a limit"),
        (["a", "--requests-per-minute", "0"], "requests-per-minute"),
        (["a", "--max-concurrent", "-1"], "max-concurrent"),
    ],
)
def test_wrong_use_is_said_before_anything_is_written(keys: Any, arguments: list[str], said: str) -> None:
    result = keys("create", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    engine = open_database(keys.url)
    assert all_keys(engine) == []
    engine.dispose()


@pytest.mark.parametrize("command", ["rotate", "revoke", "change"])
def test_a_reason_is_one_line_whatever_is_done(keys: Any, command: str) -> None:
    keys("create", "team")
    result = keys(command, "team", "--why", "x\ny", *(["--note", "z"] if command == "change" else []))
    assert (result.exit_code, "--why: must be one line" in result.stderr) == (2, True)
    assert [event["what"] for event in json.loads(keys("show", "team", "--json").stdout)["events"]] == ["created"]


@pytest.mark.parametrize("raised", [KeyError("uid not found"), OSError("no user name")])
def test_a_user_without_a_name_is_on_record_by_its_number(
    keys: Any, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    """As in a container that runs as any number."""

    def nobody() -> str:
        raise raised

    monkeypatch.setattr("getpass.getuser", nobody)
    created = json.loads(keys("create", "team", "--json").stdout)
    assert created["created_by"] == f"uid {os.getuid()}"
    assert keys("revoke", "team").exit_code == 0


def test_a_name_that_is_taken_says_what_to_do(keys: Any) -> None:
    keys("create", "team")
    result = keys("create", "team")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "kadence keys rotate team" in result.stderr


@pytest.mark.parametrize("command", ["rotate", "revoke", "show"])
def test_a_name_that_is_not_there_is_one_line(keys: Any, command: str) -> None:
    result = keys(command, "nobody")
    assert result.exit_code in (1, 2)
    assert result.stderr.splitlines()[0].startswith("there is no key named 'nobody'; see: kadence keys list")


def test_a_cohort_that_the_policy_in_force_does_not_have_is_a_warning(keys: Any) -> None:
    journal = SqlJournal(open_database(keys.url))
    journal.policy_applied(parse_policy(POLICY), "ada", "start", time.time())
    journal.close()
    result = keys("create", "team", "--cohort", "code")
    assert (result.exit_code, result.stdout.startswith("kd-")) == (0, True)
    assert "warning: the policy has no cohort 'code' (it has default)" in result.stderr
    assert "warning" not in keys("create", "other", "--cohort", "default").stderr


def test_other_limits_leave_the_secret_and_what_is_not_named(keys: Any) -> None:
    secret = keys(
        "create", "team", "--cohort", "code", "--requests-per-minute", "60", "--max-concurrent", "2"
    ).stdout.strip()
    said = json.loads(keys("change", "team", "--requests-per-minute", "90", "--max-concurrent", "0", "--json").stdout)
    key = found(keys.url, secret)
    assert isinstance(key, ApiKey)
    assert (key.limits, key.cohort) == (KeyLimits(requests_per_minute=90), "code")
    assert (said["requests_per_minute"], said["max_concurrent"]) == (90, None)


def test_a_change_is_on_record_with_what_it_was(keys: Any) -> None:
    keys("create", "team", "--cohort", "code")
    keys("change", "team", "--unbound", "--tenant", "acme", "--why", "new contract")
    newest = json.loads(keys("show", "team", "--json").stdout)["events"][0]
    assert (newest["what"], newest["why"]) == ("changed", "cohort=None, tenant=acme: new contract")


def test_a_change_is_of_both_secrets_of_a_rotation(keys: Any) -> None:
    old = keys("create", "team").stdout.strip()
    new = keys("rotate", "team").stdout.strip()
    keys("change", "team", "--tokens-per-minute", "500")
    assert [found(keys.url, each).limits.tokens_per_minute for each in (old, new)] == [500, 500]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["team"], 2, "nothing to change"),
        (["team", "--unbound", "--cohort", "a"], 2, "--unbound: --cohort says otherwise"),
        (["team", "--tenant", ""], 2, "--tenant: must be"),
        (["nobody", "--note", "x"], 1, "no key named 'nobody'"),
        (["ops", "--max-concurrent", "5"], 1, "'ops' is an admin key"),
    ],
)
def test_a_change_that_says_nothing_is_refused(keys: Any, arguments: list[str], code: int, said: str) -> None:
    keys("create", "team")
    keys("create", "ops", "--admin")
    result = keys("change", *arguments)
    assert (result.exit_code, said in result.stderr) == (code, True)
