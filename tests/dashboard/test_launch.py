"""Starting the dashboard."""

import signal
import socket
from pathlib import Path

import pytest

from controlplane.settings import Settings
from dashboard.launch import DashboardError, dashboard_command, run_dashboard
from dashboard.serve import APP


def settings(tmp_path: Path, **changes: object) -> Settings:
    return Settings(home=tmp_path, **changes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_dashboard_listens_on_loopback_even_where_the_endpoint_does_not(tmp_path):
    command = dashboard_command(settings(tmp_path, host="0.0.0.0"))
    assert "--server.address=127.0.0.1" in command.argv
    assert command.url == "http://127.0.0.1:8501"


def test_the_dashboard_sends_no_usage_statistics_and_opens_no_browser(tmp_path):
    argv = dashboard_command(settings(tmp_path)).argv
    assert {"--browser.gatherUsageStats=false", "--server.headless=true"} <= set(argv)


def test_the_dashboard_reads_the_database_of_this_process(tmp_path):
    command = dashboard_command(
        settings(tmp_path, database_url="sqlite:////elsewhere/k.db", prices=tmp_path / "p.yaml")
    )
    assert command.env["KADENCE_DATABASE_URL"] == "sqlite:////elsewhere/k.db"
    assert command.env["KADENCE_PRICES"] == str(tmp_path / "p.yaml")


def test_a_taken_port_is_one_line_with_a_way_out(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            DashboardError, match=rf"port {port} on 127.0.0.1: address already in use; .*--dashboard-port"
        ):
            run_dashboard(settings(tmp_path, dashboard_port=port))


def test_the_theme_lies_beside_the_script_so_that_any_working_directory_will_do():
    assert (APP.parent / ".streamlit" / "config.toml").is_file()


def test_a_dashboard_ends_when_whoever_started_it_does(tmp_path):
    process = run_dashboard(settings(tmp_path, dashboard_port=free_port()))
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does at the end of a process, SIGKILL included
    assert process.wait(timeout=30) == -signal.SIGTERM
