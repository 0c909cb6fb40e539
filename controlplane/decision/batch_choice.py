"""K for every cohort of the batch that a worker has just now, within what the plan allows.

The controller prices draft positions for the batch that it expects at a load (tuners/slots.py). The batch that runs is
another one: cohorts come and go within a second, and of a small one there are now none and now two. So a worker takes
the positions of the sequences that it has, in the order of what they bring, and keeps those after which

    V*, d* = argmax over V and d of (tokens without + sum_{i<=V} S_i) / charge(n, V, d)

is greatest: the same sum, over what is there, and over the rows that a worker really computes: it knows how they are
padded, so positions that fit into rows computed anyway cost nothing but their drafting. Rungs of the plan are ceilings.
What was chosen last for such a batch stays where hardly anything is gained over it, or else what the price says: K must
not go to and fro with estimates that move a little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from controlplane.decision.charges import Charges
from controlplane.decision.observation import Floats, Ints
from controlplane.decision.plan import Plan
from controlplane.telemetry import MAX_K, load_bucket

BAND = 0.002
"""Share of the batch's goodput by which other draft positions must be better than those that were drafted before."""

MOST_STANDING = 4096
"""Batches of which is remembered what was chosen last."""

NEVER_SILENT = 1.0 - 1e-9
"""Share of steps with a draft from which on a drafter counts as never silent; its logarithm must not be infinite."""


Counts = frozenset[tuple[str, int]]
"""A batch: (cohort, sequences of it), each cohort once."""

Padded = Callable[[int, Ints, Ints], Ints]
"""(sequences, deepest draft [d, 1], positions to compute [d, n]) -> rows that a step computes for them, [d, n]."""


def unpadded(sequences: int, deepest: Ints, positions: Ints) -> Ints:
    """A worker that computes what there is."""
    return positions


@dataclass(frozen=True, slots=True, eq=False)
class _Drafts:
    """What a cohort's draft positions bring: chance [top], where a token was drafted; drafted [top], P(it was)."""

    chance: Floats
    drafted: Floats


