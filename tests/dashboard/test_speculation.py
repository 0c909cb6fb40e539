"""The Speculation and What-if pages on a journal worked out by hand.

code, K = 1 beside itself alone, 20 windows of a second: 50 steps of 12 ms each (10 ms and 2 ms for the draft token),
25 kept. So acceptance is 50 %, which no prior moves; a step brings 1.5 tokens, and must bring 1.2 to pay, so 20 %.
K = 1: 1.5 / 0.012 = 125 tokens/s, TPOT 8 ms; K = 0: 100 tokens/s, 10 ms
0.6 s of each second are busy; at 3.60 USD an hour 0.001 / 0.6 / 125 = 13.33 USD per million tokens, 16.67 at K = 0
500 of 1,000 draft tokens rejected: a quarter of the 2,000 positions, of 12 s: 3 s, 0.003 USD
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from streamlit.testing.v1 import AppTest

from controlplane.decision.plan import Plan
from controlplane.policy import Policy, parse_policy
from controlplane.store.engine import open_database
from controlplane.store.evidence import RecentWindows, SeenWindow, recent_windows
from controlplane.store.journal import SqlJournal
from controlplane.store.queries import DecisionRow
from controlplane.store.time_range import TimeRange
from controlplane.telemetry import (
    LOAD_BUCKETS,
    CohortWindow,
    LatencyCell,
    ProfileCell,
    Report,
    StepCell,
    StepCount,
    WindowId,
    WorkerWindow,
)
from dashboard.break_even_chart import even_frame, most_left
from dashboard.break_even_rows import EvenRow, Past, even_rows, pasts, total_left, wants_retraining
from dashboard.speculation_evidence import Evidence, beside, gathered, rests_on
from dashboard.speculation_heat import LOADS, chosen, plan_frame, used_frame
from dashboard.speculation_survival import ASSUMED, MEASURED, survival_frame
from dashboard.speculation_tables import even_table, left_amount
from dashboard.what_if_figures import Asked, by_rung, rungs, what_if
from tests.dashboard.looks import app_of

WINDOWS, STEPS, KEPT = 20, 50, 25
STEP_S, PLAIN_S = 0.012, 0.010
POLICY = """\
version: 1
cohorts:
  - {name: code, match: {}, speculation: {tuner: goodput, ladder: [0, 1], start: 1, fallback: 0}}
