from itertools import islice
from pathlib import Path

import pytest

from workers.load.mix import MixError, load_mix, load_prompts, parse_duration, parse_mix, planned_requests

ONE = "version: 1\ncohorts:\n  - {name: a, prompts: [hello]}\n"


def error_of(text: str) -> str:
    with pytest.raises(MixError) as raised:
        parse_mix(text, "mix.yaml", Path("/nowhere"))
    return str(raised.value)


def test_the_shipped_mix_has_the_four_cohorts_with_prompts_enough() -> None:
    mix = load_mix("default")
    assert [cohort.name for cohort in mix.cohorts] == ["code", "json", "contract", "fiction"]
    assert all(len(set(cohort.prompts)) >= 40 for cohort in mix.cohorts)


def test_no_shipped_prompt_has_an_unfilled_part() -> None:
    assert not [p for cohort in load_mix("default").cohorts for p in cohort.prompts if "{" in p or "}" in p]


def test_the_shipped_mix_samples_at_the_temperature_that_was_promised() -> None:
    assert {cohort.temperature for cohort in load_mix("default").cohorts} == {0.7}


def test_an_unknown_mix_lists_the_shipped_ones() -> None:
    with pytest.raises(MixError, match=r"shipped: default$"):
        load_mix("peak-hour")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE + "concurency: 3\n", "mix.yaml: concurency: unknown key"),
        (ONE.replace("hello", "''"), "mix.yaml: cohorts.0.prompts.0: "),
        (ONE.replace("name: a", "name: a b"), "mix.yaml: cohorts.0.name: "),
        (ONE.replace("prompts", "weight: 0, prompts"), "mix.yaml: cohorts.0.weight: input should be greater than 0"),
        (ONE.replace("prompts", "temperature: 3, prompts"), "mix.yaml: cohorts.0.temperature: "),
        (ONE.replace("[hello]", "[]"), "mix.yaml: cohorts.0.prompts: "),
        (ONE.replace("version: 1", "version: 2"), "mix.yaml: version: "),
        ("version: 1\ncohorts: []\n", "mix.yaml: cohorts: "),
        ("- a\n", "mix.yaml: must be a mapping"),
        ("a: [\n", "mix.yaml: not valid YAML"),
        (ONE + "  - {name: a, prompts: [x]}\n", "mix.yaml: cohorts: named twice: a"),
        (ONE.replace("[hello]", "sonnets"), "prompts 'sonnets': no such file"),
    ],
)
def test_a_wrong_mix_names_the_field(text: str, message: str) -> None:
    assert error_of(text).startswith(message)


def test_all_problems_of_a_mix_come_at_once() -> None:
    assert len(error_of(ONE.replace("prompts", "max_tokens: 0, weight: -1, prompts")).splitlines()) == 2


def test_prompts_may_be_lines_of_a_text_file_beside_the_mix(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("one\n\ntwo\n")
    assert load_prompts("mine.txt", tmp_path) == ["one", "two"]


def test_a_template_is_filled_with_every_subject_once(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("templates: ['a {subject}', 'b {subject}', 'c']\nsubjects: [x, y]\n")
    assert load_prompts("p.yaml", tmp_path) == ["a x", "b x", "c", "a y", "b y"]


def test_a_subject_that_lacks_a_part_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("templates: ['{clause} of {contract}']\nsubjects: [{clause: x}]\n")
    with pytest.raises(MixError, match="a subject lacks 'contract'"):
        load_prompts("p.yaml", tmp_path)


def test_every_stretch_of_a_run_has_the_shares_of_the_weights() -> None:
    text = "version: 1\ncohorts: [{name: a, weight: 3, prompts: [x]}, {name: b, weight: 1, prompts: [y]}]\n"
    mix = parse_mix(text, "mix.yaml", Path())
    cohorts = [request.cohort for request in islice(planned_requests(mix), 40)]
    assert {cohorts[i : i + 4].count("b") for i in range(0, 40, 4)} == {1}


def test_every_prompt_is_used_before_one_comes_again() -> None:
    mix = load_mix("default")
    rounds = islice(planned_requests(mix), 4 * 48)
    prompts = [request.prompt for request in rounds if request.cohort == "json"]
    assert len(set(prompts)) == 48


def test_the_same_seed_gives_the_same_requests() -> None:
    mix = load_mix("default")
    assert list(islice(planned_requests(mix, seed=5), 20)) == list(islice(planned_requests(mix, seed=5), 20))


def test_another_seed_gives_another_order() -> None:
    mix = load_mix("default")
    first, second = ([r.prompt for r in islice(planned_requests(mix, seed=s), 20)] for s in (5, 6))
    assert first != second


def test_without_a_seed_sampling_is_unseeded() -> None:
    assert next(planned_requests(load_mix("default"))).seed is None


def test_requests_of_a_seeded_run_have_seeds_of_their_own() -> None:
    assert [r.seed for r in islice(planned_requests(load_mix("default"), seed=7), 3)] == [7, 8, 9]


def test_a_temperature_for_all_replaces_that_of_the_mix() -> None:
    assert next(planned_requests(load_mix("default"), temperature=0.0)).temperature == 0.0


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), ("2m", 120), ("500ms", 0.5), ("1h", 3600), ("1.5", 1.5)])
def test_a_duration_carries_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0s", "-1s", "1 day", "1e3s"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MixError, match="such as 60s"):
        parse_duration(text)