class BatchChoice:
    """A plan as one worker obeys it. worker: its name; drafter: its name@version; padded: how it computes a step.

    standing: what was chosen last for each batch, by all plans of the worker; choices are written into it.
    """

    def __init__(
        self,
        plan: Plan,
        worker: str | None = None,
        drafter: str | None = None,
        padded: Padded = unpadded,
        standing: dict[Counts, dict[str, int]] | None = None,
    ) -> None:
        self._plan, self._worker, self._drafter, self._padded = plan, worker, drafter, padded
        self._standing = {} if standing is None else standing
        self._told = plan.told(worker)
        self._charges = Charges.of_table(self._told.charges) if self._told.charges else None
        self._rows: dict[int, Charges] = {}
        self._drafts: dict[str, _Drafts] = {}

    def k_for(self, counts: Mapping[str, int], now: float) -> dict[str, int]:
        """K by cohort for a step of so many sequences of each (one at least), which run beside each other."""
        running = sum(counts.values())
        asked = {cohort: self._plan.k_for(cohort, running, now, self._worker, self._drafter) for cohort in counts}
        if self._charges is None or running < 2 or not self._plan.is_obeyed(now, self._drafter):
            return asked
        bucket = load_bucket(running)
        # What an unpriced cohort's drafts bring is not in the plan: nothing can be weighed beside them.
        if any(k and c not in self._told.survival for c, k in asked.items()):
            return asked
        ceilings = {
            c: self._ceiling(c, bucket)
            for c in counts
            if c in self._told.survival and self._told.probing.get(c) != bucket
        }
        if not any(ceilings.values()):
            return asked
        batch = _Batch({c: (n, self._drafts_of(c)) for c, n in counts.items()}, self._row(running), self._padded)
        key = frozenset(counts.items())
        last = self._standing.get(key, {})
        stands = asked | {c: min(k, ceilings[c]) for c, k in last.items() if c in ceilings}
        chosen = batch.best(asked, stands, ceilings)
        if len(self._standing) >= MOST_STANDING:
            self._standing.clear()
        self._standing[key] = chosen
        return chosen

    def _ceiling(self, cohort: str, bucket: int) -> int:
        """Whatever a plan says, within what it says of the positions."""
        k = self._told.k[cohort][bucket] if cohort in self._told.k else 0
        return min(max(k, 0), MAX_K, len(self._told.survival[cohort]))

    def _row(self, running: int) -> Charges:
        """The charges of steps of so many sequences, a plain one padded as one with drafts is."""
        row = self._rows.get(running)
        if row is None:
            assert self._charges is not None
            plain = int(self._padded(running, np.zeros((1, 1), np.int64), np.full((1, 1), running))[0, 0])
            row = replace(self._charges.at(running), plain=self._charges.at(plain).plain)
            self._rows[running] = row
        return row

    def _drafts_of(self, cohort: str) -> _Drafts:
        drafts = self._drafts.get(cohort)
        if drafts is None:
            chance = np.array(self._told.survival.get(cohort, ()), np.float64)
            drafted = np.array(self._told.drafted.get(cohort, (1.0,) * len(chance)), np.float64)
            drafts = self._drafts[cohort] = _Drafts(chance, drafted)
        return drafts


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of a sequence in the mean: tokens, draft positions; the logarithm of P(no sequence has a draft); and passes."""

    tokens: float
    deep: float
    silence: float
    passes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """of: cohort -> (sequences, what their drafts bring). charges: of a step of so many sequences, one row."""

    of: Mapping[str, tuple[int, _Drafts]]
    charges: Charges
    padded: Padded

    @property
    def running(self) -> int:
        return sum(n for n, _ in self.of.values())

    def best(self, asked: Mapping[str, int], stands: Mapping[str, int], ceilings: Mapping[str, int]) -> dict[str, int]:
        """The K that bring most, of cohorts in `ceilings` up to these; `stands`, else `asked`, where hardly less."""
        fixed = {c: k for c, k in asked.items() if c not in ceilings and k}
        names, running = [c for c, top in ceilings.items() if top], self.running
        tops = np.array([ceilings[c] for c in names])
        owner, depth = np.nonzero(np.arange(tops.max()) < tops[:, None])
        chance = np.concatenate([self.of[c][1].chance[: ceilings[c]] for c in names])
        drafted = np.concatenate([self.of[c][1].drafted[: ceilings[c]] for c in names])
        order = np.argsort(-chance, kind="stable")
        owner, depth, chance, drafted = (a[order] for a in (owner, depth, chance, drafted))
        many = np.array([self.of[c][0] for c in names])[owner]
        base, passes = self._sums(fixed), np.arange(1, tops.max() + 1)[:, None]
        within = depth < passes
        tokens = base.tokens + (within * many * drafted * chance).cumsum(axis=1) / running
        deep = base.deep + (within * many * drafted).cumsum(axis=1) / running
        # Whether a sequence is silent shows at its first position.
        first = np.where(depth == 0, many * np.log1p(-np.minimum(drafted, NEVER_SILENT)), 0.0)
        silence = base.silence + (within * first).cumsum(axis=1)
        goodput = np.where(within, tokens / self._charged(deep, silence, np.maximum(passes, base.passes)), -np.inf)
        d, last = np.unravel_index(int(goodput.argmax()), goodput.shape)
        best, none = float(goodput[d, last]), self._goodput(base)
        for known in (stands, asked):
            if max(best, none) <= (1.0 + BAND) * self._goodput(self._sums(known)):
                return dict(known)
        taken = np.zeros(len(names), np.int64)
        if best > none:
            taken = np.bincount(owner[: last + 1][within[d, : last + 1]], minlength=len(names))
        return {**dict.fromkeys(self.of, 0), **fixed, **dict(zip(names, taken.tolist(), strict=True))}

    def _sums(self, k: Mapping[str, int]) -> _Sums:
        tokens, deep, silence, running = 1.0, 0.0, 0.0, self.running
        for cohort, (n, drafts) in self.of.items():
            top = k.get(cohort, 0)
            if top:
                tokens += n / running * float((drafts.chance * drafts.drafted)[:top].sum())
                deep += n / running * float(drafts.drafted[:top].sum())
                silence += n * float(np.log1p(-min(float(drafts.drafted[0]), NEVER_SILENT)))
        return _Sums(tokens, deep, silence, max(k.values(), default=0))

    def _charged(self, deep: Floats, silence: Floats, passes: Ints) -> Floats:
        """[d, n]: the charge of steps; deep, silence: [d, n] as in _Sums, passes: [d, 1], one or more."""
        spoken = np.maximum(-np.expm1(silence), 1e-9)
        positions = np.ceil(self.running * (1.0 + deep / spoken) - 1e-6).astype(np.int64)
        laid_out = (self.padded(self.running, passes, positions) / self.running - 1.0) * spoken
        return self.charges.step(laid_out, spoken, passes, deep)

    def _goodput(self, sums: _Sums) -> float:
        if not sums.passes:
            return sums.tokens / float(self.charges.plain[0])
        deep, silence = np.array([[sums.deep]]), np.array([[sums.silence]])
        return sums.tokens / float(self._charged(deep, silence, np.array([[sums.passes]]))[0, 0])
