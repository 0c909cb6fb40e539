"""Many more streams than the default limits take, for a minute (five by command: benchmarks/endpoint_load.py)."""

from __future__ import annotations

import pytest

from benchmarks.endpoint_load import measure

pytestmark = [pytest.mark.clients, pytest.mark.model, pytest.mark.timeout(600)]


def test_256_streams_all_end_well_or_with_a_clean_429_and_leave_nothing_behind() -> None:
    row, wrong = measure(256, 60.0)
    assert wrong == []
    assert row["ok"] > 0
    assert row["refused_429"] > 0
