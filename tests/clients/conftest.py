"""Other people's clients, each in an environment of its own, against one real `kadence serve` with the real model."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = Path(os.environ.get("KADENCE_CLIENTS", ROOT / ".venv-clients"))
MODEL = "smollm2-135m-instruct"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test here has the marker, and runs only where it, or this folder, is asked for."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.clients)
        item.add_marker(pytest.mark.timeout(1200))
    is_asked = "clients" in (config.option.markexpr or "") or any("clients" in argument for argument in config.args)
    if not is_asked:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


def end_to_end() -> ModuleType:
    """tests/e2e/conftest.py: how a system is started, found and stopped."""
    spec = importlib.util.spec_from_file_location("kadence_e2e", ROOT / "tests/e2e/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def wait_for(is_there: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, within_s: float) -> None:
    """Until it is there; fails with the log where the process has ended or time is up."""
    ends = time.monotonic() + within_s
    while not is_there():
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < ends, log.read_text()[-4000:]
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running `kadence serve`."""

    url: str
    log: Path
    home: Path

    @property
    def tokenizer(self) -> str:
        """Folder of the model that it serves."""
        return str(Path("~/.cache/kadence/models").expanduser() / MODEL)

    @property
    def base_url(self) -> str:
        """What clients are configured with."""
        return f"{self.url}/v1"

    def metric(self, name: str) -> float:
        """Sum of a metric's series."""
        found = [line for line in httpx.get(f"{self.url}/metrics").text.splitlines() if not line.startswith("#")]
        return sum(float(line.rpartition(" ")[2]) for line in found if line.partition("{")[0] == name)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One for all tests of the run; stopped, with everything it started, after them."""
    e2e, home = end_to_end(), tmp_path_factory.mktemp("kadence")
    port, log = e2e.free_port(), home / "serve.log"
    options = {
        "home": home, "policy": ROOT / "policies.yaml", "prices": ROOT / "prices.yaml", "policy_watch": "false",
        "port": port, "model": MODEL, "drafter": "ngram", "max_sequences": 4, "queue_limit": 32, "max_context": 512,
    }  # fmt: skip
    (home / "kadence.yaml").write_text("".join(f"{name}: {value}\n" for name, value in options.items()))
    environment = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [e2e.KADENCE, "serve", "--config", str(home / "kadence.yaml")],
            stdout=out, stderr=subprocess.STDOUT, cwd=home, env=environment,
        )  # fmt: skip
    try:
        wait_for(lambda: b"ready in" in log.read_bytes(), process, log, within_s=280)
        yield Endpoint(f"http://127.0.0.1:{port}", log, home)
    finally:
        try:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        except subprocess.TimeoutExpired:
            for pid in [*e2e.descendants(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program of an environment (`python` or what it installed) to its end; its output is in a failure."""

    def call(
        environment: str, program: str, *arguments: str | Path, within_s: float = 300, good: tuple[int, ...] = (0,)
    ) -> subprocess.CompletedProcess[str]:
        command = [str(program_of(environment, program)), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False,
            cwd=tmp_path_factory.mktemp(environment), env=clean_environment(),
        )  # fmt: skip
        assert done.returncode in good, f"{command}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done

    return call


@pytest.fixture(scope="session")
def background(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Run a server of an environment on a free port as long as the context lasts; gives its base URL.

    arguments: of its command, from the port; health: the path that answers 200 once it is up.
    """

    @contextlib.contextmanager
    def serve(
        environment: str, program: str, arguments: Callable[[int, Path], list[str]], health: str, within_s: float = 180
    ) -> Iterator[str]:
        home, port = tmp_path_factory.mktemp(environment), end_to_end().free_port()
        url, log = f"http://127.0.0.1:{port}", home / "log"
        command = [str(program_of(environment, program)), *arguments(port, home)]
        with open(log, "wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=home, env=clean_environment())

        def is_up() -> bool:
            try:
                return httpx.get(url + health, timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            wait_for(is_up, process, log, within_s)
            yield url
        finally:
            process.terminate()
            process.wait(30)

    return serve


def program_of(environment: str, program: str) -> Path:
    path = ENVIRONMENTS / environment / "bin" / program
    assert path.exists(), f"{path} is not there; run: make test-clients"
    return path


def clean_environment() -> dict[str, Any]:
    """Ours without what belongs to the server's Python, or would call home."""
    ours = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {
        **ours,
        "OPENAI_API_KEY": "unused",
        "NO_COLOR": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
    }
