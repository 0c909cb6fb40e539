"""The savings page: an experiment worked out by hand, and what the page says of it and of others.

Twelve pairs of windows of a minute, of one machine at 3.60 USD an hour. A token takes 10 ms of busy time without
speculation and 8 ms with it, times exp(+0.01) and exp(-0.01) in turn: 20 % of capacity is saved. Both windows of a
pair are billed alike: no cash is. Six requests came to each, 0.1 a worker-second, as in the hour of conftest.py's
ledger: its 0.016 USD of busy time would have been 0.016 / 0.8 = 0.020, so 0.004 USD are saved in the month.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from datetime import UTC
from math import exp
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from controlplane.experiment import Run, Spec
from controlplane.experiment_cli import experiment_app
from controlplane.finops.savings import LENGTH_BOUNDS, Pair, Saving, Sums, saving
from controlplane.finops.savings_checks import DriftCheck, Guardrail
from controlplane.finops.savings_projection import Projection
from controlplane.finops.savings_report import Report
from controlplane.policy import Experiment
from controlplane.store.experiment_models import ExperimentEntry, ExperimentWindow
from controlplane.telemetry import LATENCY_BOUNDS_S
from dashboard import savings_charts as charts
from dashboard import savings_figures as figures
from dashboard.savings_reading import looks_at
from tests.dashboard.looks import alone

EVIL = "<img src=x onerror=alert(1)>"
NS = 10**9
SPEC = Spec("window", 0.5, 60.0, 10.0, 20)
RUN = Run("exp-1", SPEC, 7, 1_790_000_000.0, "ann", "to see")


def histogram(bucket: int, count: int = 6) -> dict[str, Any]:
    counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
    counts[bucket] = count
    return {"counts": counts, "sum_s": 1.0}


def experiment(
    *,
    pairs: int = 12,
    state: str = "finished",
    name: str = "exp-1",
    why: str = "is it worth it",
    factor: float = 0.8,
    slower: bool = False,
    uj: int | None = None,
) -> list[Any]:
    """The rows of an experiment whose windows were pruned: what is on record of it is their sums."""
    start = time.time() - 3000
    rows: list[Any] = [
        ExperimentEntry(
            experiment=name, unit="window", holdout=0.5, window_s=60.0, burn_in_s=10.0, pairs=20, seed=7,
            started_at=start, ended_at=None if state == "running" else start + 2900, started_by="ann", why=why,
            state=state, sentence="" if state == "running" else "all 20 pairs are complete",
        )
    ]  # fmt: skip
    lengths = [0] * (len(LENGTH_BOUNDS) + 1)
    lengths[7] = 6
    for i in range(pairs):
        for n, arm in enumerate(("treatment", "control") if i % 2 else ("control", "treatment")):
            is_treatment = arm == "treatment"
            half = round(5 * NS * (factor * exp(0.01 * (-1) ** (i // 2)) if is_treatment else 1.0))
            at = start + 120 * i + 60 * n
            rows.append(
                ExperimentWindow(
                    experiment=name, pair=i, arm=arm, started_at=at, burn_in_end=at + 10, ended_at=at + 60,
                    policy_revision="p1", state="done", reason="", windows=1, seconds_ns=60 * NS, busy_ns=2 * half,
                    machine_ns={"test-machine": 60 * NS}, tokens=1000, energy_uj=uj and uj * half // NS,
                    measured_tokens=1000 if uj else 0, energy_sources=["counter"] if uj else [],
                    early_busy_ns=half, early_tokens=500, draft_tokens=800 if is_treatment else 0,
                    requests=6, failed=0, prompt_tokens=300, completion_tokens=1000, lengths=lengths,
                    ttft=histogram(5), tpot=histogram(6 if is_treatment and slower else 4), filled_at=at + 60,
                )
            )  # fmt: skip
    return rows


def texts(app: AppTest) -> str:
    found = [e.value for kind in (app.text, app.caption, app.header) for e in kind]
    return "\n".join(found).replace("\\", "")


def metrics(app: AppTest) -> dict[str, tuple[str, str]]:
    return {m.label: (m.value, m.delta.replace("\\", "")) for m in app.metric}


def table_of(app: AppTest, column: str) -> Any:
    return next(d.value for d in app.dataframe if column in d.value.columns)


def test_the_page_shows_the_saving_that_was_worked_out_by_hand(filled):
    filled.add(experiment())
    app = alone("savings")
    found = metrics(app)
    assert found["Capacity"][0] == "+20.0%"
    assert found["Cash"][0] == "+0.0%"
    assert found["Energy"] == ("not measured", "in no pair")
    assert found["Last 30 days, projected"][0] == "$0.004000"
    assert "a saving of 20.0% of capacity" in texts(app)


def test_every_figure_is_that_of_the_experiment_report(filled):
    filled.add(experiment(uj=5_000_000))
    app = alone("savings")
    told = CliRunner().invoke(experiment_app, ["report", "exp-1", "--json", "--database-url", filled.url])
    said = json.loads(told.stdout)
    found = metrics(app)
    for measure, each in said["savings"].items():
        assert found[measure.capitalize()][0] == figures.percent(each["share"])
        assert figures.interval(each["low"], each["high"]) in found[measure.capitalize()][1]
    assert said["headline"] in texts(app)
    rails = [[r["name"], figures.percent(r["change"]), r["pairs"]] for r in said["guardrails"]]
    assert table_of(app, "Guardrail")[["Guardrail", "Change", "Pairs"]].values.tolist() == rails
    assert table_of(app, "What it says")["What it says"].tolist() == [c["sentence"] for c in said["checks"]]
    month = said["projection"]
    low, high = (f"${float(month[name]):.2f}" for name in ("money_low", "money_high"))
    assert [f"${float(part.strip('$')):.2f}" for part in found["Last 30 days, projected"][1].split(" to ")] == [
        low,
        high,
    ]


def test_without_an_experiment_the_page_says_how_to_start_one_even_without_traffic(ledger):
    ledger.migrate()
    app = alone("savings")
    assert "No experiment is on record" in texts(app)
    assert app.code[0].value.startswith("kadence experiment start --why")


def test_a_broken_guardrail_is_no_saving(filled):
    filled.add(experiment(slower=True))
    app = alone("savings")
    rails = table_of(app, "Guardrail").set_index("Guardrail")["Verdict"]
    assert rails["tpot p50"] == "✗ broken"
    assert rails["ttft p50"] == "✓ kept"
    assert "but a guardrail is broken: tpot p50, tpot p99" in texts(app)
    assert "lower K for whom it matters" in texts(app)


def test_what_is_not_told_apart_from_nothing_is_grey(filled):
    filled.add(experiment(factor=1.0))
    app = alone("savings")
    assert metrics(app)["Capacity"][1].endswith(": unclear")
    assert "Nothing is claimed" in texts(app)


@pytest.mark.parametrize(("pairs", "text"), [(8, ("+20.0%", "8 of 10 pairs")), (0, ("not measured", "in no pair"))])
def test_too_few_pairs_have_no_interval(pairs, text):
    found = saving(pairs_of(pairs, spread=0.0))
    assert (figures.saved(found), figures.standing(found)) == text


def test_another_experiment_and_measure_can_be_asked_for_in_the_url(filled):
    filled.add([*experiment(uj=5_000_000), *experiment(name="exp-2", factor=0.5)])
    app = alone("savings", experiment="exp-1", measure="energy")
    assert "exp-1, finished at" in texts(app)
    assert table_of(app, "Spread of a pair")["Saving"].tolist() == ["+20.0%", "+20.0%"]


def test_html_of_a_person_stays_text(filled):
    filled.add([*experiment(why=EVIL), *experiment(name="exp-2", why=EVIL)])
    app = alone("savings")
    assert any(EVIL in text.value for text in app.text)
    for element in (*app.markdown, *app.caption, *app.metric, *app.title, *app.header):
        assert "<img" not in str(element.value)


def pairs_of(count: int, saved: float = 0.2, spread: float = 0.02) -> list[Pair]:
    found = []
    for i in range(count):
        treatment = Sums(
            seconds_ns=60 * NS, busy_ns=round(NS * (1 - saved) * exp(spread * ((i % 5) - 2))), tokens=100, arrivals=6,
            prompt_tokens=300,
        )  # fmt: skip
        control = replace(treatment, busy_ns=NS, energy_uj=1)
        found.append(Pair(i, 100.0 * i, i % 2 == 0, treatment, control))
    return found


def test_looks_begin_with_the_first_interval_and_end_with_the_report():
    pairs = pairs_of(40)
    looks = looks_at(RUN, pairs, "capacity")
    assert [look.pairs for look in looks] == list(range(10, 41))
    assert looks[-1] == saving(pairs, "capacity", target=20, pair_every_s=SPEC.pair_every_s)
    assert [look.pairs for look in looks_at(RUN, pairs, "capacity", most=4)] == [10, 20, 30, 40]
    assert looks_at(RUN, pairs[:9], "capacity") == []


def test_the_sequence_narrows_and_has_a_line_of_no_saving():
    frame = charts.look_frame(looks_at(RUN, pairs_of(60), "capacity"))
    widths = (frame["high"] - frame["low"]).tolist()
    assert widths[-1] < 0.5 * widths[0]
    assert ((frame["low"] < frame["fixed_low"]) & (frame["fixed_high"] < frame["high"])).all()
    spec = charts.sequence_chart(frame, 60).to_dict()
    rule = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "rule")
    assert spec["datasets"][rule["data"]["name"]] == [{"none": 0.0}]


def test_both_windows_of_a_pair_are_drawn_with_what_a_token_took():
    frame = charts.pair_frame(pairs_of(1, spread=0.0), "capacity")
    assert frame[["arm", "rate"]].values.tolist() == [[charts.WITH, 8.0], [charts.WITHOUT, 10.0]]
    assert frame["saving"].tolist() == pytest.approx([0.2, 0.2])
    assert charts.pair_chart(frame, "capacity", UTC).to_dict()["layer"][0]["mark"]["type"] == "line"


def test_a_pair_without_the_measure_is_not_drawn():
    assert len(charts.pair_frame(pairs_of(3), "energy")) == 0


def report(capacity: Saving | None = None, **changes: Any) -> Report:
    found = capacity or saving(pairs_of(12), target=20, pair_every_s=120.0)
    values: dict[str, Any] = {
        "run": RUN.ended("finished", "all", RUN.started_at + 9),
        "savings": {"capacity": found},
        "guardrails": (),
        "checks": (),
        "projection": Projection(0.0, refused="no busy time"),
        **changes,
    }
    values["broken"] = tuple(rail for rail in values["guardrails"] if rail.verdict == "broken")
    return cast("Report", SimpleNamespace(**values))


UNCLEAR = Saving("capacity", 12, 0.01, -0.02, 0.04, -0.01, 0.03, 0.5, 0.0, 0.1, 40, 4800.0)
BROKEN = Guardrail("ttft p50", 0.2, 0.1, 0.3, 0.05, "broken", 12)
CARRIED = DriftCheck("carry-over", 0.2, 0.001, "lengthen burn_in")


@pytest.mark.parametrize(
    ("told", "section", "sentence", "command"),
    [
        (None, None, "No experiment is on record", "--holdout 20% --window 1800s --burn-in 300s --pairs 60"),
        (None, Experiment(0.05, "window", 3600, 600), "The policy says how", "--why 'what speculation saves'"),
        (report(run=RUN), None, "It is running", "kadence experiment stop"),
        (report(), None, "Measure again when", "--holdout 50% --window 60s --burn-in 10s --pairs 20"),
        (report(UNCLEAR), None, "52 pairs", "--pairs 52"),
        (report(replace(UNCLEAR, pairs_needed=None)), None, "no number of pairs within reach", "--pairs 20"),
        (report(guardrails=(BROKEN,)), None, "A guardrail is broken (ttft p50)", "--pairs 20"),
        (report(checks=(CARRIED,)), None, "longer ones", "--window 60s --burn-in 20s"),
    ],
)
def test_what_to_run_next(told, section, sentence, command):
    step = figures.next_step(told, section)
    assert sentence in step.sentence
    assert command in step.command
    words = shlex.split(step.command)
    group = cast("Any", typer.main.get_command(experiment_app))
    group.commands[words[2]].make_context(words[2], words[3:])  # a command that this release has


@pytest.mark.parametrize(
    ("month", "text"),
    [
        (Projection(0.5, refused="of other loads"), ("not projected", "see below")),
        (Projection(1.0, 0.1, 0.05, 0.15), ("unpriced", "+10.0% of machine time")),
        (Projection(1.0, 0.1, 0.05, 0.15, 2 * NS, NS, 3 * NS), ("$2.000", "$1.000 to $3.000")),
    ],
)
def test_a_month_is_money_or_why_not(month, text):
    assert figures.month_text(month, "USD") == text


def test_covariates_that_differ_between_the_arms_are_named():
    found = replace(UNCLEAR, covariates=("prompt tokens",), removed=0.42, left_out=("arrivals",))
    assert "prompt tokens explained 42%" in figures.adjustment_text(found)
    assert "Not adjusted for arrivals" in figures.adjustment_text(found)
    assert "Nothing was adjusted for" in figures.adjustment_text(UNCLEAR)
