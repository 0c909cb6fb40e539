"""A world of what a real engine did: its drafts with their silence, and its step times, replayed.

A cohort replays one domain of a recording taken at the deepest rung, uncensored. Its steps are resampled in blocks: the
trace is cut into stretches of `block_steps`, each stretch begins at a place of the recording that the seed draws, and
sequences that run beside each other replay neighbouring blocks, as neighbours did when it was recorded. Under K a step
has the first K of its recorded draft tokens, and keeps as many of these as it kept. (That the text then stands at
another place for the next draft, as on a real engine, is not replayed.) A step takes the recorded time of so many
sequences and so many draft tokens each in the mean, times the timing noise.

The law by which arms are judged, and which the clairvoyant arm knows, is the recording smoothed: at each place the
share of the SMOOTHING steps around it, half before and half after, that drafted so deep and kept so much, averaged over
the sequences that run. So it knows the near future, which no arm does: a ceiling rather too high than too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from benchmarks.control.cost import Cost, Floats, Ints
from benchmarks.control.profile import Cohort, Profile
from benchmarks.control.recording import RecordedSteps, StepTable, load_steps, load_times
from benchmarks.control.world import StepOutcome, World, sequences_of, stream

SMOOTHING = 101
"""Steps; odd."""


class Files(BaseModel):
    """steps, times: files of `benchmarks.control.record`. block_steps: length of a stretch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: Path
    times: Path
    block_steps: Annotated[int, Field(ge=10, le=100_000)] = 200


class RecordedCohort(Cohort):
    """domain: whose recording it replays; the cohort's name where nothing is said."""

    domain: str = ""

    @model_validator(mode="after")
    def _has_no_law(self) -> RecordedCohort:
        if law := sorted(self.model_fields_set - {"name", "share", "domain"}):
            raise ValueError(f"{law[0]}: a recorded cohort has only name, share and domain")
        return self

    @property
    def replays(self) -> str:
        return self.domain or self.name


