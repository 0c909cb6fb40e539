"""Pictures of a running dashboard, in headless Chromium: every page, light and dark, desktop and phone.

python -m dashboard.screenshot http://127.0.0.1:8501 --out artifacts
python -m dashboard.screenshot http://127.0.0.1:8501 --out docs/images --size desktop --query '?range=1h'
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VIEWS = {
    "overview": "",
    "speculation": "speculation",
    "cost": "cost",
    "energy": "energy",
    "savings": "savings",
    "what_if": "what_if",
    "policy": "policy",
    "policy-revisions": "policy?part=Revisions",
    "policy-try-one": "policy?part=Try+one",
    "policy-decisions": "policy?part=Decisions",
    "policy-events": "policy?part=Events",
}
"""What there is to see, by the name of its picture: the page, and with it the part of a page that has several."""
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
READY = (
    "[data-test-script-state=notRunning] :is([data-testid=stMetric], [data-testid=stAlert], [data-testid=stCheckbox],"
    " [data-testid=stDataFrame], [data-testid=stCode], [data-testid=stText])"
)
"""A figure, a table, a sentence that replaces the figures, or a field to fill in; and nothing still being computed."""
READY_MS = 60_000
SETTLE_MS = 500
"""Charts fade in, and are drawn anew where the theme changes."""
DRAWN = """() => document.querySelector('[data-test-script-state=notRunning]') &&
    !document.querySelector('[data-testid=stSkeleton], .st-key-rest-soon, [data-stale=true]') &&
    [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(c => c.querySelector('canvas, svg'))"""


def find_chromium() -> str | None:
    """Path of the system's Chromium, or None."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser; raises FileNotFoundError when the system has none."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    if path is None:
        raise FileNotFoundError("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def open_page(
    browser: Browser,
    url: str,
    *,
    size: tuple[int, int] = SIZES["desktop"],
    scheme: Literal["light", "dark"] = "light",
    timezone: str = "UTC",
) -> Page:
    """The page at `url` once its figures, or the sentence that replaces them, are on it."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, timezone_id=timezone, locale="en-GB"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(READY, timeout=READY_MS)
    page.wait_for_function(DRAWN, timeout=READY_MS)
    page.wait_for_timeout(SETTLE_MS)
    return page


def read_figures(page: Page) -> dict[str, str]:
    """The metric cards on the page, label to value, as a reader sees them."""
    labels = page.locator("[data-testid=stMetricLabel]").all_inner_texts()
    values = page.locator("[data-testid=stMetricValue]").all_inner_texts()
    return dict(zip(labels, values, strict=True))


def read_tables(page: Page) -> list[list[dict[str, str]]]:
    """Each table on the page as rows of column to cell, from its accessible DOM: what there was room to draw."""
    found = []
    tables = page.locator("[data-testid=stDataFrame]")
    for i in range(tables.count()):
        rows = tables.nth(i).evaluate(
            """table => [...table.querySelectorAll('[role=row]')].map(row =>
                [...row.querySelectorAll('[role=columnheader], [role=gridcell]')].map(cell => cell.textContent))"""
        )
        head, *cells = [row for row in rows if row] or [[]]
        found.append([dict(zip(head, row, strict=True)) for row in cells])
    return found


def save(page: Page, path: Path) -> Path:
    """The whole page as a PNG, however far it scrolls."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Streamlit scrolls an inner element: the window must be as tall as its content for a full picture.
    width = (page.viewport_size or {"width": SIZES["desktop"][0]})["width"]
    for _ in range(2):  # what comes into view may grow
        height = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": max(int(height), 400)})
        page.wait_for_timeout(300)
    page.wait_for_function(DRAWN, timeout=READY_MS)
    page.screenshot(path=path)
    return path


def compress(path: Path, colours: int = 128) -> Path:
    """The same picture with that many colours, which on a page of text and charts nobody sees; a third in size."""
    from PIL import Image  # streamlit needs it, too

    with Image.open(path) as picture:
        picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def take_all(
    url: str, out: Path, query: str = "", *, views: Sequence[str] = tuple(VIEWS), sizes: Sequence[str] = tuple(SIZES)
) -> Iterator[Path]:
    """Every view at every size, light and dark, as <view>-<size>-<scheme>.png under `out`, one after the other."""
    with chromium() as browser:
        for view in views:
            page_name, _, part = VIEWS[view].partition("?")
            asked = "&".join(each for each in (query.removeprefix("?"), part) if each)
            address = f"{url.rstrip('/')}/{page_name}{'?' if asked else ''}{asked}"
            for size in sizes:
                page = open_page(browser, address, size=SIZES[size], scheme=SCHEMES[0])
                for scheme in SCHEMES:
                    page.emulate_media(color_scheme=scheme)
                    page.wait_for_timeout(SETTLE_MS)
                    yield compress(save(page, out / f"{view}-{size}-{scheme}.png"))
                page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where the dashboard is, such as http://127.0.0.1:8501")
    parser.add_argument("views", nargs="*", metavar="view", help=f"default: all of {', '.join(VIEWS)}")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), help="folder of the pictures")
    parser.add_argument("--query", default="", help="filters, such as '?range=24h'")
    parser.add_argument("--size", action="append", choices=list(SIZES), help="default: both")
    arguments = parser.parse_args()
    unknown = [view for view in arguments.views if view not in VIEWS]
    if unknown:
        parser.error(f"view: {unknown[0]!r} is not one of {', '.join(VIEWS)}")
    for path in take_all(
        arguments.url,
        arguments.out,
        arguments.query,
        views=arguments.views or tuple(VIEWS),
        sizes=arguments.size or tuple(SIZES),
    ):
        print(path, flush=True)


if __name__ == "__main__":
    main()
