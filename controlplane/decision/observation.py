"""What one tick saw, of all workers together: windows merged into arrays over the policy's cohorts.

Merging is adding, so neither the order of the windows nor how cohorts are spread over workers matters. A cohort that
the policy does not name (it was renamed while requests ran) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from controlplane.step_columns import StepColumns
from controlplane.telemetry import LATENCY_BOUNDS_S, LOAD_BUCKETS, MAX_K, ProfileCell, RankCount, WorkerWindow

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

BUCKETS, RUNGS, BINS = len(LOAD_BUCKETS), MAX_K + 1, len(LATENCY_BOUNDS_S) + 1
KINDS = 4
"""Of cells: whether a shadow, whether of trees."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Counts by draft position, f64 [..., MAX_K]; position j is the (j + 1)-th draft token.

    planned: steps whose K reaches the position. drafted: those that had a token there. reached: planned ones that kept
    all tokens before it and went on. examined: those of them that had a token there; accepted: how many of these were
    kept, or the sum of their overlap mass where the kernel gave it.
    """

    planned: Floats
    drafted: Floats
    reached: Floats
    examined: Floats
    accepted: Floats

    @classmethod
    def nothing(cls, *shape: int) -> Evidence:
        return cls(*(np.zeros((*shape, MAX_K)) for _ in range(5)))

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(
            self.planned + other.planned,
            self.drafted + other.drafted,
            self.reached + other.reached,
            self.examined + other.examined,
            self.accepted + other.accepted,
        )

    def at(self, index: int | tuple[int, ...] | Flags | Ints) -> Evidence:
        """Of some of the cohorts or cells."""
        return Evidence(
            self.planned[index], self.drafted[index], self.reached[index], self.examined[index], self.accepted[index]
        )

    def alone(self) -> Evidence:
        """[MAX_K] as the only row of [1, MAX_K]."""
        return Evidence(*(a[None] for a in self._all()))

    def scaled(self, share: Floats) -> Evidence:
        """With every count of each cohort times `share` [cohorts]."""
        return Evidence(*(a * share[:, None] for a in self._all()))

    def where(self, cohorts: Flags, other: Evidence) -> Evidence:
        """Of these cohorts, and `other` of the rest."""
        of = cohorts[:, None]
        return Evidence(*(np.where(of, a, b) for a, b in zip(self._all(), other._all(), strict=True)))

    def of_chains(self, cells: Flags) -> Evidence:
        """With nothing examined in cells but these."""
        of = cells[:, None]
        return replace(self, reached=self.reached * of, examined=self.examined * of, accepted=self.accepted * of)

    def over(self, propensity: Floats | None) -> Evidence:
        """Divided by `propensity`, of the same shape; as it is for None."""
        return self if propensity is None else Evidence(*(a / propensity for a in self._all()))

    def summed(self, group: Ints, groups: int) -> Evidence:
        """Rows added up by `group` [rows] i64 into [groups, MAX_K]."""
        return Evidence(*(_grouped(a, group, groups) for a in self._all()))

    def _all(self) -> tuple[Floats, ...]:
        return (self.planned, self.drafted, self.reached, self.examined, self.accepted)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The tick's steps by (cohort, load bucket, K asked for, whether a shadow, whether of token trees).

    A tree's nodes are no chain's positions: what was examined of them is no evidence of chains, only that there were so
    many. What a tree says of chains, its first path, comes as a shadow.

    Cells in which K was chosen from the request's own history stand alone, their evidence divided by the probability
    that K would reach each position (inverse propensity, adaptive.md 3.1 b): deep positions were then looked at where
    much was expected of them.

    cohort, load_bucket, k: [cells] i64. is_shadow, is_tree: [cells] bool. steps, emitted, emitted_squared, seconds:
    [cells] f64, sums over real steps (a shadow has none) of 1, the tokens, their square, and wall seconds. evidence:
    [cells, MAX_K].
    """

    cohort: Ints
    load_bucket: Ints
    k: Ints
    is_shadow: Flags
    is_tree: Flags
    steps: Floats
    emitted: Floats
    emitted_squared: Floats
    seconds: Floats
    evidence: Evidence


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """cells: steps by cell. tpot: [cohorts, bins] i64 of LATENCY_BOUNDS_S, tpot_sum_s [cohorts].

    latency: [cells, 6] f64, engine steps as telemetry.LatencyCell. power: [windows, 4] f64 of those with an energy
    reading: seconds, busy seconds, positions, joules. profile: measured at the workers' starts. drafters: names seen.
    ranks: of all cohorts, where trees were verified; trees: (planned K, parents) of those. setups, profiled: drafter
    and device of all windows, and of those with a profile.
    """

    cells: Cells
    tpot: Ints
    tpot_sum_s: Floats
    latency: Floats
    power: Floats
    profile: tuple[ProfileCell, ...]
    drafters: tuple[str, ...]
    ranks: tuple[RankCount, ...] = ()
    trees: tuple[tuple[int, tuple[int, ...]], ...] = ()
    setups: tuple[str, ...] = ()
    profiled: tuple[str, ...] = ()

    @classmethod
    def of(cls, windows: Sequence[WorkerWindow], cohorts: Sequence[str]) -> Observation:
        """Of a tick's windows; `cohorts` names what cohort indices mean."""
        columns = [w.columns if w.columns is not None else StepColumns.of(w.cohorts) for w in windows]
        index = {name: i for i, name in enumerate(cohorts)}
        known: list[Ints] = []
        for i, c in enumerate(columns):  # many workers have the same cohorts active
            is_alike = i > 0 and c.cohorts == columns[i - 1].cohorts
            known.append(known[-1] if is_alike else np.array([index.get(name, -1) for name in c.cohorts], np.int64))
        tpot, tpot_sum_s = np.zeros((len(cohorts), BINS), np.int64), np.zeros(len(cohorts))
        for c, where in zip(columns, known, strict=True):
            # Few cohorts finished a request in the second; a window names one once, so that plain indexing adds up.
            finished = np.flatnonzero((c.tpot_sum_s != 0.0) & (where >= 0))
            tpot[where[finished]] += c.tpot[finished]
            tpot_sum_s[where[finished]] += c.tpot_sum_s[finished]
        return cls(
            cells=_merged(columns, known, len(cohorts)),
            tpot=tpot,
            tpot_sum_s=tpot_sum_s,
            latency=_table((cell for w in windows for cell in w.latency), 6),
            power=_table(
                ((w.seconds, w.busy_s, w.positions, w.energy_uj / 1e6) for w in windows if w.energy_uj is not None), 4
            ),
            profile=tuple(cell for w in windows for cell in w.profile),
            drafters=tuple(sorted({w.drafter for w in windows})),
            ranks=tuple(count for c in columns for count in c.ranks),
            trees=tuple(sorted({tree for c in columns for tree in c.trees})),
            setups=tuple(sorted({f"{w.drafter} on {w.device}" for w in windows})),
            profiled=tuple(sorted({f"{w.drafter} on {w.device}" for w in windows if w.profile})),
        )


