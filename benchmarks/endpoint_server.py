"""A `kadence serve` of a benchmark's own: fresh folder, free port, and what its processes hold."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KADENCE = str(Path(sys.executable).with_name("kadence"))
START_WITHIN_S = 300.0
POLICY = """
version: 1
cohorts:
  - name: default
    match: {}
    speculation: {tuner: fixed, ladder: [0, 4], start: START, fallback: START}
"""


class ServerError(RuntimeError):
    """The server did not start; its log is the message."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a server's processes hold together. rss_bytes: resident memory, file_handles: open ones."""

    rss_bytes: int
    file_handles: int


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]

    def held(self) -> Held:
        """Of the processes of the endpoint's path: Serve's replicas. The rest of Ray caches as it likes."""
        rss = handles = 0
        for pid in _descendants(self.process.pid):
            with contextlib.suppress(OSError, StopIteration, ValueError):
                if b"ray::Serve" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    continue
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                rss += 1024 * int(next(line for line in status if line.startswith("VmRSS")).split()[1])
                handles += len(os.listdir(f"/proc/{pid}/fd"))
        return Held(rss, handles)


@contextlib.contextmanager
def running(k: int = 0, **settings: Any) -> Iterator[Server]:
    """Started with these settings and one fixed K for all; stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "policies.yaml").write_text(POLICY.replace("START", str(k)))
        ports = [_free_port(), _free_port()]
        values = {"home": str(home / "home"), "policy": str(home / "policies.yaml"), "port": ports[0]}
        values |= {
            "dashboard_port": ports[1],
            "drafter": "ngram",
            "prices": str(Path("prices.yaml").absolute()),
            **settings,
        }
        (home / "kadence.yaml").write_text(yaml.safe_dump(values))
        log = home / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [KADENCE, "serve", "--config", str(home / "kadence.yaml")], stdout=out, stderr=out, cwd=home
            )
        try:
            ends = time.monotonic() + START_WITHIN_S
            while b"ready in" not in log.read_bytes():
                if process.poll() is not None or time.monotonic() > ends:
                    raise ServerError(log.read_text())
                time.sleep(0.2)
            yield Server(f"http://127.0.0.1:{ports[0]}", process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(90)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGINT)  # the second one stops at once
                    process.wait(30)


def _descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    below: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        below |= frontier
    return below


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