"""
PROFILE = tuple(ProfileCell(n, k, 0, PLAIN_S + 0.002 * k, 0.0) for n in (1, 2) for k in (0, 1))
EVIL = "<img src=x onerror=alert(1)>"


def cell(k: int, kept: Sequence[int], *, bucket: int = 0, step_s: float = STEP_S) -> StepCell:
    """kept[a]: steps that kept `a` of their k draft tokens."""
    counts = tuple(StepCount(k, a, False, steps) for a, steps in enumerate(kept) if steps)
    return StepCell(bucket, k, counts, sum(kept) * step_s)


CODE = CohortWindow("code", (cell(1, (STEPS - KEPT, KEPT)),))


def window(number: int, at: float, *cohorts: CohortWindow, profile: bool = False, model: str = "m") -> WorkerWindow:
    return WorkerWindow(
        id=WindowId("w0", 1, number), model=model, drafter="eagle@1", device="test-machine", started_at=at,
        ended_at=at + 1, busy_s=0.6, energy_uj=None, energy_source="none", plan_version=1, plan_expired=False,
        plan_age_s=0.0, running=1, waiting=0, kv_used=0, kv_total=1, cohorts=cohorts,
        latency=(LatencyCell(1, 2, STEPS, STEPS * STEP_S, 0, 0.0),), profile=PROFILE if profile else (),
    )  # fmt: skip


def write(url: str, windows: Sequence[WorkerWindow], policy: Policy | None) -> None:
    """Through the journal that the controller writes with."""
    engine = open_database(url)
    journal = SqlJournal(engine)
    start = windows[0].started_at
    k = {c.cohort: (1,) * len(LOAD_BUCKETS) for w in windows for c in w.cohorts}
    plan = Plan(1, 1, start, start + 3600, k, dict.fromkeys(k, 0), "r")
    if policy is not None:
        journal.policy_applied(policy, "test", "by hand", start)
    for each in windows:
        journal.record([Report(each)], [], plan, each.ended_at + 0.1)
    journal.close()
    engine.dispose()


def by_hand(now: float, windows: int = WINDOWS, **changes: bool) -> list[WorkerWindow]:
    start = now - windows - 5
    return [window(i, start + i, CODE, profile=i == 0 and changes.get("profile", True)) for i in range(windows)]


@pytest.fixture
def speculating(ledger):
    ledger.migrate()
    ledger.price()
    write(ledger.url, by_hand(time.time()), parse_policy(POLICY))
    return ledger


def recent(url: str, windows: int = 240, cohort_rows: int = 1000) -> RecentWindows:
    engine = open_database(url)
    try:
        return recent_windows(engine, TimeRange(0, time.time()), windows=windows, cohort_rows=cohort_rows)
    finally:
        engine.dispose()


def evidence_of(*cohorts: CohortWindow, policy: str = POLICY, windows: int = WINDOWS, profile: bool = True) -> Evidence:
    seen = []
    for i in range(windows):
        each = window(i, 1000.0 + i, *cohorts, profile=profile and i == 0)
        each_ns = 600_000_000 // len(cohorts)
        seen.append(SeenWindow(each.ended_at, each, {c.cohort: each_ns for c in cohorts}, 0, 400_000_000, None))
    found = gathered(RecentWindows(tuple(seen), model="m"), parse_policy(policy))
    assert found is not None
    return found


def open_page(page: str, **query: str) -> AppTest:
    app = app_of()
    for name, value in query.items():
        app.query_params[name] = value
    if {"cohort", "model", "range"} & set(query):
        app.run()  # the filters above the page are app.py's
    app.switch_page(f"pages/{page}.py").run()
    assert not app.exception
    return app


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def table(app: AppTest, column: str) -> list[dict[Hashable, Any]]:
    return next(d.value.to_dict("records") for d in app.dataframe if column in d.value.columns)


def texts(app: AppTest) -> str:
    return "\n".join(element.value for kind in (app.text, app.caption, app.info) for element in kind)


# The newest windows


def test_the_newest_windows_come_back_as_the_controller_took_them_in(speculating):
    found = recent(speculating.url)
    assert len(found.windows) == WINDOWS
    assert [seen.window.id.sequence for seen in found.windows] == list(range(WINDOWS))
    assert found.windows[3].window.cohorts == (CODE,)
    assert found.windows[0].window.profile == PROFILE
    assert found.windows[3].output_ns == {"code": 600_000_000}
    assert not found.is_cut


def test_of_too_many_windows_the_oldest_are_left_out_and_the_profile_is_kept(speculating):
    found = recent(speculating.url, windows=5)
    assert [seen.window.id.sequence for seen in found.windows] == list(range(WINDOWS - 5, WINDOWS))
    assert found.is_cut
    assert found.profile == PROFILE


def test_of_too_many_cohorts_whole_windows_are_left_out(ledger):
    ledger.migrate()
    pair = (CODE, CohortWindow("chat", CODE.cells))
    write(ledger.url, [window(i, 1000.0 + i, *pair) for i in range(6)], None)
    found = recent(ledger.url, cohort_rows=5)
    assert [seen.window.id.sequence for seen in found.windows] == [4, 5]
    assert all(len(seen.window.cohorts) == 2 for seen in found.windows)


def test_one_model_is_believed_of_at_a_time(ledger):
    ledger.migrate()
    others = [window(i, 1000.0 + i, CODE, model="big" if i == 0 else "m") for i in range(4)]
    write(ledger.url, others, None)
    found = recent(ledger.url)
    assert found.model == "m"
    assert len(found.windows) == 3
    assert found.other_models == ("big",)


# Figures


def test_survival_has_the_estimators_interval_around_the_hand_made_half():
    (row,) = survival_frame(evidence_of(CODE), ["code"]).to_dict("records")
    assert row["survival"] == pytest.approx(0.5)
    assert row["low"] < 0.5 < row["high"]
    assert row["kind"] == MEASURED


def test_a_position_that_nobody_examined_is_marked():
    deep = POLICY.replace("[0, 1]", "[0, 1, 2]")
    assert survival_frame(evidence_of(CODE, policy=deep), ["code"])["kind"].tolist() == [MEASURED, ASSUMED]


def test_used_k_is_weighted_by_time_and_empty_where_nothing_ran():
    both = CohortWindow("code", (cell(0, (10,), step_s=0.01), cell(1, (5, 5), step_s=0.03)))
    frame = used_frame(evidence_of(both), ["code"])
    assert frame["k"].tolist() == [pytest.approx(0.3 / 0.4)]
    assert frame["load"].tolist() == ["1"]


def test_the_plan_has_a_square_for_every_load():
    frame = plan_frame({"code": [4] * 8 + [0]}, ["code", "gone"])
    assert frame["load"].tolist() == list(LOADS)
    assert frame["text"].tolist() == ["4"] * 8 + ["0"]


def test_cohorts_are_found_by_a_part_of_their_name():
    names = ["b-Code", "chat", "a-code"]
    assert chosen(names, most=10, contains="CODE ") == ["b-Code", "a-code"]
    assert chosen(names, most=1) == ["b-Code"]


def rows_of(*cohorts: CohortWindow, price: float | None = 3.6, policy: str = POLICY) -> list[EvenRow]:
    found = even_rows(evidence_of(*cohorts, policy=policy), price)
    assert found is not None
    return found


def test_break_even_is_where_the_hand_made_times_put_it():
    (row,) = rows_of(CODE)
    assert row.accept_needed == pytest.approx(0.2, abs=1e-6)
    assert row.accept_now == pytest.approx(0.5, abs=1e-6)
    assert row.needed == pytest.approx(1.2)
    assert row.expected == pytest.approx(1.5)
    assert row.pays is True
    assert row.left_share == 0.0


def test_what_is_left_on_the_table_is_priced_by_the_hour():
    # At K = 0 100 tokens/s, of 125 possible: a fifth of 0.6 s in each of 20 s.
    idle = CohortWindow("code", (cell(0, (STEPS,), step_s=PLAIN_S),))
    mixed = evidence_of(CohortWindow("code", (*idle.cells, *CODE.cells)))
    (row,) = even_rows(mixed, 3.6) or []
    used = (STEPS * 1.0 + STEPS * 1.5) / (STEPS * PLAIN_S + STEPS * STEP_S)
    assert row.left_share == pytest.approx(1 - used / 125, rel=1e-3)
    assert row.left_money == pytest.approx(3.6 * 0.6 * row.left_share)
    assert row.left_tokens_per_s == pytest.approx(125.0 * (125 / used - 1), rel=1e-3)
    total = total_left([row, row])
    assert total.money == pytest.approx(2 * 3.6 * 0.6 * row.left_share)
    assert total.share == pytest.approx(row.left_share)


def test_without_a_price_tokens_per_second_are_left_on_the_table():
    (row,) = rows_of(CODE, price=None)
    assert row.left_money is None
    assert total_left([row]).money is None
    assert left_amount(None, 12.0, "USD") == "12.0 tokens/s"
    assert left_amount(1.5, 12.0, "USD") == "$1.500 an hour"


def test_text_that_is_never_kept_is_below_break_even_and_wants_retraining():
    never = CohortWindow("code", (cell(1, (STEPS, 0)),))
    evidence = evidence_of(never)
    rows = even_rows(evidence, 3.6) or []
    (wanted,) = wants_retraining(evidence, rows, {})
    assert wanted.drafter == "eagle@1"
    assert wanted.sentence.startswith("wants retraining: below break-even beside 1 running: K 1 brings 1.0")
    assert "acceptance 0 %, 20 % wanted" in wanted.sentence
    assert even_table(rows, "USD", is_priced=True)["Pays"].tolist() == ["no"]


def test_acceptance_that_fell_against_its_own_past_is_told_with_both_figures():
    evidence = evidence_of(CODE)
    rows = even_rows(evidence, 3.6) or []
    (wanted,) = wants_retraining(evidence, rows, {"code": Past(0.8, 0.02, 40)})
    assert "position 1 accepts 50 %, 80 % in the 40 decisions before" in wanted.sentence


@pytest.mark.parametrize("past", [Past(0.53, 0.01, 40), Past(0.8, 0.3, 40), Past(0.9, 0.01, 2)])
def test_a_fall_that_may_be_chance_is_not_told(past):
    evidence = evidence_of(CODE)
    assert list(wants_retraining(evidence, even_rows(evidence, 3.6) or [], {"code": past})) == []


def test_few_drafts_ask_for_nothing():
    never = CohortWindow("code", (cell(1, (2, 0)),))
    evidence = evidence_of(never, windows=2)
    assert list(wants_retraining(evidence, even_rows(evidence, 3.6) or [], {"code": Past(0.9, 0.01, 9)})) == []


def test_the_past_is_what_decisions_kept_of_the_first_position():
    def decision(samples: int, *accept_at: float) -> DecisionRow:
        return DecisionRow(0.0, "code", 0, 1, 1, "hold", "", samples, accept_at, 1, "r")

    found = pasts([decision(100, 0.8, 0.1), decision(100, 0.6), decision(10, 0.1), decision(100)])
    assert found["code"].accepted == pytest.approx(0.7)
    assert found["code"].decisions == 2


def test_the_break_even_picture_shows_what_took_most_time_first():
    few, many = CohortWindow("a", (cell(1, (2, 2)),)), CohortWindow("b", (cell(1, (9, 9)),))
    rows = rows_of(few, many, policy=POLICY)
    frame = even_frame(most_left(rows, 1))
    assert frame["what"].tolist() == ["stands at", "pays from"]
    assert len(most_left(rows)) == 2


def test_without_step_times_nothing_is_said_of_break_even():
    evidence = evidence_of(CODE, profile=False)
    assert even_rows(evidence, 3.6) is None
    assert what_if(evidence, 3.6, Asked(), "USD", None) is None
    assert any("step times" in note for note in beside(evidence))


def test_what_all_rests_on_is_told_in_a_sentence():
    said = rests_on(evidence_of(CODE), ZoneInfo("UTC"))
    assert said == "Rests on 20 windows of m, 1970-01-01 00:16:40 to 1970-01-01 00:17:00: 1,000 steps of 1 cohort."


def test_what_is_now_is_what_was_measured_on_a_machine_that_does_as_it_is_believed_to():
    found = what_if(evidence_of(CODE), 3.6, Asked(), "USD", None)
    assert found is not None
    assert [(f.now, f.measured, f.then, f.difference) for f in found.figures] == [
        ("125.0", "125.0", "125.0", "none"),
        ("8.000 ms", "8.000 ms", "8.000 ms", "none"),
        ("$13.33", "$13.33", "$13.33", "none"),
        ("not measured", "–", "not measured", "–"),
    ]


@pytest.mark.parametrize(
    ("asked", "speed", "tpot", "money"),
    [
        (Asked(k="0"), "100.0", "10.00 ms", "$16.67"),
        (Asked(price=50), "125.0", "8.000 ms", "$6.667"),
        (Asked(utilisation="30"), "125.0", "8.000 ms", "$26.67"),
        (Asked(acceptance=200), "166.7", "6.000 ms", "$10.00"),
        (Asked(load="2"), "250.0", "8.000 ms", "$6.667"),
        (Asked(k="0", load="2", price=200, utilisation="100"), "200.0", "10.00 ms", "$10.00"),
    ],
)
def test_each_slider_does_what_was_worked_out_by_hand(asked, speed, tpot, money):
    found = what_if(evidence_of(CODE), 3.6, asked, "USD", None)
    assert found is not None
    assert [f.then for f in found.figures[:3]] == [speed, tpot, money]


def test_every_rung_has_its_speed_and_no_other_k_is_offered():
    evidence = evidence_of(CODE)
    assert rungs(evidence, None) == ("now", "0", "1")
    frame = by_rung(evidence, 3.6, Asked(), None, rungs(evidence, None))
    assert frame["tokens_per_s"].tolist() == pytest.approx([100.0, 125.0])


# The pages


@pytest.mark.usefixtures("speculating")
def test_the_speculation_page_shows_break_even_waste_and_counts_as_worked_out():
    app = open_page("speculation")
    assert metrics(app)["Left on the table"] == "$0.00 an hour"
    assert metrics(app)["Speculation pays"] == "1 of 1"
    (even,) = table(app, "Acceptance needed")
    assert (even["Acceptance now"], even["Acceptance needed"], even["Pays"]) == ("50 %", "20 %", "yes")
    waste = table(app, "Rejected tokens")
    assert [row["Cohort"] for row in waste] == ["code", "total"]
    assert list(waste[0].values())[1:] == ["500", "50.0 %", "3.000 s", "25.0 %", "$0.003000", "not measured"]
    (counts,) = table(app, "Acceptance length")
    assert (counts["Planned K"], counts["Accepted"], counts["Acceptance length"]) == (1.0, 0.5, 1.5)
    assert "Rests on 20 windows of m" in texts(app)


def test_the_plan_in_force_has_the_cohorts_that_had_no_traffic_too(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill()
    ledger.fill(first="asleep", second="dormant", sequence=10, age_s=7200)
    app = open_page("speculation")
    assert [row["Cohort"] for row in table(app, "Fallback")] == ["asleep", "dormant"]
    assert [row["Cohort"] for row in table(app, "Acceptance length")] == ["json", "fiction"]


def test_a_cohort_that_only_the_plan_has_is_said_to_have_no_step(ledger):
    ledger.migrate()
    ledger.price()
    ledger.fill(first="asleep", age_s=600)
    write(ledger.url, by_hand(time.time()), parse_policy(POLICY))
    app = open_page("speculation", cohort="asleep")
    assert texts(app).count("No step of it is in the windows") == 2
    assert "This cohort has no step in these windows" in texts(open_page("what_if", cohort="asleep"))


@pytest.mark.usefixtures("filled")
def test_windows_without_cells_leave_a_sentence_in_place_of_break_even():
    app = open_page("speculation")
    assert "No window of this range is on record any more" in texts(app)
    assert table(app, "Rejected tokens")[-1]["Cohort"] == "total"


@pytest.mark.usefixtures("filled")
def test_what_if_refuses_politely_without_windows_to_reckon_with():
    app = open_page("what_if")
    assert "nothing to reckon with" in texts(app)
    assert not app.metric


@pytest.mark.usefixtures("speculating")
def test_what_if_shows_now_until_a_slider_moves_and_takes_its_place_from_the_url():
    assert metrics(open_page("what_if"))["Tokens per second"] == "125.0"
    app = open_page("what_if", k="0", price="200", utilisation="30", load="2", acceptance="50")
    assert metrics(app)["Tokens per second"] == "200.0"
    assert metrics(app)["Cost per 1M tokens"] == "$33.33"
    assert "taken from the profile" in texts(app)


@pytest.mark.usefixtures("speculating")
def test_reset_moves_every_slider_back():
    app = open_page("what_if", k="0", price="200")
    next(button for button in app.button if "Reset" in button.label).click().run()
    assert metrics(app)["Cost per 1M tokens"] == "$13.33"


def test_an_unpriced_machine_leaves_speed_and_says_so(ledger):
    ledger.migrate()
    ledger.price("version: 1\nprices: []\n")
    write(ledger.url, by_hand(time.time()), parse_policy(POLICY))
    app = open_page("what_if", k="0")
    assert metrics(app)["Cost per 1M tokens"] == "unpriced"
    assert metrics(app)["Tokens per second"] == "100.0"
    assert "test-machine has no on_demand price" in texts(app)
    assert metrics(open_page("speculation"))["Left on the table"] == "0 tokens/s"


def test_step_times_that_nobody_told_are_asked_for(ledger):
    ledger.migrate()
    ledger.price()
    write(ledger.url, by_hand(time.time(), profile=False), parse_policy(POLICY))
    assert "step times are on record" in texts(open_page("what_if"))
    assert "K has no price in time" in texts(open_page("speculation"))


def test_a_cohorts_name_is_text_on_both_pages(ledger):
    ledger.migrate()
    ledger.price()
    start = time.time() - 30
    never = CohortWindow(EVIL, (cell(1, (STEPS, 0)),))
    write(ledger.url, [window(i, start + i, never, profile=i == 0) for i in range(WINDOWS)], None)
    for page in ("speculation", "what_if"):
        app = open_page(page)
        assert all(EVIL not in element.value for kind in (app.caption, app.markdown, app.info) for element in kind)
    assert table(open_page("speculation"), "Why")[0]["Cohort"] == EVIL


def test_two_hundred_cohorts_are_cut_to_the_busiest_and_found_by_name(ledger):
    ledger.migrate()
    ledger.price()
    start = time.time() - 30
    many = [CohortWindow(f"cohort-{i:03d}", CODE.cells) for i in range(200)]
    write(ledger.url, [window(i, start + i, *many, profile=i == 0) for i in range(2)], None)
    app = open_page("speculation")
    assert len(table(app, "Acceptance needed")) == 10
    assert "Tables and maps show 10 of 200 cohorts" in texts(app)
    found = open_page("speculation", find="-19")
    assert [row["Cohort"] for row in table(found, "Acceptance length")] == [f"cohort-19{i}" for i in range(10)]
