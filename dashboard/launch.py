"""Starts the dashboard as a process of its own, so that killing it changes nothing for a client."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.ports import bind_problem
from controlplane.settings import Settings, reachable_host
from dashboard.exposure import exposure_problem


class DashboardError(RuntimeError):
    """The dashboard cannot start; the message is one line and says what to do."""


@dataclass(frozen=True, slots=True)
class DashboardCommand:
    """argv and environment of the process, whose standard input is a pipe (serve.py), and where the page will be."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str


def dashboard_command(settings: Settings, host: str | None = None) -> DashboardCommand:
    """How to start the dashboard for `settings`, on `host` (default: the settings' own, which is loopback).

    The page reads its settings from the environment, so flags and YAML files of this process count too.
    """
    host, password = host or settings.dashboard_host, settings.dashboard_password
    argv = (
        *(sys.executable, "-m", "dashboard.serve"),
        f"--server.address={host}",
        f"--server.port={settings.dashboard_port}",
        "--server.headless=true",
        "--server.fileWatcherType=none",
        "--browser.gatherUsageStats=false",
    )
    env = {
        **os.environ,
        "KADENCE_DATABASE_URL": settings.database_url,
        "KADENCE_PRICES": str(settings.prices),
        "KADENCE_CARBON_ZONE": settings.carbon_zone,
        "KADENCE_PUE": str(settings.pue),
        "KADENCE_DASHBOARD_PORT": str(settings.dashboard_port),
        "KADENCE_DASHBOARD_REFRESH_S": str(settings.dashboard_refresh_s),
        "KADENCE_DASHBOARD_PASSWORD": password.get_secret_value() if password else "",
        "KADENCE_DASHBOARD_PROXY_HEADER": settings.dashboard_proxy_header or "",
        "KADENCE_DASHBOARD_PROXIES": settings.dashboard_proxies or "",
        # The address of a connection is that of its other end, whatever a header says: access.py goes by it.
        "FORWARDED_ALLOW_IPS": "none",
        "PYTHONUNBUFFERED": "1",
    }
    return DashboardCommand(argv, env, f"http://{reachable_host(host)}:{settings.dashboard_port}")


def check_can_start(settings: Settings, host: str | None = None) -> None:
    """Raises DashboardError when streamlit is not installed, the port is taken, or strangers could look."""
    host = host or settings.dashboard_host
    exposed = exposure_problem(settings, host)
    if exposed is not None:
        raise DashboardError(exposed)
    if importlib.util.find_spec("streamlit") is None:
        raise DashboardError("streamlit is not installed: pip install 'kadence[dashboard]'")
    problem = bind_problem(host, settings.dashboard_port)
    if problem is not None:
        raise DashboardError(
            f"dashboard port {settings.dashboard_port} on {host}: {problem}; "
            "stop the other program or choose another port with --dashboard-port"
        )


def run_dashboard(
    settings: Settings, host: str | None = None, *, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Starts the dashboard and returns its process; `terminate()` ends it, and so does the end of this process.

    stdout, stderr: as for subprocess.Popen (None inherits). Raises DashboardError when it cannot start.
    """
    check_can_start(settings, host)
    command = dashboard_command(settings, host)
    return subprocess.Popen(command.argv, env=command.env, stdout=stdout, stderr=stderr, stdin=subprocess.PIPE)
