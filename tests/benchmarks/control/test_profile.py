"""A profile: what ships can be used, and a bad one is refused with every problem and its field."""

from __future__ import annotations

import pytest

from benchmarks.control.profile import ProfileError, load_profile, parse_profile, shipped_profiles


def problems(text: str) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "p.yaml")
    return str(caught.value).splitlines()


def test_three_profiles_ship() -> None:
    assert [profile.name for profile in shipped_profiles()] == ["big-gpu", "early-knee", "small-gpu"]


def test_a_small_profile_is_read(small) -> None:
    assert small.depth == 4
    assert list(small.cost.verify_ms) == [1, 8, 32, 128]
    assert small.timing_noise == 0.03


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("steps: 600", "steps: 0", "p.yaml: steps: input should be greater than or equal to 100"),
        ("draft_share: 0.1", "draft_share: -1", "p.yaml: cost.draft_share: input should be greater than or equal to 0"),
        ("draft_share: 0.1", "draft_share: .inf", "p.yaml: cost.draft_share: input should be a finite number"),
        ("on_cost_ms: 0.4", "on_costs: 1", "p.yaml: cost.on_costs: unknown key"),
        ("128: 40", "128: 12", "p.yaml: cost.verify_ms: more positions must not take less time"),
        ("[1, 2, 4, 8, 16, 24, 32]", "[4, 2]", "p.yaml: cost.padding: must rise from each value to the next"),
        ("ladder: [0, 1, 2, 4]", "ladder: [1, 2]", "p.yaml: ladder: must begin with 0, the rung without drafts"),
        ("ladder: [0, 1, 2, 4]", "ladder: [0, 4, 2]", "p.yaml: ladder: must rise from each value to the next"),
        ("name: chat", "name: code", "p.yaml: cohorts: named twice: code"),
        ("share: 2,", "share: 2, levels: [0.5, 1.0],", "p.yaml: cohorts.0.levels.1: input should be less than 1"),
        ("version: 1", "version: 2", "p.yaml: version: input should be 1"),
        ("median: 12", "median: 300", "p.yaml: load.median: input should be less than or equal to 256"),
    ],
)
def test_a_problem_is_named_by_its_field(small_text, before, after, message) -> None:
    assert before in small_text
    assert problems(small_text.replace(before, after, 1)) == [message]


def test_all_problems_are_told_at_once(small_text) -> None:
    text = small_text.replace("steps: 600", "steps: 1").replace("median: 12", "median: 0")
    assert [line.split(": ")[1] for line in problems(text)] == ["steps", "load.median"]


def test_more_combinations_than_can_be_tried_are_refused(small_text) -> None:
    text = small_text.replace("[0, 1, 2, 4]", str(list(range(17)))) + "  - {name: a}\n  - {name: b}\n"
    (line,) = problems(text)
    assert line.startswith("p.yaml: ladder: 17 rungs for 4 cohorts are over 4096 combinations")


def test_what_is_not_yaml_or_not_a_mapping_is_one_line() -> None:
    (broken,) = problems("a: [")
    assert broken.startswith("p.yaml: not valid YAML: ")
    assert problems("[]") == ["p.yaml: must be a mapping with version, name, ladder, cost, load and cohorts"]


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ProfileError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_profile(tmp_path / "nowhere.yaml")
