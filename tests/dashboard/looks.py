"""Looks at a page with filters in the URL; a page that fails in them fails the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import data
from dashboard.ledger import forget
from dashboard.serve import APP


@contextmanager
def pointed_at(ledger: Any) -> Iterator[None]:
    """The environment in which the dashboard reads that ledger; after it nothing is kept of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KADENCE_HOME", str(ledger.folder))
        patch.setenv("KADENCE_DATABASE_URL", ledger.url)
        patch.setenv("KADENCE_PRICES", str(ledger.prices))
        yield
    data.forget()
    forget()


def app_of(script: Path = APP) -> AppTest:
    """Of a browser that has seen a page's figures: it gets whole pages."""
    app = AppTest.from_file(str(script), default_timeout=20)
    app.session_state["_figures"] = "shown"
    return app


def alone(page: str, **query: str) -> AppTest:
    """The page by itself, without the filters above it."""
    return _run(app_of(APP.with_name("pages") / f"{page}.py"), query)


def opened(**query: str) -> AppTest:
    """The whole app as it opens: with its filters, on its first page."""
    return _run(app_of(), query)


def in_app(page: str, **query: str) -> AppTest:
    """The page in the whole app, with its filters."""
    app = opened(**query)
    app.switch_page(f"pages/{page}.py").run()
    assert not app.exception
    return app


def figures(app: AppTest) -> dict[str, str]:
    """The metric cards, label to value."""
    return {metric.label: metric.value for metric in app.metric}


def _run(app: AppTest, query: dict[str, str]) -> AppTest:
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app