class RecordedProfile(Profile):
    """A profile with kind: recorded. Its cost is the recorded table."""

    recorded: Files
    cohorts: Annotated[tuple[RecordedCohort, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _cost_from_table(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("recorded"), dict):
            return values
        if "cost" in values:
            raise ValueError("cost: comes from recorded.times; leave it out")
        ladder = values.get("ladder")
        depth = max((k for k in ladder if isinstance(k, int)), default=0) if isinstance(ladder, list) else 0
        table = load_times(Path(str(values["recorded"].get("times", ""))), depth)
        alone = {1: 1e3 * float(table.seconds[1, 0])}
        return {**values, "cost": {"verify_ms": alone, "context": table.context, "draft_share": 0.0}}

    @model_validator(mode="after")
    def _is_recorded(self) -> RecordedProfile:
        recording = load_steps(self.recorded.steps)
        if self.depth > recording.depth:
            raise ValueError(f"ladder: goes to {self.depth}, the recording to {recording.depth}")
        for cohort in self.cohorts:
            if cohort.replays not in recording.domains:
                raise ValueError(f"cohorts: {cohort.replays!r} is not recorded; {', '.join(recording.domains)} are")
        return self


class RecordedCost(Cost):
    """Times from the table."""

    @cached_property
    def table(self) -> StepTable:
        assert isinstance(self.profile, RecordedProfile)
        return load_times(self.profile.recorded.times, self.profile.depth)

    def padded(self, sequences: int, deepest: Ints, positions: Ints) -> Ints:
        """The table has what was measured, padding and all."""
        return positions

    def at(self, running: Ints, mean_k: Floats) -> Floats:
        """Seconds of steps of `running` sequences with `mean_k` draft tokens each, of equal shapes."""
        return _between(self.table.seconds, running, mean_k)

    def drafting_at(self, running: Ints, mean_k: Floats) -> Floats:
        """The part spent drafting."""
        return _between(self.table.draft_seconds, running, mean_k)

    def seconds(self, sequences: Ints, k: Ints) -> Floats:
        """Were every draft as long as K."""
        return self.at(*_means(sequences, k))

    def drafting(self, sequences: Ints, k: Ints) -> Floats:
        """Were every draft as long as K."""
        return self.drafting_at(*_means(sequences, k))

    def step(self, sequences: Any, k: Any) -> tuple[float, float]:
        """Were every draft as long as K."""
        both = np.array(sequences), np.array(k)
        return float(self.seconds(*both)), float(self.drafting(*both))


@dataclass(frozen=True)
class RecordedWorld(World):
    """joint: [step, cohort, drafted, accepted] sequences, uncensored. mean_drafted: [step, cohort, K] draft tokens that
    a sequence of the cohort is expected to have under K."""  # noqa: D209

    joint: Ints
    mean_drafted: Floats

    def step_seconds(self, k: Ints) -> Floats:
        return self._seconds(self.mean_drafted * self.sequences[:, :, None], k)

    def drawn_seconds(self, k: Ints) -> Floats:
        return self._seconds(_cumulated(self.joint.sum(axis=3)), k) * self.noise

    def _seconds(self, drafted: Floats, k: Ints) -> Floats:
        """drafted: [step, cohort, K] draft tokens of all sequences of a cohort."""
        total = np.take_along_axis(drafted, k[:, :, None], axis=2)[:, :, 0].sum(axis=1)
        running = self.sequences.sum(axis=1)
        return self._cost.at(running, total / np.maximum(running, 1))

    def outcome(self, t: int, k: Ints) -> StepOutcome:
        """Step t with K by cohort."""
        seen = self.joint[t].copy()
        for joint, depth in zip(seen, k.tolist(), strict=True):
            joint[depth] = joint[depth:].sum(axis=0)
            joint[depth + 1 :] = 0
            joint[:, depth] = joint[:, depth:].sum(axis=1)
            joint[:, depth + 1 :] = 0
        running = self.sequences[t].sum()
        total = (seen.sum(axis=(0, 2)) * np.arange(seen.shape[1])).sum()
        where = np.array(running), np.array(total / max(int(running), 1))
        noise = float(self.noise[t])
        return StepOutcome(
            self.sequences[t],
            k,
            seen.sum(axis=1),
            float(self._cost.at(*where)) * noise,
            float(self._cost.drafting_at(*where)) * noise if total else 0.0,
            drafted=seen,
        )

    def best_by_step(self) -> Ints:
        """[step, cohort] K with most expected tokens per second of all ways to give each cohort a rung."""
        ladder, cohorts = self.profile.ladder, range(len(self.profile.cohorts))
        running = self.sequences.sum(axis=1)
        tokens = self.sequences[:, :, None] * self.expected_tokens
        drafted = self.sequences[:, :, None] * self.mean_drafted
        best, chosen = np.full(self.steps, -1.0), np.zeros_like(self.sequences)
        for way in product(ladder, repeat=len(cohorts)):
            total = sum((drafted[:, c, k] for c, k in zip(cohorts, way, strict=True)), np.zeros(self.steps))
            emitted = sum((tokens[:, c, k] for c, k in zip(cohorts, way, strict=True)), np.zeros(self.steps))
            rate = emitted / self._cost.at(running, total / np.maximum(running, 1))
            is_better = rate > best
            best[is_better] = rate[is_better]
            chosen[is_better] = way
        return chosen

    @cached_property
    def _cost(self) -> RecordedCost:
        assert isinstance(self.cost, RecordedCost)
        return self.cost


def build_recorded(profile: RecordedProfile, seed: int) -> RecordedWorld:
    """The world of a recorded profile and seed."""
    law, draws = stream(profile, seed, "law"), stream(profile, seed, "outcomes")
    sequences = sequences_of(profile, law)
    recording, depth, block = load_steps(profile.recorded.steps), profile.depth, profile.recorded.block_steps
    joint = np.zeros((*sequences.shape, depth + 1, depth + 1), np.int64)
    kept, drafted = np.empty((*sequences.shape, depth + 1)), np.empty((*sequences.shape, depth + 1))
    for c, cohort in enumerate(profile.cohorts):
        steps = recording.domains[cohort.replays]
        place = _places(sequences[:, c], len(steps.drafted), block, draws)
        is_there = np.arange(place.shape[1]) < np.maximum(sequences[:, c], 1)[:, None]
        for law_of, values in ((drafted, steps.drafted), (kept, steps.accepted)):
            smooth = _smoothed(values, depth)[place]
            law_of[:, c] = np.average(smooth, axis=1, weights=np.broadcast_to(is_there[:, :, None], smooth.shape))
        _add(joint[:, c], steps, place, np.arange(place.shape[1]) < sequences[:, c, None])
    return RecordedWorld(
        profile=profile, seed=seed, cost=RecordedCost(profile), sequences=sequences, survival=kept,
        counts=joint.sum(axis=2), noise=np.exp(draws.normal(0.0, profile.timing_noise, len(sequences))), joint=joint,
        mean_drafted=np.cumsum(drafted, axis=2) - 1.0,
    )  # fmt: skip


def resolved(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A profile's values with the recording's files looked up in the folder of the profile."""
    files = values.get("recorded")
    if not isinstance(files, dict):
        return dict(values)
    found = {
        name: str(folder / str(file)) if name in ("steps", "times") and isinstance(file, str) else file
        for name, file in files.items()
    }
    return {**values, "recorded": found}


def _places(sequences: Ints, length: int, block: int, generator: np.random.Generator) -> Ints:
    """[step, sequence] which recorded step each sequence replays."""
    steps = len(sequences)
    starts = generator.integers(length, size=-(-steps // block))
    at = np.arange(steps)
    beside = block * np.arange(max(int(sequences.max()), 1))
    return (starts[at // block, None] + (at % block)[:, None] + beside[None, :]) % length


def _smoothed(values: Ints, depth: int) -> Floats:
    """[recorded step, j = 0..depth]: share of the steps around it with at least j, the ends joined."""
    reached = (values[:, None] >= np.arange(depth + 1)).astype(np.float64)
    window = min(SMOOTHING, len(values) - 1 + len(values) % 2)
    half = window // 2
    padded = np.concatenate([reached[len(values) - half :], reached, reached[:half]])
    total = np.concatenate([np.zeros((1, depth + 1)), padded.cumsum(axis=0)])
    return (total[window:] - total[:-window]) / window


def _add(joint: Ints, steps: RecordedSteps, place: Ints, is_there: np.ndarray) -> None:
    depth = joint.shape[1] - 1
    t = np.nonzero(is_there)[0]
    at = place[is_there]
    np.add.at(joint, (t, np.minimum(steps.drafted[at], depth), np.minimum(steps.accepted[at], depth)), 1)


def _cumulated(histogram: Ints) -> Floats:
    """[step, cohort, K] draft tokens under K, from how many sequences drafted 0..depth."""
    deeper = histogram[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    out: Floats = np.cumsum(deeper, axis=2).astype(np.float64) - deeper[:, :, :1]
    return out


def _means(sequences: Ints, k: Ints) -> tuple[Ints, Floats]:
    running = np.asarray(sequences.sum(axis=-1))
    return running, (sequences * k).sum(axis=-1) / np.maximum(running, 1)


def _between(table: Floats, running: Ints, mean_k: Floats) -> Floats:
    left = np.minimum(np.floor(mean_k).astype(np.int64), table.shape[1] - 2)
    along = mean_k - left
    out: Floats = table[running, left] * (1.0 - along) + table[running, left + 1] * along
    return out