def _table(rows: Iterable[Sequence[float]], width: int) -> Floats:
    return np.array(list(rows), np.float64).reshape(-1, width)


def _merged(columns: Sequence[StepColumns], known: Sequence[Ints], cohorts: int) -> Cells:
    """The cells of all windows with equal keys added up."""
    if not columns:
        empty, none = np.zeros(0), np.zeros(0, np.int64)
        no = none.astype(np.bool_)
        return Cells(none, none, none, no, no, empty, empty, empty, empty, Evidence.nothing(0))
    cohort = np.concatenate([where[c.cohort] for c, where in zip(columns, known, strict=True)])
    k = np.minimum(np.concatenate([c.k for c in columns]), MAX_K)
    bucket = np.concatenate([c.load_bucket for c in columns])
    kind = np.concatenate([c.is_shadow + 2 * c.is_tree for c in columns])
    # Where each cell of each window goes: the place of its key among the keys that occur.
    key = ((cohort * BUCKETS + bucket) * RUNGS + k) * KINDS + kind
    occurs = np.zeros(cohorts * BUCKETS * RUNGS * KINDS, np.bool_)
    is_named = cohort >= 0
    alone = np.flatnonzero(is_named & np.concatenate([_is_chosen(c.propensity) for c in columns]))
    is_shared = is_named.copy()
    is_shared[alone] = False
    occurs[key[is_shared]] = True
    shared = np.flatnonzero(occurs)
    place = np.zeros(len(occurs), np.int64)
    place[shared] = np.arange(len(shared))
    keys = np.concatenate([shared, key[alone]])
    goes_to = np.where(is_shared, place[np.where(is_shared, key, 0)], len(keys))
    goes_to[alone] = len(shared) + np.arange(len(alone))
    rows = _rows(columns, goes_to, np.append(keys // KINDS % RUNGS, 0), len(keys))
    overlap = _merged_overlap([c.overlap for c in columns], goes_to, len(keys))
    overlap_steps = _merged_overlap([c.overlap_steps.astype(np.float64) for c in columns], goes_to, len(keys))
    seconds = np.bincount(goes_to, np.concatenate([c.step_seconds for c in columns]), len(keys) + 1)[: len(keys)]
    cell_k, shadow, tree = keys // KINDS % RUNGS, (keys % 2).astype(np.bool_), keys % KINDS >= 2
    real, went_on, kept = np.where(shadow, 0.0, 1.0), rows.accepted - rows.ended, np.arange(RUNGS, dtype=np.float64)
    return Cells(
        cohort=keys // (KINDS * RUNGS * BUCKETS),
        load_bucket=keys // (KINDS * RUNGS) % BUCKETS,
        k=cell_k,
        is_shadow=shadow,
        is_tree=tree,
        steps=real * rows.accepted.sum(axis=1),
        emitted=real * (went_on @ (kept + 1.0) + rows.ended @ kept),
        emitted_squared=real * (went_on @ (kept + 1.0) ** 2 + rows.ended @ kept**2),
        seconds=real * seconds,
        evidence=_evidence(rows, cell_k, overlap, overlap_steps)
        .of_chains(~tree)
        .over(_propensity([c.propensity for c in columns], alone, len(shared))),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """All rows added up by their cell, f64 [cells, RUNGS], sums of steps.

    accepted: by accepted tokens. ended: of those, the steps in which the text ended inside the draft. had_token: of
    accepted, those that went on and had a draft token more. drafted: by drafted tokens.
    """

    accepted: Floats
    ended: Floats
    had_token: Floats
    drafted: Floats


def _rows(columns: Sequence[StepColumns], goes_to: Ints, k: Ints, cells: int) -> _Rows:
    """Of all windows. goes_to: [cells of all windows], where each goes, `cells` for nowhere; k: [cells + 1].

    Rows are very many and mostly alike: drafted as deep as planned, and not ended. So all are summed up once, and those
    that are not so beside them. Sums of counts are exact, in whatever order.
    """
    counts = [len(c.row_cell) for c in columns]
    total = sum(counts)
    at, accepted = np.empty(total, np.int64), np.empty(total, np.int64)
    steps, ended = np.empty(total), np.empty(total, np.bool_)
    is_full, is_short = np.empty(total, np.bool_), np.empty(total, np.bool_)
    drafted = np.empty(total, np.int64)
    row = cell = 0
    for c, count in zip(columns, counts, strict=True):
        here, place = slice(row, row + count), goes_to[cell : cell + len(c.k)]
        np.take(place, c.row_cell, out=at[here], mode="clip")
        np.minimum(c.accepted, MAX_K, out=accepted[here])
        np.minimum(c.drafted, MAX_K, out=drafted[here])
        np.less_equal(drafted[here], accepted[here], out=is_full[here])
        np.not_equal(drafted[here], k[place][c.row_cell], out=is_short[here])
        steps[here], ended[here] = c.steps, c.ended
        row, cell = row + count, cell + len(c.k)

    def by(cell: Ints, value: Ints, of: Floats) -> Floats:
        """[cells, RUNGS]: `of` added up by cell and value; what goes nowhere is left out."""
        size = (cells + 1) * RUNGS
        table = np.bincount(cell * RUNGS + value, of, size).astype(np.float64)
        return table.reshape(cells + 1, RUNGS)[:cells]

    def of(which: Flags, value: Ints) -> Floats:
        index = np.flatnonzero(which)
        return by(at[index], value[index], steps[index])

    by_accepted = by(at, accepted, steps)
    by_ended = of(ended, accepted)
    short = np.flatnonzero(is_short)
    by_drafted = of(is_short, drafted)
    as_planned = by_accepted.sum(axis=1) - np.bincount(at[short], steps[short], cells + 1)[:cells]
    by_drafted[np.arange(cells), k[:cells]] += as_planned
    return _Rows(by_accepted, by_ended, by_accepted - by_ended - of(is_full & ~ended, accepted), by_drafted)


def _is_chosen(propensity: Floats) -> Flags:
    """[cells]: whether K was chosen from the request's own history."""
    if not propensity.shape[1]:
        return np.zeros(len(propensity), np.bool_)
    is_less: Flags = np.asarray((propensity < 1.0).any(axis=1))
    return is_less


def _propensity(propensities: Sequence[Floats], alone: Ints, shared: int) -> Floats | None:
    """[cells, MAX_K]: 1 for the cells that came together, the reported ones for those that stand alone; None for all 1.

    A position that K could hardly have reached would count for very many: no more than 100 steps for one.
    """
    if not len(alone):
        return None
    every = np.ones((sum(len(p) for p in propensities), MAX_K))
    start = 0
    for p in propensities:
        every[start : start + len(p), : p.shape[1]] = p
        start += len(p)
    return np.concatenate([np.ones((shared, MAX_K)), np.maximum(every[alone], 0.01)])


def _merged_overlap(overlaps: Sequence[Floats], goes_to: Ints, cells: int) -> Floats:
    """[cells, MAX_K]: overlap sums of all windows, each as wide as it was deep, added up."""
    out = np.zeros((cells + 1, MAX_K))
    start = 0
    for overlap in overlaps:
        size, width = overlap.shape
        if width:
            np.add.at(out[:, :width], goes_to[start : start + size], overlap)
        start += size
    return out[:cells]


def _evidence(rows: _Rows, k: Ints, overlap: Floats, overlap_steps: Floats) -> Evidence:
    """Kaplan-Meier counts of each cell: censored by K, by a silent drafter and by an end inside the draft."""

    def deeper(counts: Floats) -> Floats:
        """[cells, MAX_K]: how many lie above position j."""
        tail: Floats = counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        return tail

    kept = deeper(rows.accepted)
    could_have = (rows.accepted - rows.ended)[:, :-1]
    is_planned = k[:, None] > np.arange(MAX_K)
    total = rows.accepted.sum(axis=1, keepdims=True)
    examined = kept + rows.had_token[:, :-1]
    has_overlap = (overlap_steps == examined) & (examined > 0)
    return Evidence(
        planned=np.where(is_planned, total, 0.0),
        drafted=deeper(rows.drafted),
        # A step that drafted beyond its K (none should) is taken at its word.
        reached=np.maximum(kept + np.where(is_planned, could_have, 0.0), examined),
        examined=examined,
        accepted=np.where(has_overlap, np.minimum(overlap, examined), kept),
    )


def _grouped(values: Floats, group: Ints, groups: int) -> Floats:
    """Rows of [rows, width] added up by `group` into [groups, width]."""
    width = values.shape[1]
    flat = (group[:, None] * width + np.arange(width)).ravel()
    out: Floats = np.bincount(flat, values.ravel(), groups * width).reshape(groups, width).astype(np.float64)
    return out
