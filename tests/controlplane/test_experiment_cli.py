"""`kadence experiment report` on a ledger: the figures, the grey, and the exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from controlplane.experiment import Run, Spec
from controlplane.experiment_cli import experiment_app
from controlplane.store.engine import open_database
from controlplane.store.rows import WindowSeen
from controlplane.store.write import write_items
from controlplane.telemetry import StepCount

Make = Callable[..., Any]


@pytest.fixture
def record(
    sqlite_ledger_url: str, make_worker_window: Make, make_cohort_window: Make, make_request_record: Make, tmp_path: Any
) -> Callable[..., str]:
    """A ledger with an experiment of `pairs` pairs; `factor` is the busy time by token with speculation."""

    def make(pairs: int = 12, factor: float = 0.7, spread: float = 0.02, length: int = 100) -> str:
        start, rng, sequence = float(int(time.time()) - 86_400), np.random.default_rng(2), 1
        run = Run("exp-1", Spec("window", 0.5, 60.0, 10.0, 10), 7, start, "ann", "to see")
        items: list[Any] = [run]
        for pair in range(pairs):
            for window in run.windows(pair):
                items.append(replace(window, state="done"))
                treated = window.arm == "treatment"
                busy = 4.0 * (factor if treated else 1.0) * float(np.exp(rng.normal(0, spread)))
                for i in range(10, 60, 10):
                    counts = (StepCount(2, 2, False, 10),) if treated else (StepCount(0, 0, False, 30),)
                    at = window.started_at + i
                    cohorts = (make_cohort_window("json", counts),)
                    made = make_worker_window(sequence, cohorts, started_at=at, ended_at=at + 10, busy_s=busy)
                    items.append(WindowSeen(made, at + 10))
                    tokens = length if treated else 100
                    items.append(
                        make_request_record(f"r{sequence}", started_at=at, finished_at=at + 1, completion_tokens=tokens)
                    )
                    sequence += 1
        with open_database(sqlite_ledger_url).begin() as connection:
            write_items(connection, items)
        prices = tmp_path / "prices.yaml"
        prices.write_text("version: 1\nprices: []\n")
        return sqlite_ledger_url

    return make


def report(url: str, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(experiment_app, ["report", "--database-url", url, *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_saving_is_said_with_its_interval_and_what_it_does_not_say(record: Callable[..., str]) -> None:
    code, out, _ = report(record())
    assert code == 0
    assert "a saving of 30." in out or "a saving of 29." in out
    assert "intervals hold at every look" in out
    assert "what this does not say" in out
    assert "grey" not in out


def test_an_interval_with_zero_in_it_is_greyed_out_and_says_how_many_pairs_are_missing(
    record: Callable[..., str],
) -> None:
    code, out, _ = report(record(factor=0.97, spread=0.1))
    assert (code, "not told apart from no saving" in out, "grey" in out) == (0, True, True)
    assert "more pairs," in out


def test_too_few_pairs_are_no_verdict(record: Callable[..., str]) -> None:
    _, out, _ = report(record(pairs=5))
    assert "no verdict yet: 5 of the 10 pairs" in out


def test_shorter_outputs_are_no_saving_and_exit_code_1(record: Callable[..., str]) -> None:
    code, out, _ = report(record(length=50))
    assert code == 1
    assert "a guardrail is broken: output length" in out


def test_json_is_one_object(record: Callable[..., str]) -> None:
    code, out, _ = report(record(), "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["is_saving"]) == (0, True, True)
    assert 0.25 < found["savings"]["capacity"]["low"] < 0.3 < found["savings"]["capacity"]["high"] < 0.35


def test_an_experiment_that_is_not_there_is_exit_code_1_with_those_that_are(record: Callable[..., str]) -> None:
    code, _, err = report(record(pairs=1), "other")
    assert (code, "known: exp-1" in err) == (1, True)


def test_a_ledger_without_one_says_how_to_start(sqlite_ledger_url: str) -> None:
    code, _, err = report(sqlite_ledger_url)
    assert (code, "kadence experiment start" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--holdout", "90%"], "--holdout: 0.9 is not a share within 0.001 to 0.5; 0.05 is 5%"),
        (["--holdout", "nan"], "--holdout: nan is not a share within 0.001 to 0.5; 0.05 is 5%"),
        (["--pairs", "3"], "--pairs: 3 is not within 10 to 100000"),
        (["--window", "10s"], "--window: 10 is not within 60 to 86400 seconds"),
        (["--window", "15m", "--burn-in", "20m"], "--burn-in: 1200 must be shorter than the window (900)"),
        (["--seed", "-1"], "--seed: -1 is not a whole number from 0 to 9007199254740992"),
    ],
)
def test_an_order_that_no_system_would_take_is_wrong_use_before_one_is_asked(arguments: list[str], says: str) -> None:
    nobody = ["--url", "http://127.0.0.1:9"]
    result = CliRunner().invoke(experiment_app, ["start", *arguments, *nobody])
    assert (result.exit_code, result.stderr.splitlines()) == (2, [says])
