"""The year that the dashboard is measured on is a sound ledger."""

from benchmarks.dashboard_ledger import build
from controlplane.store.engine import open_database
from controlplane.store.queries import database_state
from controlplane.store.upkeep import verify

NOW = 1_790_000_000.0


def test_the_benchmarks_year_adds_up_as_a_recorded_one_does(tmp_path):
    ledger = build(tmp_path, days=3, cohorts=8, every=2, now=NOW, window_s=1200)
    engine = open_database(ledger.url)
    found = verify(engine)
    engine.dispose()
    assert database_state(ledger.url) == "ok"
    assert found.problems == ()
    assert ledger.rows == found.counts["cost_hour"] > 500
    assert ledger.windows == found.counts["window"] > 100
