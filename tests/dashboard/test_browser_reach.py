"""What a reader without a mouse or without eyes finds on every page, and what stands where nothing can be shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from dashboard import screenshot
from dashboard.navigation import PAGES

pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = [
    pytest.mark.pages,
    pytest.mark.skipif(screenshot.find_chromium() is None, reason="chromium is not installed"),
]

NAMELESS = """() => [...document.querySelectorAll('img, canvas, svg[role=img], [role=img]')].filter(each => {
    if (each.closest('[aria-hidden=true], [role=presentation]') || !each.getClientRects().length) return false;
    for (let at = each; at; at = at.parentElement)
        if (at.getAttribute('aria-label') || at.getAttribute('aria-labelledby') || at.getAttribute('alt')) return false;
    return true;
}).map(each => each.outerHTML.slice(0, 120))"""
"""Pictures without a name of their own or of what they are in."""
CONTROLS = """() => {
    const open = each => each.tagName === 'SUMMARY' || !each.closest('details:not([open])');
    const seen = each => each.getClientRects().length && getComputedStyle(each).visibility !== 'hidden' && open(each);
    const reach = 'a[href], button:not([disabled]), input:not([disabled]), [role=combobox], [role=slider], summary';
    const all = [...document.querySelectorAll(reach)].filter(each => seen(each) && each.tabIndex >= 0);
    window.kadence = {all, found: new Set(), blind: new Set(), style: new Map()};
    for (const each of all) window.kadence.style.set(each, window.lookOf(each));
    return all.length;
}"""
LOOK = """() => { window.lookOf = each => {
    const looks = [];
    for (let at = each, up = 0; at && up < 4; at = at.parentElement, up++) {
        const s = getComputedStyle(at);
        looks.push(s.outlineStyle === 'none' ? '' : s.outline, s.boxShadow, s.borderColor, s.backgroundColor, s.color);
    }
    return looks.join('|');
}; }"""
STEP = """() => {
    const at = document.activeElement, of = window.kadence;
    if (!of.all.includes(at) || of.found.has(at) && !of.blind.has(at)) return false;
    of.found.add(at);
    const isSame = window.lookOf(at) === of.style.get(at);
    of.blind[isSame ? 'add' : 'delete'](at);
    return isSame;
}"""
LEFT = """() => {
    const of = window.kadence;
    const says = each => (each.getAttribute('aria-label') || each.innerText || each.outerHTML).slice(0, 90);
    // Of buttons that are one choice, Tab reaches one and the arrow keys the others.
    const choices = new Set([...of.found].map(each => each.closest('[role=radiogroup], [role=toolbar]')));
    const left = each => !of.found.has(each) && !choices.has(each.closest('[role=radiogroup], [role=toolbar]') ?? 0);
    return [of.all.filter(left).map(says), [...of.blind].map(says)];
}"""


@pytest.fixture(scope="module")
def url(make_ledger, serving, tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("reach")
    ledger = make_ledger(folder)
    ledger.migrate()
    ledger.price()
    ledger.fill()
    with serving(ledger, folder, dashboard_refresh_s=600) as where:
        yield where


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_every_picture_has_a_name_and_headings_go_down_one_by_one(url, browser, name):
    page = screenshot.open_page(browser, f"{url}/{screenshot.VIEWS[name]}")
    nameless = page.evaluate(NAMELESS)
    levels = page.evaluate("() => [...document.querySelectorAll('h1, h2, h3, h4')].map(each => +each.tagName[1])")
    page.context.close()
    assert nameless == []
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels)), levels


@pytest.mark.parametrize("name", ["overview", "cost", "policy-decisions"])
def test_every_control_is_reached_by_tab_and_shows_that_it_has_the_focus(url, browser, name):
    page = screenshot.open_page(browser, f"{url}/{screenshot.VIEWS[name]}")
    page.evaluate("() => document.activeElement.blur()")
    page.evaluate(LOOK)
    count = page.evaluate(CONTROLS)
    for _ in range(2 * count + 20):  # a table and a chart take a step or two as well
        page.keyboard.press("Tab")
        if page.evaluate(STEP):
            page.wait_for_timeout(400)  # a frame may fade in
            page.evaluate(STEP)
    unreached, blind = page.evaluate(LEFT)
    page.context.close()
    assert count > 15
    assert (unreached, blind) == ([], []), f"not reached: {unreached}; no visible focus: {blind}"


@pytest.mark.parametrize("name", ["cost", "policy-decisions"])
def test_a_page_fits_a_phone(url, browser, name):
    page = screenshot.open_page(browser, f"{url}/{screenshot.VIEWS[name]}", size=screenshot.SIZES["phone"])
    overflow = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollWidth - window.innerWidth")
    page.context.close()
    assert overflow <= 0


@pytest.fixture(scope="module")
def bare(make_ledger, serving, tmp_path_factory) -> Iterator[Any]:
    """A running dashboard without a database: each test puts one there, or none."""
    folder = tmp_path_factory.mktemp("bare")
    ledger = make_ledger(folder)
    with serving(ledger, folder, dashboard_refresh_s=600) as where:
        yield where, ledger


def no_tables(ledger: Any) -> None:
    sqlite3.connect(ledger.path).close()


def nothing_ran(ledger: Any) -> None:
    ledger.migrate()


def older(ledger: Any) -> None:
    ledger.migrate()
    with sqlite3.connect(ledger.path) as database:
        database.execute("UPDATE alembic_version SET version_num = '0003'")
    database.close()


def gone(ledger: Any) -> None:
    """As it is without a database."""


def locked(ledger: Any) -> Any:
    ledger.migrate()
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    return holder


@pytest.mark.parametrize(
    ("name", "state", "sentence", "way_out"),
    [
        ("overview", gone, "There is no database at", "kadence up"),
        ("policy", gone, "There is no database at", "KADENCE_DATABASE_URL"),
        ("speculation", no_tables, "has no tables yet", "kadence db upgrade"),
        ("energy", older, "is from an older version", "kadence db upgrade"),
        ("savings", locked, "is locked by another process", "tries again"),
        ("cost", nothing_ran, "No traffic yet", "kadence load"),
        ("what_if", nothing_ran, "No traffic yet", "kadence load"),
    ],
)
def test_a_page_with_nothing_to_show_says_why_and_what_to_do(bare, browser, name, state, sentence, way_out):
    where, ledger = bare
    for path in ledger.folder.glob("kadence.db*"):
        path.unlink()
    holder = state(ledger)
    page = screenshot.open_page(browser, f"{where}/{screenshot.VIEWS[name]}")
    said = page.locator("[data-testid=stAlert]").first.inner_text()
    body = page.inner_text("body")
    page.context.close()
    if holder is not None:
        holder.close()
    assert sentence in said
    assert way_out in said
    assert "Traceback" not in body
