"""The decode benchmark's figures: paired, and withheld where our texts differ."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from benchmarks.decode_checks import Check, checks_of
from benchmarks.decode_figures import (
    BASELINE,
    PLAIN,
    BenchmarkError,
    Run,
    Spread,
    differences,
    first_difference,
    rotated,
    rows_of,
    spread_over,
)
from benchmarks.decode_result import append_csv, result

DRAFTED, ATTACHED, ADAPTIVE = "kadence/ngram/4", "kadence/ngram/0", "kadence/ngram/adaptive"
ARMS = (BASELINE, PLAIN, DRAFTED)


def run(arm: str, seconds: float, *, prompt: int = 0, round: int = 0, token_ids: tuple[int, ...] = (1, 2, 3, 4)) -> Run:
    return Run(arm, "json", prompt, round, token_ids, "a b", seconds)


@pytest.fixture
def runs() -> list[Run]:
    """Two rounds of one prompt; the machine is half as fast in the second."""
    return [
        *(
            run(BASELINE, 1.0),
            run(PLAIN, 1.0),
            replace(run(DRAFTED, 0.5), spec_steps=2, accepted=3, steps=3, planned=12),
        ),
        *(run(BASELINE, 2.0, round=1), run(PLAIN, 2.5, round=1)),
        replace(run(DRAFTED, 1.0, round=1), spec_steps=2, accepted=3, steps=3, planned=6),
    ]


def test_every_arm_takes_every_place_in_turn() -> None:
    orders = [rotated("ABC", turn) for turn in range(3)]
    assert orders == [("A", "B", "C"), ("B", "C", "A"), ("C", "A", "B")]


def test_a_ratio_is_of_the_pair_that_met_the_same_machine(runs) -> None:
    ratios = {row.arm: row.ratio for row in rows_of(runs, ARMS)}
    assert ratios[BASELINE] is None
    assert (ratios[PLAIN].min, ratios[PLAIN].max) == (0.8, 1.0)
    assert (ratios[DRAFTED].min, ratios[DRAFTED].max) == (2.0, 2.0)


def test_a_ratio_to_k_0_is_of_the_same_pair(runs) -> None:
    ratios = {row.arm: row.ratio_to_k0 for row in rows_of(runs, ARMS)}
    assert ratios[PLAIN] is None
    assert ratios[DRAFTED] == Spread(2.0, 2.25, 2.5)


def test_mean_k_is_weighed_by_steps(runs) -> None:
    assert {row.arm: row.mean_k for row in rows_of(runs, ARMS)} == {BASELINE: None, PLAIN: None, DRAFTED: 3.0}


def test_temperatures_are_not_paired_with_each_other(runs) -> None:
    sampled = [replace(r, temperature=0.7, seconds=8 * r.seconds if r.arm == DRAFTED else r.seconds) for r in runs]
    ratios = {(row.temperature, row.arm): row.ratio for row in rows_of([*runs, *sampled], ARMS)}
    assert (ratios[0.0, DRAFTED].median, ratios[0.7, DRAFTED].median) == (2.0, 0.25)


def test_sampled_text_is_not_compared_with_transformers(runs) -> None:
    sampled = [
        replace(r, temperature=0.7, token_ids=(9,)) if r.arm == BASELINE else replace(r, temperature=0.7) for r in runs
    ]
    assert [row.equal_to_transformers for row in rows_of(sampled, ARMS)] == [None, None, None]


def test_tokens_per_second_spread_over_all_runs(runs) -> None:
    speeds = {row.arm: row.tokens_per_s for row in rows_of(runs, ARMS)}
    assert (speeds[DRAFTED].min, speeds[DRAFTED].median, speeds[DRAFTED].max) == (4.0, 6.0, 8.0)


def test_acceptance_length_counts_only_steps_that_drafted(runs) -> None:
    lengths = {row.arm: row.acceptance_length for row in rows_of(runs, ARMS)}
    assert lengths == {BASELINE: None, PLAIN: None, DRAFTED: 2.5}


def test_equality_with_transformers_is_a_share_of_the_prompts(runs) -> None:
    other = [run(BASELINE, 1.0, prompt=1, token_ids=(9,)), run(PLAIN, 1.0, prompt=1), run(DRAFTED, 1.0, prompt=1)]
    shares = {row.arm: row.equal_to_transformers for row in rows_of([*runs[:3], *other], ARMS)}
    assert shares == {BASELINE: 1.0, PLAIN: 0.5, DRAFTED: 0.5}


def test_equal_texts_leave_no_difference(runs) -> None:
    assert differences(runs) == []


def test_a_difference_is_named_with_its_place(runs) -> None:
    runs[-1] = replace(runs[-1], token_ids=(1, 2, 7, 4))
    assert [str(d) for d in differences(runs)] == [
        f"{DRAFTED}, json prompt 0, greedy, round 1: differs from {PLAIN} at token 2"
    ]


def test_plain_decoding_must_repeat_itself_too(runs) -> None:
    runs[4] = replace(runs[4], token_ids=(1,))
    assert len(differences(runs)) == 1


def test_seeded_text_must_not_depend_on_drafts_either(runs) -> None:
    sampled = [replace(r, temperature=0.7) for r in runs]
    sampled[-1] = replace(sampled[-1], token_ids=(1, 2, 3, 9))
    assert [str(d) for d in differences([*runs, *sampled])] == [
        f"{DRAFTED}, json prompt 0, T = 0.7, round 1: differs from {PLAIN} at token 3"
    ]


def test_what_others_sample_is_their_own_affair(runs) -> None:
    assert (
        differences([*runs, run("transformers/assisted", 1.0, token_ids=(8,)), run("llama.cpp", 1.0, token_ids=(7,))])
        == []
    )


def test_a_text_that_stops_early_differs_where_it_stops() -> None:
    assert first_difference((1, 2), (1, 2, 3)) == 2


def test_equal_texts_are_reported_with_their_ratios(runs) -> None:
    answer = result({}, rows_of(runs, ARMS), [], [])
    assert answer["rows"][2]["ratio_to"] == {
        BASELINE: {"min": 2.0, "median": 2.0, "max": 2.0},
        PLAIN: {"min": 2.0, "median": 2.25, "max": 2.5},
    }


def test_unequal_texts_are_reported_without_any_speed(runs) -> None:
    runs[-1] = replace(runs[-1], token_ids=(1,))
    checks = [Check(DRAFTED, 0.0, None, Spread(1.0, 1.0, 1.0), 0.98, True)]
    answer = result({}, rows_of(runs, ARMS), checks, differences(runs))
    assert not answer["greedy_equal"]
    assert answer["checks"] == []
    assert [(row["tokens_per_s"], row["ratio_to"]) for row in answer["rows"]] == [(None, {})] * 3
    assert [row["greedy_equal"] for row in answer["rows"]] == [True, True, False]


def test_a_difference_in_sampled_text_says_nothing_of_greedy_text(runs) -> None:
    sampled = [replace(r, temperature=0.7) for r in runs]
    sampled[-1] = replace(sampled[-1], token_ids=(1,))
    both = [*runs, *sampled]
    answer = result({}, rows_of(both, ARMS), [], differences(both))
    assert (answer["greedy_equal"], answer["seeded_equal"]) == (True, False)
    assert [(row["greedy_equal"], row["seeded_equal"]) for row in answer["rows"][2::3]] == [(True, None), (None, False)]


def paired(arm: str, *ratios: float, domain: str = "json") -> list[Run]:
    """Runs of `arm` and of PLAIN, a round each, so much faster."""
    both = [(run(PLAIN, 1.0, round=i), run(arm, 1 / ratio, round=i)) for i, ratio in enumerate(ratios)]
    return [replace(r, domain=domain) for pair in both for r in pair]


@pytest.mark.parametrize(("median", "holds"), [(0.985, True), (0.975, False)])
def test_a_drafter_that_is_off_may_cost_two_percent(median, holds) -> None:
    (check,) = checks_of(paired(ATTACHED, 0.5, median, 2.0), (PLAIN, ATTACHED))
    assert (check.cohort, round(check.ratio.median, 3), check.holds) == (None, median, holds)


def test_adaptive_k_is_held_to_k_0_cohort_by_cohort() -> None:
    runs = [*paired(ADAPTIVE, 1.5, 1.6), *paired(ADAPTIVE, 0.98, 0.985, domain="fiction")]
    assert {c.cohort: c.holds for c in checks_of(runs, (PLAIN, ADAPTIVE))} == {"json": True, "fiction": False}


def test_an_arm_that_drafts_by_order_is_held_to_nothing(runs) -> None:
    assert checks_of(runs, ARMS) == []


def test_prompts_are_spread_over_their_set() -> None:
    assert spread_over([str(i) for i in range(60)], 3) == ["0", "20", "40"]


def test_more_prompts_than_there_are_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="--prompts 3"):
        spread_over(["a", "b"], 3)


def test_rows_are_appended_under_one_header(runs, tmp_path) -> None:
    path = tmp_path / "decode.csv"
    for date in ("2026-11-29", "2026-11-30"):
        append_csv(path, {"date": date}, rows_of(runs, ARMS))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["date"] for row in rows] == ["2026-11-29"] * 3 + ["2026-11-30"] * 3
    assert [row["ratio_median"] for row in rows[:3]] == ["", "0.9", "2.0"]


def test_a_csv_with_other_columns_is_left_alone(runs, tmp_path) -> None:
    path = tmp_path / "decode.csv"
    path.write_text("date,speed\n2026-11-29,1\n")
    with pytest.raises(BenchmarkError, match="other columns"):
        append_csv(path, {"date": "2026-11-30"}, rows_of(runs, ARMS))
    assert path.read_text() == "date,speed\n2026-11-29,1\n"


def test_a_csv_of_fewer_columns_gets_the_others_and_keeps_its_rows(runs, tmp_path) -> None:
    path = tmp_path / "decode.csv"
    path.write_text("date,domain,arm\n2026-11-29,json,transformers\n")
    append_csv(path, {"date": "2026-11-30"}, rows_of(runs, ARMS))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {name: value for name, value in rows[0].items() if value} == {
        "date": "2026-11-29", "domain": "json", "arm": "transformers",
    }  # fmt: skip
