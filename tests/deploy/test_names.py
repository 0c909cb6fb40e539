"""Names: what deploy/ asks for is exported, and docs/monitoring.md lists all that is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from workers.backend import JournalCounts
from workers.metrics import MetricsAggregator

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
ROW = re.compile(r"^\| `(kadence_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
UNIT_OF_SUFFIX = {
    "_per_million_tokens": "USD per million tokens",
    "_seconds": "seconds",
    "_joules": "joules",
    "_usd": "USD",
    "_tokens": "tokens",
}


def exported() -> dict[str, tuple[str, str]]:
    """Name -> type and help of every metric that an endpoint shows, whether it has a sample yet or not."""
    families = text_string_to_metric_families(MetricsAggregator().render(JournalCounts()).decode())
    return {f.name + "_total" * (f.type == "counter"): (f.type, f.documentation) for f in families}


EXPORTED = exported()


@pytest.fixture
def listed() -> dict[str, tuple[str, str, str, str]]:
    """Name -> type, unit, labels and meaning, as the page has them."""
    return {name: (kind, unit, labels, meaning) for name, kind, unit, labels, meaning in ROW.findall(PAGE)}


def test_every_metric_in_deploy_is_exported_by_the_endpoint(deployed_queries: list[Any]) -> None:
    parts = {name + end for name, (kind, _) in EXPORTED.items() if kind in ("histogram", "summary")
             for end in ("_bucket", "_sum", "_count")}  # fmt: skip
    unknown = {q.where: q.metrics - set(EXPORTED) - parts for q in deployed_queries}
    assert {where: names for where, names in unknown.items() if names} == {}


def test_every_recorded_name_in_deploy_is_recorded_there(deployed_queries: list[Any]) -> None:
    recorded = {q.where for q in deployed_queries if q.kind == "recording"}
    unknown = {q.where: q.recorded - recorded for q in deployed_queries}
    assert {where: names for where, names in unknown.items() if names} == {}


def test_the_monitoring_page_lists_every_metric_and_no_other(listed) -> None:
    assert sorted(listed) == sorted(EXPORTED)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_page_has_a_metrics_type_and_meaning_as_the_endpoint_does(listed, name: str) -> None:
    kind, help_text = EXPORTED[name]
    assert (listed[name][0], listed[name][3].strip()) == (kind, help_text)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_page_has_a_unit_that_the_name_agrees_with(listed, name: str) -> None:
    unit = listed[name][1].strip()
    bare = name.removesuffix("_total")
    expected = next((unit for suffix, unit in UNIT_OF_SUFFIX.items() if bare.endswith(suffix)), None)
    assert unit
    if expected is not None:
        assert unit == expected


def test_the_page_names_every_recording_rule(deployed_queries: list[Any]) -> None:
    recorded = {q.where for q in deployed_queries if q.kind == "recording"}
    assert set(re.findall(r"`(kadence:[\w:]+)`", PAGE)) == recorded


def test_a_metric_that_nothing_exports_is_found(deployed_queries: list[Any]) -> None:
    """The names are read out of the queries: were they not, the tests above could not fail."""
    names = set().union(*(query.metrics for query in deployed_queries))
    assert {"kadence_emitted_tokens_total", "kadence_step_seconds_sum", "kadence_controller_silence_seconds"} <= names
    assert len(names) > 30
