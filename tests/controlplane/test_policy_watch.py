"""The policy file of a running system: what counts as a change, and what a bad file does."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

import pytest

from controlplane.policy import Policy, parse_policy
from controlplane.policy_watch import PolicyWatch, follow

TEXT = """\
version: 1
cohorts:
  - {name: default, match: {}, speculation: {tuner: fixed, ladder: [0, 2, 4], start: 2, fallback: 0}}
"""
OTHER = TEXT.replace("start: 2", "start: 4")
BAD = TEXT.replace("start: 2", "start: 3").replace("fallback: 0", "fallback: 1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def watch(path: Path) -> PolicyWatch:
    watch = PolicyWatch(path, parse_policy(TEXT).revision)
    assert settle(watch) is None
    return watch


def settle(watch: PolicyWatch) -> Policy | None:
    """Two looks: the second reads what no longer changes."""
    first = watch.poll()
    assert first is None
    return watch.poll()


def test_a_changed_good_file_is_handed_out_once(watch: PolicyWatch, path: Path) -> None:
    path.write_text(OTHER)
    policy = settle(watch)
    assert policy is not None
    assert policy.text == OTHER
    assert settle(watch) is None


def test_a_file_that_differs_from_what_was_applied_is_handed_out_at_the_start(path: Path) -> None:
    path.write_text(OTHER)
    found = settle(PolicyWatch(path, parse_policy(TEXT).revision))
    assert found is not None


def test_a_touched_file_has_not_changed(watch: PolicyWatch, path: Path) -> None:
    os.utime(path, ns=(1, 1))
    assert settle(watch) is None


def test_a_file_that_is_still_being_written_is_not_read(watch: PolicyWatch, path: Path) -> None:
    path.write_text("")
    assert watch.poll() is None
    path.write_text(OTHER)
    assert watch.poll() is None
    assert watch.problems == ()
    assert watch.poll() is not None


def test_a_file_that_is_replaced_by_another_of_its_size_and_time_is_read(watch: PolicyWatch, path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text(OTHER)
    shutil.copystat(path, new)
    os.replace(new, path)
    assert settle(watch) is not None


def test_a_bad_file_is_reported_with_all_problems_and_logged_once(
    watch: PolicyWatch, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text(BAD)
    with caplog.at_level(logging.WARNING):
        assert [watch.poll() for _ in range(5)] == [None] * 5
    assert [problem.partition(": ")[2].partition(":")[0] for problem in watch.problems] == [
        "cohorts[0].speculation.start",
        "cohorts[0].speculation.fallback",
    ]
    assert len(caplog.records) == 1


def test_a_repaired_file_has_no_problems_and_is_handed_out(watch: PolicyWatch, path: Path) -> None:
    path.write_text(BAD)
    settle(watch)
    path.write_text(OTHER)
    assert settle(watch) is not None
    assert watch.problems == ()


def test_a_file_that_goes_back_after_a_mistake_counts_as_changed(watch: PolicyWatch, path: Path) -> None:
    # Another policy may have been applied meanwhile: whoever saves the file wants the file.
    path.write_text(BAD)
    settle(watch)
    path.write_text(TEXT)
    assert settle(watch) is not None


def test_a_file_that_is_gone_is_a_problem_until_it_is_back(watch: PolicyWatch, path: Path) -> None:
    path.unlink()
    assert settle(watch) is None
    assert "cannot be read" in watch.problems[0]
    path.write_text(OTHER)
    assert settle(watch) is not None
    assert watch.problems == ()


def test_following_goes_on_after_a_policy_that_could_not_be_applied(path: Path) -> None:
    applied: list[str] = []

    def apply(policy: Policy) -> None:
        applied.append(policy.revision)
        if len(applied) == 1:
            raise RuntimeError("no")

    async def run() -> None:
        following = asyncio.create_task(follow(PolicyWatch(path, None), apply, every_s=0.005))
        for wanted in (1, 2):
            while len(applied) < wanted:
                await asyncio.sleep(0.005)
            path.write_text(OTHER)
        following.cancel()

    asyncio.run(asyncio.wait_for(run(), 5))
    assert applied == [parse_policy(TEXT).revision, parse_policy(OTHER).revision]
