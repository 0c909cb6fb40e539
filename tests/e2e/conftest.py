"""`kadence up` as a user starts it: a process of its own, real Ray Serve, the real model, free loopback ports.

And a real Prometheus that scrapes it by the configuration and the rules in deploy/.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

KADENCE = str(Path(sys.executable).with_name("kadence"))
MODEL = "smollm2-135m-instruct"
PLAN_TTL_S = 4.0
MAX_SEQUENCES, QUEUE_LIMIT = 4, 4

POLICY = """
version: 1
cohorts:
  - name: repetitive
    match: {headers: {x-kadence-cohort: [repetitive]}}
    speculation: {tuner: fixed, ladder: [0, 2, 4], start: 4, fallback: 2}
  - name: free
    match: {headers: {x-kadence-cohort: [free]}}
    speculation: {tuner: fixed, ladder: [0, 2, 4], start: 0, fallback: 0}
    budget: {usd: 1000000, period: month}
  - name: tuned
    match: {headers: {x-kadence-cohort: [tuned]}}
    speculation: {tuner: threshold, acceptance_floor: 50%, ladder: [0, 1, 2, 4, 8], start: 2, fallback: 2}
    guard: {hold: 1s, min_samples: 10, probe_every: 5s}
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 2], start: 2, fallback: 0}
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def descendants(pid: int) -> dict[int, str]:
    """Process id -> command line, of all processes below `pid`."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    below: dict[int, str] = {}
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        for child in frontier:
            try:
                below[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                below[child] = ""
    return below


@dataclass(slots=True)
class Kadence:
    """A running `kadence up`."""

    process: subprocess.Popen[bytes]
    url: str
    dashboard_url: str
    database_url: str
    home: Path
    log: Path
    arguments: list[str]

    def client(self, cohort: str) -> openai.OpenAI:
        headers = {"x-kadence-cohort": cohort}
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", default_headers=headers, max_retries=0)

    def descendants(self) -> dict[int, str]:
        """Process id -> command line, of everything that it started."""
        return descendants(self.process.pid)

    def pid_of(self, name: str) -> int:
        """The process whose command line holds `name`."""
        found = [pid for pid, line in self.descendants().items() if name in line]
        assert len(found) == 1, f"{name}: {found}"
        return found[0]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another kadence command against the same database, as the user would type it."""
        command = [KADENCE, *arguments]
        env = {**os.environ, "KADENCE_DATABASE_URL": self.database_url, "KADENCE_HOME": str(self.home)}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the series of a metric that carry `labels`."""
        wanted = [f'{k}="{v}"' for k, v in labels.items()]
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(w in head for w in wanted):
                total += float(value)
        return total

    def stop(self, timeout: float = 60.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout)


@pytest.fixture(scope="session")
def eventually() -> Callable[..., None]:
    """Wait until a condition holds, at most `within` seconds; its last answer is in the failure."""

    def wait(condition: Callable[[], object], within: float = 20.0) -> None:
        ends = time.monotonic() + within
        while not (answer := condition()):
            if time.monotonic() > ends:
                raise AssertionError(f"still {answer!r} after {within:g} s")
            time.sleep(0.1)

    return wait


@pytest.fixture(scope="module")
def kadence(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, eventually: Callable[..., None]
) -> Iterator[Kadence]:
    """A running system; stopped, with everything it started, after the module's tests.

    A module may have SETTINGS of its own, and the COMMAND that it is started by.
    """
    home = tmp_path_factory.mktemp("kadence")
    policy, config = home / "policies.yaml", home / "kadence.yaml"
    policy.write_text(POLICY)
    port, dashboard_port = free_port(), free_port()
    settings = {
        "home": str(home),
        "policy": str(policy),
        "port": port,
        "dashboard_port": dashboard_port,
        "model": MODEL,
        "drafter": "ngram",
        "plan_ttl_s": PLAN_TTL_S,
        "max_sequences": MAX_SEQUENCES,
        "queue_limit": QUEUE_LIMIT,
        "max_context": 512,
        "require_keys": "never",  # so that other tests go on without a key when one has been made
        "canary_share": 0.1,
        "energy_model_idle_w": 5,
        "energy_model_tdp_w": 20,
        "prices": str(Path(__file__).parents[2] / "prices.yaml"),
    }
    config.write_text(yaml.safe_dump(settings | getattr(request.module, "SETTINGS", {})))
    log = home / "up.log"
    arguments = [KADENCE, getattr(request.module, "COMMAND", "up"), "--config", str(config)]
    with open(log, "wb") as out:
        # A Ray cluster of someone else's: Kadence starts its own beside it.
        env = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT, cwd=home, env=env)
    running = Kadence(
        process,
        f"http://127.0.0.1:{port}",
        f"http://127.0.0.1:{dashboard_port}",
        f"sqlite:///{home}/kadence.db",
        home,
        log,
        arguments,
    )
    try:
        eventually(lambda: process.poll() is not None or b"ready in" in log.read_bytes(), within=280)
        assert process.poll() is None, log.read_text()
        yield running
    finally:
        try:
            running.stop()
        except subprocess.TimeoutExpired:
            for pid in [*descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus that scrapes the module's system every two seconds."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; raises with its own words where it refuses."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30).json()
        if answer["status"] != "success":
            raise ValueError(answer["error"])
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Series that the expression gives now; raises ValueError where Prometheus refuses it."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found


@pytest.fixture(scope="module")
def prometheus(
    kadence: Kadence, tmp_path_factory: pytest.TempPathFactory, eventually: Callable[..., None]
) -> Iterator[Prometheus]:
    """Started by the example in deploy/, faster and with the module's endpoint as the target."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs Debian's prometheus")
    home = tmp_path_factory.mktemp("prometheus")
    shutil.copytree(Path(__file__).parents[2] / "deploy" / "prometheus", home, dirs_exist_ok=True)
    config = yaml.safe_load((home / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [kadence.url.removeprefix("http://")]
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = ["prometheus", f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"]
    with open(home / "log", "wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
    running = Prometheus(f"http://127.0.0.1:{port}")

    def is_ready() -> bool:
        assert process.poll() is None, (home / "log").read_text()
        try:
            return httpx.get(f"{running.url}/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    try:
        eventually(is_ready)
        yield running
    finally:
        process.kill()  # what it stored is thrown away
        process.wait()
