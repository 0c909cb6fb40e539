"""Rows in, charts out."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest

from controlplane.store.queries import CohortPoint, CostReport, CostRow, DecisionRow
from controlplane.telemetry import LOAD_BUCKETS
from dashboard import charts
from dashboard.time_axis import time_format

EVIL = "<img src=x onerror=alert(1)>"


def point(at: float, cohort: str, **changes: Any) -> CohortPoint:
    values = {
        "emitted_tokens": 100,
        "spec_steps": 40,
        "plain_steps": 0,
        "accepted_tokens": 60,
        "draft_tokens": 80,
        "seconds": 10.0,
        "tokens_per_s": 10.0,
        "acceptance_length": 2.5,
        "mean_k": 2.0,
        "planned_k": 2.0,
        **changes,
    }
    return CohortPoint(at=at, cohort=cohort, **values)


def decision(at: float, cohort: str, old_k: int, new_k: int) -> DecisionRow:
    return DecisionRow(at, cohort, 1, old_k, new_k, "step_up", "because", 60, (0.9,), 3, "0123456789ab")


def data_of(spec: dict[str, Any], layer: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = spec["datasets"][layer["data"]["name"]]
    return rows


@pytest.mark.parametrize(
    ("span_s", "bucket_s"), [(0, 1), (120, 1), (900, 10), (3600, 30), (86_400, 900), (2_592_000, 21_600)]
)
def test_a_bucket_is_round_and_there_are_not_too_many(span_s, bucket_s):
    assert charts.bucket_seconds(span_s) == bucket_s


@pytest.mark.parametrize("days", [150, 365, 3650])
def test_however_long_the_range_there_are_not_too_many_buckets(days):
    assert days * 86_400 / charts.bucket_seconds(days * 86_400) <= charts.MAX_BUCKETS


@pytest.mark.parametrize(("bucket", "text"), [(0, "1"), (1, "2"), (2, "3 to 4"), (len(LOAD_BUCKETS) - 1, "over 128")])
def test_a_load_bucket_is_told_in_running_sequences(bucket, text):
    assert charts.load_label(bucket) == text


def test_a_line_breaks_where_a_cohort_was_silent():
    frame = charts.series_frame([point(0, "a"), point(10, "a"), point(40, "a")], bucket_s=10)
    assert frame["planned_k"].isna().tolist() == [False, False, True, False]


def test_a_line_does_not_break_between_neighbours():
    frame = charts.series_frame([point(10, "a"), point(0, "a"), point(0, "b")], bucket_s=10)
    assert not frame["planned_k"].isna().any()


def test_an_unknown_acceptance_length_is_no_point_and_not_zero():
    frame = charts.series_frame([point(0, "a", acceptance_length=None)], bucket_s=10)
    assert frame["acceptance_length"].isna().all()


def test_only_decisions_that_changed_k_of_a_shown_cohort_are_marked():
    frame = charts.decision_frame([decision(1, "a", 2, 4), decision(2, "a", 4, 4), decision(3, "b", 1, 2)], ["a"])
    assert frame[["cohort", "k", "change"]].values.tolist() == [["a", 4, "2 → 4"]]


def test_a_marker_carries_its_sentence():
    chart = charts.k_chart([point(0, "a")], [decision(1, "a", 2, 4)], 10, ["a"], ["a"], UTC)
    spec = chart.to_dict()
    markers = spec["layer"][1]
    assert data_of(spec, markers)[0]["sentence"] == "because"
    assert "sentence" in {t["field"] for t in markers["encoding"]["tooltip"]}


def test_k_is_drawn_as_steps():
    spec = charts.k_chart([point(0, "a")], [], 10, ["a"], ["a"], UTC).to_dict()
    assert spec["layer"][0]["mark"]["interpolate"] == "step-after"


def test_a_cohort_keeps_its_colour_when_it_is_the_only_one_shown():
    spec = charts.series_chart(
        [point(0, "a"), point(0, "b")], "tokens_per_s", "t", 10, ["a", "b"], ["b"], UTC
    ).to_dict()
    assert spec["encoding"]["color"]["scale"]["domain"] == ["a", "b"]
    assert {row["cohort"] for row in data_of(spec, spec)} == {"b"}


def test_a_name_is_data_and_never_a_field_or_a_title():
    chart = charts.k_chart([point(0, EVIL)], [decision(1, EVIL, 1, 2)], 10, [EVIL], [EVIL], UTC)
    spec = chart.to_dict()
    del spec["datasets"]
    for layer in spec["layer"]:
        layer["encoding"]["color"]["scale"].pop("domain")
    assert "<img" not in json.dumps(spec)


def test_an_unpriced_cohort_has_no_bar():
    rows = (CostRow("a", emitted_tokens=1000, cost_nano=3_000_000), CostRow("b", emitted_tokens=1000, cost_nano=None))
    report = CostReport(rows, CostRow("idle"), CostRow("total"), "USD", "on_demand", 1.0)
    spec = charts.unit_cost_chart(report, ["a", "b"], ["a", "b"]).to_dict()
    assert [(row["cohort"], row["unit_cost"]) for row in data_of(spec, spec)] == [("a", 3.0)]


@pytest.mark.parametrize(
    ("span_s", "text"), [(60, "%H:%M:%S"), (3600, "%H:%M"), (7 * 86_400, "%d %b"), (800 * 86_400, "%b %Y")]
)
def test_an_axis_tells_the_time_as_finely_as_its_span_needs(span_s, text):
    assert time_format(span_s) == text


@pytest.mark.parametrize("measure", ["tokens_per_s", "acceptance_length"])
def test_a_chart_of_nothing_is_still_a_chart(measure):
    assert charts.series_chart([], measure, "t", 10, [], [], UTC).to_dict()["mark"]["type"] == "line"
