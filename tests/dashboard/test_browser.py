"""The real dashboard in headless Chromium, on the hand-made ledger. Pictures go to artifacts/ (KADENCE_ARTIFACTS)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import Settings
from dashboard import screenshot
from dashboard.launch import dashboard_command, run_dashboard

pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(screenshot.find_chromium() is None, reason="chromium is not installed")

ARTIFACTS = Path(os.environ.get("KADENCE_ARTIFACTS") or Path(__file__).parents[2] / "artifacts")
EVIL = "<img src=x onerror=alert(1)>"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        assert process.poll() is None, "the dashboard ended"
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"no dashboard at {url} after {timeout_s} s")


@pytest.fixture(scope="module")
def url(make_ledger, tmp_path_factory) -> Iterator[str]:
    """A running dashboard, started from a folder that is not ours: the hand-made ledger, and two days ago another."""
    folder = tmp_path_factory.mktemp("dashboard")
    ledger = make_ledger(folder)
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL, second="poetry", age_s=172_800)
    ledger.fill(sequence=2)
    settings = Settings(
        home=folder, database_url=ledger.url, prices=ledger.prices, port=free_port(), dashboard_port=free_port()
    )
    with pytest.MonkeyPatch.context() as patch, (folder / "dashboard.log").open("wb") as log:
        patch.chdir(folder)
        process = run_dashboard(settings, stdout=log.fileno(), stderr=subprocess.STDOUT)
        try:
            where = dashboard_command(settings).url
            wait_until_healthy(where, process)
            yield where
        finally:
            process.terminate()
            process.communicate(timeout=10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with screenshot.chromium() as running:
        yield running


def test_the_page_in_a_browser_has_the_hand_made_figures(url, browser):
    page = screenshot.open_page(browser, url)
    found = screenshot.read_figures(page)
    saved = screenshot.save(page, ARTIFACTS / "dashboard-desktop-light.png")
    cells = screenshot.read_cells(page)
    page.context.close()
    assert found == {
        "Cost per 1M tokens": "$4.000",
        "Tokens per second": "250.0",
        "Acceptance length": "3.21",
        "Energy per token": "0.04000 J",
        "Idle share": "20.0 %",
        "Emitted tokens": "5,000",
    }
    assert ["json", "$3.000", "$0.01200", "4,000"] in [row[:4] for row in cells]
    assert saved.stat().st_size > 20_000


def test_a_phone_needs_no_sideways_scrolling(url, browser):
    page = screenshot.open_page(browser, url, size=screenshot.SIZES["phone"], scheme="dark")
    screenshot.save(page, ARTIFACTS / "dashboard-phone-dark.png")
    overflow = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth")
    page.context.close()
    assert overflow <= 0


def test_the_filters_live_in_the_url(url, browser):
    page = screenshot.open_page(browser, f"{url}/?range=24h&cohort=json")
    found = screenshot.read_figures(page)
    page.get_by_text("15m", exact=True).click()
    page.wait_for_url("**range=15m**")
    address = page.url
    page.context.close()
    assert found["Cost per 1M tokens"] == "$3.000"
    assert "cohort=json" in address


def test_html_in_a_cohorts_name_is_shown_and_not_run(url, browser):
    page = screenshot.open_page(browser, f"{url}/?range=7d")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.locator("[role=gridcell]", has_text=EVIL).first.wait_for(state="attached")
    images = page.locator("img[src=x]").count()
    page.context.close()
    assert images == 0
    assert dialogs == []
