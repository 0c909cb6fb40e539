"""Prompts are many, different, and never judged by a template that was trained on."""

from __future__ import annotations

import json

import pytest

from workers.training.prompts import DOMAINS, PromptError, read_prompts, shipped_prompts


def test_each_domain_has_three_hundred_prompts_to_train_on_and_more_to_judge_by() -> None:
    prompts = shipped_prompts()
    for domain in DOMAINS:
        texts = [p.text for p in prompts if p.domain == domain and not p.held_out]
        assert len(set(texts)) == len(texts) >= 300
        assert len({p.text for p in prompts if p.domain == domain and p.held_out}) >= 75


def test_no_prompt_is_both_trained_on_and_held_out() -> None:
    prompts = shipped_prompts()
    assert not {p.text for p in prompts if p.held_out} & {p.text for p in prompts if not p.held_out}


def test_no_placeholder_is_left_unfilled() -> None:
    assert [p.text for p in shipped_prompts() if "{task}" in p.text or "{things}" in p.text] == []


def test_ones_own_prompts_are_split_the_same_way_every_time(tmp_path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {i}"}) + "\n" for i in range(200)))
    prompts = read_prompts(path)
    assert prompts == read_prompts(path)
    assert 10 < sum(p.held_out for p in prompts) < 40


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "mine.jsonl:2: is not JSON"),
        ('{"prompt": " "}', "mine.jsonl:2: prompt: must be a text that is not empty"),
        ('{"prompt": "a", "domian": "x"}', "mine.jsonl:2: domian: unknown key"),
        ('{"prompt": "a", "held_out": 1}', "mine.jsonl:2: held_out: must be true or false"),
        ('{"prompt": "a", "domain": ""}', "mine.jsonl:2: domain: must be a name"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, reason) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(PromptError, match=reason):
        read_prompts(path)


def test_prompts_without_any_to_judge_by_are_refused(tmp_path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "held_out": false}\n')
    with pytest.raises(PromptError, match="held-out ones to judge by"):
        read_prompts(path)
