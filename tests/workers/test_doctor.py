import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from controlplane.alerts import Alert
from controlplane.keys.ring import ApiKey
from controlplane.keys.secret import RANDOM_BYTES, make
from controlplane.settings import Settings, load_settings
from controlplane.store.api_keys import add_key
from controlplane.store.engine import open_database
from controlplane.store.journal import SqlJournal
from controlplane.store.migrate import upgrade
from workers import cli, doctor
from workers.doctor import Check


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "policies.yaml").write_text(
        "version: 1\ncohorts:\n  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2], start: 0, "
        "fallback: 0}}\n"
    )
    return load_settings(home=tmp_path, policy=tmp_path / "policies.yaml", model_cache=tmp_path, device="cpu")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def our_port() -> Iterator[int]:
    """A port on which an endpoint answers as ours does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"data": [{"id": "tiny", "owned_by": "kadence"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 9), False), ((3, 11, 0), True), ((3, 14, 0), False)])
def test_only_the_pythons_we_are_made_for_are_good(version: tuple[int, ...], ok: bool) -> None:
    assert doctor.check_python(version).ok is ok


def test_an_installed_package_of_a_good_release_passes() -> None:
    assert doctor.check_package("ray").ok


def test_a_missing_package_says_how_to_get_it() -> None:
    assert doctor.check_package("nosuchthing") == Check(
        "nosuchthing", False, "not installed", "pip install nosuchthing"
    )


def test_a_gpu_that_is_set_and_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    check = doctor.check_device("cuda")
    assert not check.ok
    assert "--device cpu" in check.fix


def test_more_threads_than_cores_is_advised_against_but_works() -> None:
    check = doctor.check_threads(load_settings(threads=1000))
    assert check.ok
    assert check.fix.startswith("--threads ")


@pytest.mark.parametrize(("device", "said"), [("cpu", "the step stays eager"), ("cuda", "no C++ compiler")])
def test_no_compiler_is_no_failure_but_said(monkeypatch, settings: Settings, device, said) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    check = doctor.check_compiler(settings, device)
    assert check.ok
    assert said in check.detail
    assert "install g++" in check.fix


def test_no_compiler_is_a_failure_where_weights_are_to_be_int8(monkeypatch, settings: Settings) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    check = doctor.check_compiler(settings.model_copy(update={"quantization": "int8"}), "cpu")
    assert (check.ok, "quantization: int8" in check.detail) == (False, True)


def test_the_folder_named_kernels_is_ours() -> None:
    assert doctor.check_kernels().ok


def test_a_model_that_is_not_there_names_the_command(settings: Settings) -> None:
    check = doctor.check_model(settings)
    assert (check.ok, check.fix) == (False, "kadence model fetch smollm2-135m-instruct")


def test_an_unknown_model_is_a_problem(settings: Settings) -> None:
    assert not doctor.check_model(settings.model_copy(update={"model": "gpt"})).ok


def test_weights_that_changed_are_found_out(settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    manifest = {
        **{"name": "mine", "source": "mine==1", "member": "x", "source_sha256": "", "licence": "MIT", "converter": 1},
        **{"weights_sha256": "0" * 64, "files": {"model.safetensors": 2}},
    }
    (folder / "kadence.json").write_text(json.dumps(manifest))
    check = doctor.check_model(settings.model_copy(update={"model": str(folder)}))
    assert (check.ok, check.detail) == (False, f"{folder}: the weights have changed")


def test_a_database_that_is_not_there_names_the_command(settings: Settings) -> None:
    check = doctor.check_database(settings.database_url)
    assert not check.ok
    assert check.detail.endswith(": missing")
    assert check.fix.startswith("kadence db upgrade")


def test_a_migrated_database_passes(settings: Settings) -> None:
    upgrade(settings.database_url)
    assert doctor.check_database(settings.database_url).ok


def test_a_password_is_not_shown() -> None:
    assert "hunter2" not in doctor.check_database("postgresql://me:hunter2@127.0.0.1:9/x").detail


def test_a_good_policy_passes(settings: Settings) -> None:
    assert doctor.check_policy(settings.policy).ok


def test_a_bad_policy_is_named_with_its_line(settings: Settings) -> None:
    settings.policy.write_text("version: 1\ncohorts: 3\n")
    check = doctor.check_policy(settings.policy)
    assert not check.ok
    assert f"{settings.policy}" in check.detail
    assert "\n" not in check.detail


def test_a_missing_price_sheet_is_a_problem(tmp_path: Path) -> None:
    assert not doctor.check_prices(tmp_path / "none.yaml").ok


def test_the_shipped_price_sheet_passes() -> None:
    assert doctor.check_prices(Path(__file__).parents[2] / "prices.yaml").ok


def test_no_energy_meter_on_a_cpu_is_said_and_no_failure(tmp_path: Path) -> None:
    check = doctor.check_energy(Settings(energy_powercap=tmp_path), "cpu")
    assert check.ok
    assert check.detail.startswith("source none")


def test_a_free_port_passes(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert doctor.check_port("port", "127.0.0.1", free, "/v1/models", "kadence serve").ok


def test_a_port_of_another_program_is_a_problem(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 0.2)
    check = doctor.check_port("dashboard_port", "127.0.0.1", taken, "/_stcore/health", "the dashboard")
    assert (check.ok, check.fix) == (False, "stop that program, or --dashboard-port N")


def test_a_port_that_we_serve_already_passes(our_port: int) -> None:
    check = doctor.check_port("port", "127.0.0.1", our_port, "/v1/models", "kadence serve")
    assert (check.ok, check.detail) == (True, f"127.0.0.1:{our_port} is served by kadence serve")


def test_too_little_memory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    assert not doctor.check_memory(tmp_path / "meminfo").ok


def test_a_system_that_does_not_tell_its_memory_passes(tmp_path: Path) -> None:
    assert doctor.check_memory(tmp_path / "none").ok


def test_too_little_disk_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK_BYTES", 10**18)
    assert not doctor.check_disk(settings).ok


def test_room_is_looked_for_where_a_folder_will_be(settings: Settings, tmp_path: Path) -> None:
    assert doctor.check_disk(settings.model_copy(update={"home": tmp_path / "not" / "yet"})).ok


def test_a_check_that_fails_to_look_is_a_finding(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Check:
        raise RuntimeError("of its own\nmaking")

    monkeypatch.setattr(doctor, "check_memory", broken)
    (found,) = (check for check in doctor.examine(settings) if check.name == "memory")
    assert (found.ok, found.detail) == (False, "cannot be checked: RuntimeError: of its own making")


def test_the_report_as_json_says_what_and_how(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policy", str(settings.policy), "--database-url", settings.database_url, "--model", "gpt"]
    assert cli.run(["doctor", "--json", "--device", "cpu", *arguments]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert all(set(check) == {"name", "ok", "detail", "fix"} for check in report["checks"])


def test_the_report_puts_the_fix_below_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.print_report([Check("port", False, "taken", "stop it"), Check("ray", True, "2.60")])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["FAIL  port            taken", "-> stop it", "ok    ray             2.60"]


def test_an_active_alert_is_a_finding_with_the_way_to_clear_it(sqlite_ledger_url: str) -> None:
    assert doctor.check_alerts(sqlite_ledger_url) == Check("alerts", True, "none active")
    journal = SqlJournal(open_database(sqlite_ledger_url))
    journal.alert(Alert("canary", "ngram@1", "critical", 1.0, 2.0, 3, "wrong text"))
    journal.close()
    check = doctor.check_alerts(sqlite_ledger_url)
    assert (check.ok, check.detail) == (False, "canary:ngram@1: wrong text")
    assert "kadence alerts clear canary:ngram@1" in check.fix


def test_without_a_ledger_there_can_be_no_alert(tmp_path: Path) -> None:
    assert doctor.check_alerts(f"sqlite:///{tmp_path}/none.db").ok


def make_key(url: str, name: str = "team", **changes: Any) -> None:
    new = make(os.urandom(RANDOM_BYTES))
    engine = open_database(url)
    add_key(engine, ApiKey(new.id, name, new.digest, tenant=name, **changes), "")
    engine.dispose()


def test_it_says_whether_keys_are_in_force(settings: Settings) -> None:
    assert doctor.check_keys(settings) == Check("keys", True, "none yet; clients on this machine need none, others do")
    upgrade(settings.database_url)
    make_key(settings.database_url)
    assert doctor.check_keys(settings).detail == "1 valid; every client needs one, since keys were made"


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"host": "0.0.0.0"}, "0.0.0.0 is not loopback"), ({"require_keys": "always"}, "require_keys is always")],
)
def test_keys_that_are_wanted_and_not_there_are_a_problem(
    settings: Settings, changes: dict[str, str], why: str
) -> None:
    check = doctor.check_keys(settings.model_copy(update=changes))
    assert (check.ok, check.detail) == (False, f"none yet; every client needs one, since {why}: nobody is served")
    assert check.fix == "kadence keys create NAME"


def test_a_key_that_is_bound_to_no_cohort_of_the_policy_is_named(settings: Settings) -> None:
    upgrade(settings.database_url)
    make_key(settings.database_url, "lost", cohort="gone")
    make_key(settings.database_url, "fine", cohort="default")
    check = doctor.check_keys(settings)
    assert (check.ok, check.fix) == (True, "lost: bound to a cohort that the policy does not have")
