"""Cohorts over days and months, from the rollups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.store.engine import open_database, writing
from controlplane.store.migrate import upgrade
from controlplane.store.rollup import Amounts, Part, add_to_rollups
from controlplane.store.rollup_series import rollup_series
from controlplane.store.time_range import TimeRange

DAY_S = 86_400
START = 20_000 * DAY_S
YEAR = TimeRange(START, START + 365 * DAY_S)


@pytest.fixture
def engine(tmp_path: Path):
    """code: 100 tokens in the first hour, 50 a day later; chat: 30 in the second hour."""
    url = f"sqlite:///{tmp_path / 'k.db'}"
    upgrade(url)
    found = open_database(url)
    windows: list[tuple[Any, list[Part]]] = [
        (window(START + at), [Part(name, None, "input", Amounts(1, tokens=999)), Part(name, None, "output", amounts)])
        for at, name, amounts in (
            (
                0,
                "code",
                Amounts(
                    10, tokens=100, steps=40, planned_k_steps=80, draft_tokens=60, accepted_tokens=50, spec_steps=20
                ),
            ),
            (3600, "chat", Amounts(10, tokens=30, steps=30)),
            (
                DAY_S,
                "code",
                Amounts(
                    10, tokens=50, steps=25, planned_k_steps=25, draft_tokens=25, accepted_tokens=25, spec_steps=None
                ),
            ),
        )
    ]
    with writing(found).begin() as connection:
        add_to_rollups(connection, windows)
    yield found
    found.dispose()


def window(at: float) -> SimpleNamespace:
    return SimpleNamespace(started_at=at, device="gpu", model="m", energy_source="none")


def shown(points: Any) -> list[tuple[float, str, int]]:
    return [((p.at - START) / 3600, p.cohort, p.emitted_tokens) for p in points]


def test_hours_are_apart_in_buckets_of_an_hour(engine):
    assert shown(rollup_series(engine, YEAR, 3600)) == [(0, "code", 100), (1, "chat", 30), (24, "code", 50)]


def test_days_are_summed_in_buckets_of_two_days(engine):
    assert shown(rollup_series(engine, YEAR, 2 * DAY_S)) == [(0, "chat", 30), (0, "code", 150)]


def test_prompt_tokens_are_not_emitted_ones(engine):
    assert sum(p.emitted_tokens for p in rollup_series(engine, YEAR, DAY_S)) == 180


def test_cohorts_together_are_one_point_a_bucket(engine):
    assert shown(rollup_series(engine, YEAR, 2 * DAY_S, apart=False)) == [(0, "", 180)]


def test_only_the_cohorts_that_were_asked_for_are_read(engine):
    assert shown(rollup_series(engine, YEAR, DAY_S, cohorts=("chat",))) == [(0, "chat", 30)]
    assert rollup_series(engine, YEAR, DAY_S, model="another") == []


def test_k_is_by_step_and_acceptance_length_by_step_with_a_draft(engine):
    first = rollup_series(engine, YEAR, 3600)[0]
    assert (first.planned_k, first.mean_k, first.acceptance_length) == (2.0, 1.5, 1 + 50 / 20)
    assert (first.spec_steps, first.plain_steps) == (20, 20)
    assert first.tokens_per_s == 100 / 3600


@pytest.mark.parametrize("bucket_s", [DAY_S, 2 * DAY_S])
def test_where_a_part_does_not_know_its_steps_with_a_draft_the_bucket_does_not_either(engine, bucket_s):
    last = rollup_series(engine, YEAR, bucket_s, cohorts=("code",))[-1]
    assert (last.spec_steps, last.plain_steps, last.acceptance_length) == (None, None, None)
    assert last.planned_k is not None


def test_without_a_step_with_a_draft_there_is_no_acceptance_length(engine):
    (chat,) = rollup_series(engine, YEAR, DAY_S, cohorts=("chat",))
    assert (chat.spec_steps, chat.plain_steps, chat.acceptance_length) == (0, 30, None)


def test_a_bucket_has_the_time_of_the_hours_that_are_read_for_it(engine):
    (first,) = rollup_series(engine, TimeRange(START + 1800, START + 3000), 3600)
    assert first.seconds == 3000
    (of_two_hours, *_) = rollup_series(engine, TimeRange(START + 5400, START + DAY_S), 7200)
    assert (of_two_hours.seconds, of_two_hours.emitted_tokens) == (3600, 30)


@pytest.mark.parametrize("bucket_s", [0, 60, 5400])
def test_a_bucket_that_is_not_whole_hours_is_refused(engine, bucket_s):
    with pytest.raises(ValueError, match="whole number of hours"):
        rollup_series(engine, YEAR, bucket_s)
