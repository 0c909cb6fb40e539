"""Recorded worlds: made from files, the same for a seed, and honest about silence and cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.control.arms import clairvoyant, fixed
from benchmarks.control.arms.base import Setting, drive
from benchmarks.control.ours import Ours
from benchmarks.control.profile import RECORDED, ProfileError, parse_profile, recorded_profiles
from benchmarks.control.record import step_code
from benchmarks.control.recorded import RecordedProfile, RecordedWorld, build_recorded
from benchmarks.control.recording import load_steps, load_times
from benchmarks.control.score import rates, score
from benchmarks.control.trace import run_trace

PROFILE = """
version: 1
kind: recorded
name: replayed
ladder: [0, 1, 2, 4]
steps: 300
steps_per_second: 10
timing_noise: 0.0
recorded: {steps: steps.json, times: times.csv, block_steps: 20}
load: {median: 4, spread: 0.5, correlation_steps: 50, most: 8}
cohorts:
  - {name: code}
  - {name: chat, domain: fiction}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Code keeps all of its drafts and is never silent; fiction is silent in two of three steps and keeps nothing."""
    code = [step_code(4, 4, 2) * 40]
    fiction = [(step_code(0, 0, 2) * 2 + step_code(4, 0, 2)) * 20]
    steps = {"about": {"depth": 4}, "steps": {"code": code, "fiction": fiction}}
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    rows = ["sequences,k,context,seconds,draft_seconds"]
    rows += [f"{n},{k},192,{0.05 + 0.002 * n * (k + 1):.4f},{0.0001 * n * k:.5f}" for n in (1, 4, 8) for k in (0, 2, 4)]
    (tmp_path / "times.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


@pytest.fixture
def profile(folder: Path) -> RecordedProfile:
    found = parse_profile(PROFILE, str(folder / "profile.yaml"))
    assert isinstance(found, RecordedProfile)
    return found


@pytest.fixture
def world(profile: RecordedProfile) -> RecordedWorld:
    return build_recorded(profile, 3)


def test_the_same_seed_gives_the_same_world(profile: RecordedProfile, world: RecordedWorld) -> None:
    again = build_recorded(profile, 3)
    for name in ("sequences", "joint", "survival", "mean_drafted", "noise"):
        assert np.array_equal(getattr(world, name), getattr(again, name)), name


def test_another_seed_gives_another_world(profile: RecordedProfile, world: RecordedWorld) -> None:
    assert not np.array_equal(world.sequences, build_recorded(profile, 4).sequences)


def test_every_sequence_replays_one_recorded_step(world: RecordedWorld) -> None:
    assert np.array_equal(world.joint.sum(axis=(2, 3)), world.sequences)


def test_load_stays_within_what_was_timed(world: RecordedWorld) -> None:
    assert world.sequences.sum(axis=1).max() <= 8


def test_a_silent_step_has_no_draft_and_costs_none(world: RecordedWorld) -> None:
    t = int(np.argmax((world.joint[:, 1, 0].sum(axis=1) == world.sequences[:, 1]) & (world.sequences[:, 1] > 0)))
    outcome = world.outcome(t, np.array([0, 4]))
    assert outcome.drafted is not None
    assert outcome.drafted[1, 1:].sum() == 0
    assert outcome.seconds == pytest.approx(world.outcome(t, np.array([0, 0])).seconds)


def test_k_censors_what_was_drafted_and_kept(world: RecordedWorld) -> None:
    t = int(np.argmax(world.sequences[:, 0] > 0))
    outcome = world.outcome(t, np.array([2, 0]))
    assert outcome.drafted is not None
    assert outcome.drafted[0, 2, 2] == outcome.counts[0, 2] == world.sequences[t, 0]


def test_time_is_that_of_the_recorded_table(world: RecordedWorld) -> None:
    k = np.zeros_like(world.sequences)
    running = world.sequences.sum(axis=1)
    assert world.step_seconds(k) == pytest.approx(0.05 + 0.002 * running)


def test_expected_time_counts_the_silence(world: RecordedWorld) -> None:
    """Over whole periods of the recording, what is expected is what was drawn."""
    k = np.full_like(world.sequences, 4)
    assert world.step_seconds(k).mean() == pytest.approx(world.drawn_seconds(k).mean(), rel=0.02)


def test_no_way_of_choosing_beats_the_clairvoyant_in_any_step(world: RecordedWorld) -> None:
    best = rates(world, clairvoyant.plan(world))
    for k in world.profile.ladder:
        assert (best >= rates(world, np.full_like(world.sequences, k)) - 1e-9).all()


def test_the_clairvoyant_drafts_for_what_is_kept_alone(world: RecordedWorld) -> None:
    k = clairvoyant.plan(world)
    both = (world.sequences > 0).all(axis=1)
    assert (k[both, 0] == 4).all()
    assert (k[both, 1] == 0).all()


def test_the_production_controller_learns_a_recorded_world(world: RecordedWorld) -> None:
    k = drive(Ours(Setting(world.profile, world.cost, 3)), world)
    found = score(world, k, clairvoyant.plan(world), fixed.best(world))
    assert found.percent_of_clairvoyant > 90.0


def test_jumps_are_not_tried_on_recordings(profile: RecordedProfile) -> None:
    assert run_trace(profile.model_copy(update={"steps": 100}), 0, True).adaptations == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name: code", "name: poems", "'poems' is not recorded; code, fiction are"),
        ("{name: code}", "{name: code, levels: [0.5]}", "a recorded cohort has only name, share and domain"),
        ("[0, 1, 2, 4]", "[0, 1, 2, 8]", "needs every K from 0 to 8"),
        ("steps: steps.json", "steps: nothing.json", "is no recording of steps"),
        ("load:", "cost: {draft_share: 0}\nload:", "comes from recorded.times"),
    ],
)
def test_a_wrong_recorded_profile_is_told(folder: Path, old: str, new: str, words: str) -> None:
    assert old in PROFILE
    with pytest.raises(ProfileError, match=words):
        parse_profile(PROFILE.replace(old, new), str(folder / "profile.yaml"))


def test_a_recording_that_keeps_more_than_it_drafts_is_refused(folder: Path) -> None:
    bad = folder / "bad.json"
    bad.write_text(json.dumps({"about": {"depth": 4}, "steps": {"code": [step_code(1, 2, 1)]}}))
    with pytest.raises(ProfileError, match="keeps more than it drafts"):
        load_steps(bad)


def test_a_table_with_a_hole_is_refused(folder: Path) -> None:
    bad = folder / "bad.csv"
    bad.write_text("\n".join((folder / "times.csv").read_text().splitlines()[:-1]))
    with pytest.raises(ProfileError, match=r"needs every K"):
        load_times(bad, 4)


def test_the_shipped_recordings_load_and_are_small() -> None:
    assert [profile.name for profile in recorded_profiles()] == ["recorded-greedy", "recorded-seeded"]
    assert sum(path.stat().st_size for path in RECORDED.iterdir()) < 300_000
