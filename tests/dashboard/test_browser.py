"""The real dashboard in headless Chromium, on the hand-made ledger. Pictures go to artifacts/ (KADENCE_ARTIFACTS)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.settings import Settings
from dashboard import screenshot
from dashboard.launch import dashboard_command
from tests.dashboard.conftest import free_port, wait_until_healthy

pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(screenshot.find_chromium() is None, reason="chromium is not installed")

ARTIFACTS = Path(os.environ.get("KADENCE_ARTIFACTS") or Path(__file__).parents[2] / "artifacts")
EVIL = "<img src=x onerror=alert(1)>"
SHOWN = ".st-key-shown-{}"
"""What a page has once it shows that range."""


def fill(ledger: Any) -> Any:
    ledger.migrate()
    ledger.price()
    ledger.fill()
    return ledger


@pytest.fixture(scope="module")
def url(make_ledger, serving, tmp_path_factory) -> Iterator[str]:
    """A running dashboard, started from a folder that is not ours: the hand-made ledger, and two days ago another."""
    folder = tmp_path_factory.mktemp("dashboard")
    ledger = make_ledger(folder)
    ledger.migrate()
    ledger.price()
    ledger.fill(first=EVIL, second="poetry", age_s=172_800)
    ledger.fill(sequence=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with serving(ledger, folder) as where:
            yield where


def test_the_page_in_a_browser_has_the_hand_made_figures(url, browser):
    page = screenshot.open_page(browser, url)
    found = screenshot.read_figures(page)
    saved = screenshot.save(page, ARTIFACTS / "dashboard-desktop-light.png")
    tables = screenshot.read_tables(page)
    page.context.close()
    assert (found["Cost per 1M tokens"], found["Tokens per second"]) == ("$4.000", "250.0")
    assert ["json", "$3.000", "$0.01200", "4,000"] in [list(row.values())[:4] for rows in tables for row in rows]
    assert saved.stat().st_size > 20_000


def test_a_phone_needs_no_sideways_scrolling(url, browser):
    page = screenshot.open_page(browser, url, size=screenshot.SIZES["phone"], scheme="dark")
    screenshot.save(page, ARTIFACTS / "dashboard-phone-dark.png")
    overflow = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth")
    page.context.close()
    assert overflow <= 0


def test_a_link_restores_the_view_and_another_page_keeps_it(url, browser):
    page = screenshot.open_page(browser, f"{url}/?range=24h&cohort=json&tz=Asia/Kolkata&idle=even")
    found = screenshot.read_figures(page)
    page.get_by_text("7d", exact=True).click()
    page.wait_for_url("**range=7d**")
    page.get_by_role("link", name="Speculation", exact=True).first.click()
    page.wait_for_url("**/speculation**")
    page.locator(SHOWN.format("7d"), has_text="Asia/Kolkata").wait_for()
    address = page.url
    page.context.close()
    assert found["Cost per 1M tokens"] == "$3.500"  # 12 s of its own and 2 s of 4 s of idle, for 4,000 tokens
    assert all(part in address for part in ("range=7d", "cohort=json", "tz=Asia", "idle=even"))


def test_a_custom_range_that_is_typed_is_in_the_url(url, browser):
    page = screenshot.open_page(browser, f"{url}/?range=custom&from=3d&to=1d")
    page.locator(SHOWN.format("custom")).wait_for()
    field = page.get_by_label("To", exact=True)
    field.fill("36h")
    field.press("Enter")
    page.wait_for_url("**to=36h**")
    page.get_by_text("poetry").first.wait_for(state="attached")
    address = page.url
    page.context.close()
    assert "from=3d" in address


def test_a_locked_database_is_a_sentence_until_it_is_free_again(tmp_path, make_ledger, serving, browser):
    ledger = fill(make_ledger(tmp_path))
    with serving(ledger, tmp_path, dashboard_refresh_s=1) as where:
        holder = sqlite3.connect(ledger.path, isolation_level=None)
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        page = screenshot.open_page(browser, f"{where}/?range=24h&cohort=json")
        said = page.locator("[data-testid=stAlert]").first.inner_text()
        holder.execute("COMMIT")
        holder.close()
        page.wait_for_selector("[data-testid=stMetric]", timeout=30_000)
        page.locator(SHOWN.format("24h")).wait_for()
        found, address = screenshot.read_figures(page), page.url
        page.context.close()
    assert "locked by another process" in said
    assert found["Cost per 1M tokens"] == "$3.000"
    assert "cohort=json" in address


SLOW_PAGE = """
import time
import streamlit as st
from dashboard.layout import show_live

def load(ledger):
    time.sleep(1.2)

def draw(ledger, found):
    for number in range(8):
        st.metric(f"figure {number}", number)
    yield
    st.text("the rest")

show_live("Slow", load, draw, without_traffic=True)
"""


def test_a_page_whose_first_reading_takes_longer_than_its_refresh_appears_whole(tmp_path, make_ledger, browser):
    ledger = fill(make_ledger(tmp_path))
    script = tmp_path / "slow.py"
    script.write_text(SLOW_PAGE)
    settings = Settings(
        home=tmp_path, database_url=ledger.url, prices=ledger.prices, dashboard_port=free_port(), dashboard_refresh_s=1
    )
    command = dashboard_command(settings)
    flags = [flag for flag in command.argv if flag.startswith("--")]
    process = subprocess.Popen([sys.executable, "-m", "streamlit", "run", script, *flags], env=command.env)
    try:
        wait_until_healthy(command.url, process)
        page = browser.new_context().new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(command.url)
        page.get_by_text("the rest", exact=True).wait_for(timeout=30_000)
        shown = page.locator("[data-testid=stMetric]").count()
        page.context.close()
    finally:
        process.terminate()
        process.wait(timeout=10)
    assert errors == []
    assert shown == 8


def test_a_password_is_asked_before_anything_is_shown(tmp_path, make_ledger, serving, browser):
    ledger = fill(make_ledger(tmp_path))
    with serving(ledger, tmp_path, dashboard_password="correct horse") as where:
        page = browser.new_context().new_page()
        page.goto(f"{where}/speculation?range=24h")
        page.get_by_label("Password", exact=True).fill("correct horse")
        before = page.inner_text("body")
        page.get_by_label("Password", exact=True).press("Enter")
        page.locator(SHOWN.format("24h")).wait_for()
        page.context.close()
    assert "Speculation" not in before


def test_html_in_a_cohorts_name_is_shown_and_not_run(url, browser):
    page = screenshot.open_page(browser, f"{url}/?range=7d")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.locator("[role=gridcell]", has_text=EVIL).first.wait_for(state="attached")
    images = page.locator("img[src=x]").count()
    page.context.close()
    assert images == 0
    assert dialogs == []
