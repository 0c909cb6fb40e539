"""The real dashboard in headless Chromium, on the hand-made ledger. Pictures go to artifacts/ (KADENCE_ARTIFACTS)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.settings import load_settings
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


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], timeout_s: float = 30) -> None:
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


@pytest.fixture
def url(filled, tmp_path, monkeypatch) -> Iterator[str]:
    """A running dashboard, started from a folder that is not ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KADENCE_DASHBOARD_PORT", str(free_port()))
    settings = load_settings()
    with (tmp_path / "dashboard.log").open("wb") as log:
        process = run_dashboard(settings, stdout=log.fileno(), stderr=subprocess.STDOUT)
        try:
            where = dashboard_command(settings).url
            wait_until_healthy(where, process)
            yield where
        finally:
            process.terminate()
            process.wait(timeout=10)


def metrics(page) -> dict[str, str]:
    """Labels and values as a reader sees them; `page` is a playwright Page."""
    labels = page.locator("[data-testid=stMetricLabel]").all_inner_texts()
    values = page.locator("[data-testid=stMetricValue]").all_inner_texts()
    return dict(zip(labels, values, strict=True))


def test_the_page_in_a_browser_has_the_hand_made_figures_at_every_size(url):
    saved = []
    with screenshot.chromium() as browser:
        for size, scheme in (("desktop", "light"), ("phone", "dark")):
            page = screenshot.open_page(browser, url, size=screenshot.SIZES[size], scheme=scheme)
            found = metrics(page)
            assert found["Cost per 1M tokens"] == "$4.000"
            assert found["Tokens per second"] == "250.0"
            assert found["Emitted tokens"] == "5,000"
            overflow = page.evaluate("() => document.body.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"{size} scrolls sideways by {overflow} px"
            saved.append(screenshot.save(page, ARTIFACTS / f"dashboard-{size}-{scheme}.png"))
            page.context.close()
    assert all(path.stat().st_size > 20_000 for path in saved)


def test_filters_live_in_the_url_and_html_in_a_name_stays_text(url, filled):
    """One browser for both, it is slow to start."""
    filled.fill(first=EVIL, second="poetry", sequence=2)
    with screenshot.chromium() as browser:
        page = screenshot.open_page(browser, f"{url}/?range=24h&cohort=json")
        assert metrics(page)["Cost per 1M tokens"] == "$3.000"
        page.get_by_text("15m", exact=True).click()
        page.wait_for_url("**range=15m**")
        assert "cohort=json" in page.url

        dialogs: list[str] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(f"{url}/speculation")
        page.wait_for_selector(screenshot.READY)
        page.get_by_role("gridcell", name=EVIL).first.wait_for(state="attached")
        assert page.locator("img[src=x]").count() == 0
        assert dialogs == []
