"""The Grafana dashboard, held against what matters of its form. tests/e2e runs its queries on a real Prometheus."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "kadence.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"s", "joule", "watt", "short", "percentunit", "currencyUSD", "reqps"}


def title(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def test_the_rows_are_those_that_were_asked_for() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Speculation", "Latency", "Cost", "Energy", "Budgets", "Health"]


def test_panels_have_ids_and_titles_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert (len(set(ids)), len(set(titles))) == (len(ids), len(titles))


def test_no_panel_lies_over_another_or_beyond_the_edge() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}

    taken = {panel["title"]: cells(panel) for panel in DASHBOARD["panels"]}
    assert [pair for pair in combinations(taken, 2) if taken[pair[0]] & taken[pair[1]]] == []
    assert {name for name, own in taken.items() if not own or any(not 0 <= x < 24 for x, _ in own)} == set()


@pytest.mark.parametrize("panel", PANELS, ids=title)
def test_a_panel_says_what_it_shows_in_which_unit_and_what_it_shows_without_data(panel: dict[str, Any]) -> None:
    told = panel["fieldConfig"]["defaults"]
    assert len(panel["description"]) > 30
    assert panel["description"].endswith(".")
    assert told["unit"] in UNITS or told["unit"].startswith("suffix: ")
    assert told["noValue"]
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_everything_is_read_from_the_chosen_data_source() -> None:
    asking = [*PANELS, *(t for _, t in TARGETS), *DASHBOARD["annotations"]["list"]]
    asking += [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert [each for each in asking if each["datasource"] != DATASOURCE] == []


def test_the_variables_are_there_and_each_one_is_used() -> None:
    variables = {v["name"]: v for v in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "model", "cohort", "basis", "budget"]
    assert variables["datasource"]["query"] == "prometheus"
    used = set(re.findall(r"\$([a-z]+)\b", " ".join(target["expr"] for _, target in TARGETS)))
    assert used == set(variables) - {"datasource"}
    of_all = {v["name"]: v["allValue"] for v in variables.values() if v["includeAll"]}
    assert of_all == dict.fromkeys(("job", "model", "cohort", "budget"), ".*")


def test_one_basis_is_chosen_since_a_sum_over_several_would_count_time_twice() -> None:
    (basis,) = (v for v in DASHBOARD["templating"]["list"] if v["name"] == "basis")
    assert (basis["multi"], basis["includeAll"]) == (False, False)


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=[f"{name} {t['refId']}" for name, t in TARGETS])
def test_a_query_keeps_to_the_chosen_deployment(panel: str, target: dict[str, Any]) -> None:
    selected = re.findall(r"(kadence[_:][\w:]+)(\{[^}]*\})?", target["expr"])
    assert [name for name, braces in selected if '$job"' not in braces] == []


def test_the_provisioning_example_names_what_is_shipped() -> None:
    sources = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    providers = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "kadence.yml").read_text())["providers"]
    assert [source["type"] for source in sources] == ["prometheus"]
    assert [(p["type"], Path(p["options"]["path"]).name) for p in providers] == [("file", "kadence")]
