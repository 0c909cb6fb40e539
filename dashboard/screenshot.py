"""Pictures of a running dashboard, in headless Chromium: light and dark, desktop and phone.

python -m dashboard.screenshot http://127.0.0.1:8501 --out artifacts
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGES = ("overview", "speculation", "cost", "energy", "savings", "what_if", "policy")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
READY = (
    "[data-test-script-state=notRunning] :is([data-testid=stMetric], [data-testid=stAlert], [data-testid=stCheckbox])"
)
"""A card, a sentence that replaces the figures, or the switch of the decision log; and nothing still being computed."""


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
    page.wait_for_selector(READY, timeout=30_000)
    for chart in page.query_selector_all("[data-testid=stVegaLiteChart]"):
        chart.wait_for_selector("canvas, svg", timeout=30_000)
    page.wait_for_timeout(500)  # charts fade in
    return page


def read_figures(page: Page) -> dict[str, str]:
    """The metric cards on the page, label to value, as a reader sees them."""
    labels = page.locator("[data-testid=stMetricLabel]").all_inner_texts()
    values = page.locator("[data-testid=stMetricValue]").all_inner_texts()
    return dict(zip(labels, values, strict=True))


def read_cells(page: Page) -> list[list[str]]:
    """The tables on the page, rows of cells from top to bottom; only the columns that are in view."""
    rows = page.locator("[data-testid=stDataFrame] [role=row]")
    cells = [rows.nth(i).locator("[role=gridcell]").all_text_contents() for i in range(rows.count())]
    return [row for row in cells if row]


def save(page: Page, path: Path) -> Path:
    """The whole page as a PNG, however far it scrolls."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Streamlit scrolls an inner element: the window must be as tall as its content for a full picture.
    width = (page.viewport_size or {"width": SIZES["desktop"][0]})["width"]
    for _ in range(2):  # what comes into view may grow
        height = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": max(int(height), 400)})
        page.wait_for_timeout(300)
    page.screenshot(path=path)
    return path


def take_all(url: str, out: Path, query: str = "") -> list[Path]:
    """Every page at every size, light and dark, as <page>-<size>-<scheme>.png under `out`."""
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    saved = []
    with chromium() as browser:
        for name in PAGES:
            address = f"{url.rstrip('/')}/{'' if name == PAGES[0] else name}{query}"
            for size, pixels in SIZES.items():
                for scheme in schemes:
                    page = open_page(browser, address, size=pixels, scheme=scheme)
                    saved.append(save(page, out / f"{name}-{size}-{scheme}.png"))
                    page.context.close()
    return saved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where the dashboard is, such as http://127.0.0.1:8501")
    parser.add_argument("--out", type=Path, default=Path("artifacts"), help="folder of the pictures")
    parser.add_argument("--query", default="", help="filters, such as '?range=24h'")
    arguments = parser.parse_args()
    for path in take_all(arguments.url, arguments.out, arguments.query):
        print(path)


if __name__ == "__main__":
    main()
