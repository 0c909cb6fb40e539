"""What windows are made of."""

from __future__ import annotations

from controlplane.telemetry import LatencyHistogram


def test_a_time_below_zero_counts_as_zero_because_clocks_differ() -> None:
    histogram = LatencyHistogram().observe(-3.0).observe(0.5)
    assert (histogram.counts[0], histogram.total, histogram.sum_s) == (1, 2, 0.5)
