"""Looks at a page with filters in the URL; a page that fails in them fails the test."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from dashboard.serve import APP


def alone(page: str, **query: str) -> AppTest:
    """The page by itself, without the filters above it."""
    return _run(AppTest.from_file(str(APP.with_name("pages") / f"{page}.py"), default_timeout=20), query)


def in_app(page: str, **query: str) -> AppTest:
    """The page in the whole app, with its filters."""
    app = _run(AppTest.from_file(str(APP), default_timeout=20), query)
    app.switch_page(f"pages/{page}.py").run()
    assert not app.exception
    return app


def _run(app: AppTest, query: dict[str, str]) -> AppTest:
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app
