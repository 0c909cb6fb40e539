"""In CI, a skipped test fails the run unless it is marked `gpu`: a missing program must not hide a missing proof."""

from __future__ import annotations

import os

import pytest

_unexpected_skips: list[str] = []


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and "gpu" not in report.keywords:
        _unexpected_skips.append(report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _unexpected_skips:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("CI") and _unexpected_skips:
        terminalreporter.section("skipped in CI without being GPU-only", red=True)
        for nodeid in _unexpected_skips:
            terminalreporter.write_line(nodeid)
