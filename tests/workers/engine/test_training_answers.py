"""Answers are computed once, survive a crash, and are the target's own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from workers.training.answers import AnswerFiles, Question, answered

QUESTIONS = [Question("default", False, (3, 5, 7 + i), 0.7 if i % 2 else 0.0, i % 2, 12) for i in range(6)]


@pytest.fixture
def ask_all(make_engine):
    """The answers to questions, from a fresh engine."""
    return lambda questions, until=math.inf: list(answered(make_engine(0, "none", slots=4), questions, "w", until))


@pytest.fixture
def computed(ask_all):
    return ask_all(QUESTIONS)


def test_each_question_is_answered_once(computed) -> None:
    assert sorted(a.key for a in computed) == sorted(q.key("w") for q in QUESTIONS)


def test_an_answer_does_not_depend_on_what_was_asked_beside_it(ask_all, computed) -> None:
    alone = {a.key: a.token_ids for q in QUESTIONS for a in ask_all([q])}
    assert {a.key: a.token_ids for a in computed} == alone


def test_what_was_stored_is_read_back(computed, tmp_path) -> None:
    files = AnswerFiles(tmp_path)
    list(files.append(computed, "a"))
    assert files.read() == {a.key: a for a in computed}


def test_a_half_written_line_is_passed_over_and_the_file_goes_on(computed, tmp_path) -> None:
    files = AnswerFiles(tmp_path)
    list(files.append(computed[:2], "a"))
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"key": "half')
    list(files.append(computed[2:], "a"))
    assert len(files.read()) == len(computed)


@pytest.mark.parametrize("change", [{"temperature": 0.1}, {"seed": 9}, {"max_tokens": 9}, {"prompt_token_ids": (1,)}])
def test_the_key_depends_on_all_that_the_answer_depends_on(change) -> None:
    assert replace(QUESTIONS[0], **change).key("w") != QUESTIONS[0].key("w")
    assert QUESTIONS[0].key("other") != QUESTIONS[0].key("w")


def test_after_the_deadline_no_question_is_begun(ask_all) -> None:
    assert ask_all(QUESTIONS, until=0.0) == []
