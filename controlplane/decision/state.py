"""All that the control loop remembers between two ticks, as one value."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from controlplane.decision.cells import NEVER, CellStates, Probes
from controlplane.decision.drift import KEPT, Drift
from controlplane.decision.estimate import Estimate, Outlook
from controlplane.decision.guard import nearest
from controlplane.decision.latency import StepTimes
from controlplane.decision.observation import BINS, BUCKETS, RUNGS, Floats, Ints
from controlplane.decision.policy_table import FIXED, PolicyTable
from controlplane.decision.power import Power
from controlplane.decision.ranks import RankEstimate
from controlplane.decision.tree_rungs import CHAINS, Kept, Shapes, with_trees
from controlplane.decision.tuners.slots import Prices
from controlplane.policy import Policy
from controlplane.telemetry import MAX_K

T = TypeVar("T")

GONE_S = 60.0
"""What no window named for this long is gone; until then a late window, or a tick with others only, changes nothing."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Names that windows had lately, and when last, unix seconds."""

    names: tuple[str, ...] = ()
    at: tuple[float, ...] = ()

    def is_news(self, names: Sequence[str], now: float) -> bool:
        """Whether there is a name that was not heard lately, beside names that were heard before."""
        known = {name for name, at in zip(self.names, self.at, strict=True) if now - at <= GONE_S}
        # Where nobody spoke for long, the last to have spoken is whom others are compared with.
        known = known or {name for name, at in zip(self.names, self.at, strict=True) if at == max(self.at)}
        return bool(known) and not set(names) <= known

    def heard(self, names: Sequence[str], now: float) -> Heard:
        """With `names` heard now, and what is gone forgotten; the same for none."""
        if not names:
            return self
        at = {name: at for name, at in zip(self.names, self.at, strict=True) if now - at <= GONE_S}
        at |= dict.fromkeys(names, now)
        return Heard(tuple(sorted(at)), tuple(at[name] for name in sorted(at)))


