"""What a run cost, out of the endpoint's counters."""

from __future__ import annotations

import json

import pytest

from workers import cli
from workers.load import command
from workers.load.cost import Bill, cost_between, parse_bill


def exposition(tokens: int, usd: float, idle: float) -> str:
    return f"""
# TYPE kadence_emitted_tokens_total counter
kadence_emitted_tokens_total{{model="m",cohort="code"}} {tokens - 10}
kadence_emitted_tokens_total{{model="m",cohort="chat"}} 10
# TYPE kadence_cost_usd_total counter
kadence_cost_usd_total{{model="m",basis="spot",cohort="code"}} {usd}
kadence_cost_usd_total{{model="m",basis="spot",cohort="chat"}} 0
# TYPE kadence_idle_cost_usd_total counter
kadence_idle_cost_usd_total{{model="m",basis="spot"}} {idle}
"""


def test_23_a_run_says_what_a_million_tokens_cost(endpoint, capsys, monkeypatch) -> None:
    monkeypatch.setattr(command, "WINDOW_S", 0.0)
    endpoint.metrics = [exposition(100, 1.0, 2.0), exposition(300, 1.5, 2.25)]
    assert cli.run(["load", "--url", endpoint.url, "--requests", "2", "--json"]) == 0
    (cost,) = json.loads(capsys.readouterr().out)["cost"]
    assert (cost["basis"], cost["tokens"]) == ("spot", 200)
    assert (cost["usd_per_million_tokens"], cost["loaded_usd_per_million_tokens"]) == (2500.0, 3750.0)


def test_it_is_a_line_under_the_table(endpoint, capsys, monkeypatch) -> None:
    monkeypatch.setattr(command, "WINDOW_S", 0.0)
    endpoint.metrics = [exposition(100, 1.0, 2.0), exposition(300, 1.5, 2.25)]
    cli.run(["load", "--url", endpoint.url, "--requests", "1"])
    assert "spot: 2500 USD per million tokens, 3750 with idle" in capsys.readouterr().out


def test_an_endpoint_without_metrics_has_no_cost_and_the_run_is_good(endpoint, capsys) -> None:
    assert cli.run(["load", "--url", endpoint.url, "--requests", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"] == []


def test_models_and_cohorts_are_one_bill() -> None:
    assert parse_bill(exposition(100, 1.0, 2.0)) == Bill(100.0, {"spot": 1.0}, {"spot": 2.0})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, Bill(5, {"spot": 1.0}, {"spot": 1.0})),
        (Bill(5, {"spot": 1.0}, {"spot": 1.0}), None),
        (Bill(5), Bill(9)),
        (Bill(5), Bill(9, {"spot": 1.0}, {"spot": 1.0})),
        (Bill(5, {"spot": 1.0}, {"spot": 1.0}), Bill(5, {"spot": 1.0}, {"spot": 2.0})),
        (Bill(5, {"spot": 2.0}, {"spot": 1.0}), Bill(9, {"spot": 1.0}, {"spot": 2.0})),
    ],
    ids=["no-before", "no-after", "unpriced", "priced-meanwhile", "no-tokens", "another-endpoint"],
)
def test_what_is_not_known_at_both_ends_has_no_cost(before: Bill | None, after: Bill | None) -> None:
    assert cost_between(before, after) == ()


def test_the_first_traffic_of_an_endpoint_has_a_cost() -> None:
    (cost,) = cost_between(Bill(0), Bill(50, {"spot": 1.0}, {"spot": 3.0}))
    assert (cost.usd, cost.idle_usd) == (1.0, 3.0)