@dataclass(frozen=True, slots=True, eq=False)
class DecisionState:
    """Beliefs about text (by cohort), about the machine (times, power), and guard state (by cohort and load).

    drift_at: [cohorts] last drift alarm. seen_at: [cohorts, MAX_K] when each position was last examined. running:
    [cohorts, loads] discounted sequence-steps. tpot: [cohorts, bins] and tpot_sum_s [cohorts], discounted. Times in
    unix seconds. over_slo_since: [cohorts], NaN where TPOT is within the SLO. told: [cohorts, loads, 2] the K and the
    reason code last told of a cell, -2 for none. drafters, setups: those heard lately; profiled_on: whose
    profile `times` began with. prices: of the last tick.
    ranks: acceptance by rank in token trees, of all cohorts; shapes: which rungs are trees; kept: what these brought.
    decided_at: last tick.
    """

    table: PolicyTable
    estimate: Estimate
    drift: Drift
    drift_at: Floats
    seen_at: Floats
    cells: CellStates
    probes: Probes
    running: Floats
    tpot: Floats
    tpot_sum_s: Floats
    over_slo_since: Floats
    told: Ints
    times: StepTimes | None = None
    power: Power = Power.unknown()  # noqa: RUF009 - a value
    drafters: Heard = Heard()
    setups: Heard = Heard()
    profiled_on: tuple[str, ...] = ()
    prices: Prices | None = None
    ranks: RankEstimate = field(default_factory=RankEstimate.of_nothing)
    shapes: Shapes = CHAINS
    kept: Kept = field(default_factory=lambda: Kept.nothing(0))
    decided_at: float = NEVER

    @classmethod
    def start(cls, policy: Policy) -> DecisionState:
        """Knowing nothing."""
        table = PolicyTable.of(policy)
        n = len(table.names)
        return cls(
            table=table,
            estimate=Estimate.of_nothing(n),
            drift=Drift.none(n),
            drift_at=np.full(n, NEVER),
            seen_at=np.full((n, MAX_K), NEVER),
            cells=CellStates.fresh(n),
            probes=Probes.none(n),
            running=np.zeros((n, BUCKETS)),
            tpot=np.zeros((n, BINS)),
            tpot_sum_s=np.zeros(n),
            over_slo_since=np.full(n, np.nan),
            told=np.full((n, BUCKETS, 2), -2),
            kept=Kept.nothing(n),
        )

    @property
    def outlook(self) -> Outlook:
        """What a K would bring each cohort, as a chain or as the tree that it is."""
        estimate = self.estimate
        return with_trees(estimate.outlook(), estimate.hazards(), self.ranks, self.shapes, self.kept)

    @property
    def k(self) -> Ints:
        """[cohorts, loads]: K for the plan. A cell not decided lately follows its neighbour, else `start`."""
        table = self.table
        known = nearest(self.cells)
        k = np.where(known < 0, table.start[:, None], known)
        k = np.where((table.tuner == FIXED)[:, None], table.start[:, None], k)
        return self.probes.planned(k)

    def planned(self) -> dict[str, Any]:
        """What a plan says of cohorts, loads and costs, by its names: the fields that Plan and StagedPlan share."""
        return {
            "k": self.k_by_load(),
            "survival": self.survival(),
            "price": self.price(),
            "depth": self.depth(),
            "probing": self.probing(),
            "drafted": self.drafted(),
            "charges": self.charges(),
        }

    def k_by_load(self) -> dict[str, tuple[int, ...]]:
        """K by cohort and load bucket, as the plan says it."""
        return {name: tuple(row) for name, row in zip(self.table.names, self.k.tolist(), strict=True)}

    def survival(self) -> dict[str, tuple[float, ...]]:
        """What the draft positions of the priced cohorts bring, as the plan says it."""
        if self.prices is None:
            return {}
        chance = np.round(self.prices.chance, 4)
        return {self.table.names[i]: tuple(chance[i].tolist()) for i in np.flatnonzero(self.table.is_ragged)}

    def probing(self) -> dict[str, int]:
        """The load bucket in which a cohort's probe runs, by name."""
        probes = self.probes
        return {self.table.names[i]: int(probes.load_bucket[i]) for i in np.flatnonzero(probes.is_active)}

    def price(self) -> tuple[float, ...]:
        """The price of a position at PRICE_LOADS, as the plan says it; empty where no cohort is priced."""
        return () if self.prices is None else tuple(np.round(self.prices.price, 4).tolist())

    def depth(self) -> tuple[int, ...]:
        """The deepest draft that pays at PRICE_LOADS, as the plan says it; empty where no cohort is priced."""
        return () if self.prices is None else tuple(self.prices.depth.tolist())

    def charges(self) -> tuple[tuple[float, ...], ...]:
        """What steps cost at PRICE_LOADS, as the plan says it; empty where no cohort is priced."""
        return () if self.prices is None else self.prices.charges.table()

    def drafted(self) -> dict[str, tuple[float, ...]]:
        """How often priced cohorts' drafter has a token, by position, as the plan says it, where it may be silent."""
        if self.prices is None:
            return {}
        drafted = np.round(self.prices.drafted, 4)
        silent = self.table.is_ragged & (drafted < 1.0).any(axis=1)
        return {self.table.names[i]: tuple(drafted[i].tolist()) for i in np.flatnonzero(silent)}

    def carried(self, policy: Policy) -> DecisionState:
        """Under another policy. A cohort that keeps its name and ladder keeps what was learnt, and with the same tuner
        its cells too; another ladder means that its K mean something else."""  # noqa: D209
        fresh = DecisionState.start(policy)
        old = {c.name: (i, c) for i, c in enumerate(self.table.cohorts)}
        state = replace(fresh, times=self.times, power=self.power, ranks=self.ranks, shapes=self.shapes)
        state = replace(state, drafters=self.drafters, setups=self.setups, profiled_on=self.profiled_on)
        for i, cohort in enumerate(fresh.table.cohorts):
            where, before = old.get(cohort.name, (-1, cohort))
            if where < 0 or before.speculation.ladder != cohort.speculation.ladder:
                continue
            state = state.with_beliefs_of(i, self, where)
            if before.speculation.tuner == cohort.speculation.tuner:
                state = state.with_cells_of(i, self, where)
        return state

    def with_beliefs_of(self, cohort: int, other: DecisionState, where: int) -> DecisionState:
        """With what `other` believes of its cohort `where` for our `cohort`."""
        rows: dict[str, Any] = {
            name: _row(getattr(self, name), getattr(other, name), cohort, where)
            for name in ("drift_at", "seen_at", "running", "tpot", "tpot_sum_s", "over_slo_since")
        }
        estimate = _copied(self.estimate, other.estimate, cohort, where)
        drift = _copied(self.drift, other.drift, cohort, where)
        return replace(self, estimate=estimate, drift=drift, kept=_copied(self.kept, other.kept, cohort, where), **rows)

    def with_cells_of(self, cohort: int, other: DecisionState, where: int) -> DecisionState:
        """With the guard's cells and the probe of `other`'s cohort `where`, and what was told of them."""
        return replace(
            self,
            cells=_copied(self.cells, other.cells, cohort, where),
            probes=_copied(self.probes, other.probes, cohort, where),
            told=_row(self.told, other.told, cohort, where),
        )

    def resting(self, now: float) -> DecisionState:
        """With every probe dropped and every wait begun anew, as after a kill switch."""
        known = self.cells.k >= 0
        cells = replace(
            self.cells,
            changed_at=np.where(known, now, self.cells.changed_at),
            waits_from=np.where(known, now, self.cells.waits_from),
            before_k=np.full_like(self.cells.before_k, -1),
        )
        return replace(self, cells=cells, probes=Probes.none(len(self.table.names)))

    def resumed(self, k: Mapping[str, tuple[int, ...]], now: float) -> DecisionState:
        """With the cells as an earlier plan had them, so that a restarted controller goes on from there."""
        table = self.table
        ks = self.cells.k.copy()
        for i, name in enumerate(table.names):
            for b, planned in enumerate(k.get(name, ())):
                if 0 <= planned < RUNGS and table.is_rung[i, planned]:
                    ks[i, b] = planned
        known = ks >= 0
        cells = replace(
            self.cells,
            k=ks,
            changed_at=np.where(known, now, self.cells.changed_at),
            waits_from=np.where(known, now, self.cells.waits_from),
            decided_at=np.where(known, now, self.cells.decided_at),
        )
        return replace(self, cells=cells)

    def retold(self, names: Collection[str]) -> DecisionState:
        """With all decisions on the cohorts of these names to be told anew, for what they pursue has changed."""
        changed = np.isin(self.table.names, list(names))
        return replace(self, told=np.where(changed[:, None, None], -2, self.told))

    def doubting(self, now: float) -> DecisionState:
        """With hardly anything left of what was believed of drafts: the drafter was swapped."""
        n = len(self.table.names)
        return replace(
            self,
            estimate=self.estimate.keep(np.full(n, KEPT)),
            drift=Drift.none(n),
            drift_at=np.full(n, now),
            probes=Probes.none(n),
            times=None,
            ranks=RankEstimate.of_nothing(),
            shapes=CHAINS,
            kept=Kept.nothing(n),
        )


def _row(ours: npt.NDArray[Any], theirs: npt.NDArray[Any], cohort: int, where: int) -> npt.NDArray[Any]:
    out = ours.copy()
    out[cohort] = theirs[where]
    return out


def _copied(ours: T, theirs: T, cohort: int, where: int) -> T:
    """One cohort's row of every array in a dataclass of arrays, dataclasses of arrays within it included."""
    changed: dict[str, Any] = {}
    for each in fields(cast("Any", ours)):
        mine, other = getattr(ours, each.name), getattr(theirs, each.name)
        is_array = isinstance(mine, np.ndarray)
        changed[each.name] = (_row if is_array else _copied)(mine, other, cohort, where)
    return cast("T", replace(cast("Any", ours), **changed))
