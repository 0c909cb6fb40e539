"""What the savings page reads: the experiments on record, the chosen one's report, its pairs, and how it got there."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from controlplane.experiment import Run
from controlplane.finops.confidence_sequence import MIN_PAIRS
from controlplane.finops.savings import Measure, Pair, Saving, saving
from controlplane.finops.savings_report import Report, pairs_of
from controlplane.policy import Experiment
from controlplane.store.experiment_report import priced_arms, report_of_arms
from controlplane.store.experiments import experiments, find_experiment
from controlplane.store.policies import policy_in_force
from dashboard.ledger import Ledger

T = TypeVar("T")

LOOKS_MOST = 80
KEPT_S = 60.0
"""A report is made of all raw windows of an experiment, so it is made again once in so many seconds at most."""
KEPT_MOST = 16


class Asked(NamedTuple):
    """experiment: a name, None = the newest."""

    experiment: str | None
    measure: Measure


class Told(NamedTuple):
    """One experiment as it stands: as `kadence experiment report` prints it, and the pairs that it counts."""

    report: Report
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True)
class SavingsReading:
    """runs: the newest. told: of the chosen one, None where there is none. looks: the measure as it stood after pair
    after pair; unadjusted: as it stands without an adjustment for what was offered. section: the policy's in force.
    """

    runs: Sequence[Run]
    told: Told | None
    measure: Measure
    looks: Sequence[Saving]
    unadjusted: Saving | None
    section: Experiment | None


def read_savings(ledger: Ledger, asked: Asked) -> SavingsReading:
    engine = ledger.engine
    run = find_experiment(engine, asked.experiment)
    section = _section(ledger)
    runs = experiments(engine)
    if run is None:
        return SavingsReading(runs, None, asked.measure, (), None, section)
    basis = ledger.basis or ledger.sheet.default_basis
    minute = int(ledger.now // KEPT_S)
    key = (ledger.identity, run, basis, ledger.sheet.revision, minute)

    def tell() -> Told:
        arms = priced_arms(engine, run, ledger.sheet, basis)
        return Told(report_of_arms(engine, run, arms, ledger.sheet, ledger.now, basis), pairs_of(run, arms)[0])

    told = _kept(("told", *key), tell)
    looks = _kept(("looks", *key, asked.measure), lambda: looks_at(run, told.pairs, asked.measure))
    plain = saving(told.pairs, asked.measure, target=run.spec.pairs, pair_every_s=run.spec.pair_every_s, adjust=False)
    return SavingsReading(runs, told, asked.measure, looks, plain, section)


def looks_at(run: Run, pairs: Sequence[Pair], measure: Measure, most: int = LOOKS_MOST) -> list[Saving]:
    """What the report said after so many pairs, from the first that it said anything of to now.

    At most `most` of them, evenly spread, the last one among them: what the report says now.
    """
    used = [pair for pair in pairs if pair.log_ratio(measure) is not None]
    if len(used) < MIN_PAIRS:
        return []
    counts = np.unique(np.linspace(MIN_PAIRS, len(used), min(most, len(used) - MIN_PAIRS + 1)).round().astype(int))
    spec = run.spec
    return [saving(used[:n], measure, target=spec.pairs, pair_every_s=spec.pair_every_s) for n in counts.tolist()]


def _section(ledger: Ledger) -> Experiment | None:
    try:
        return policy_in_force(ledger.engine).experiment
    except ValueError:
        return None


_memory: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def _kept(key: Hashable, work: Callable[[], T]) -> T:
    """work(), once for this key: what a new window does not make old, unlike Ledger.cached. Sessions share it."""
    with _lock:
        if key in _memory:
            return cast("T", _memory[key])
    value = work()
    with _lock:
        _memory[key] = value
        while len(_memory) > KEPT_MOST:
            _memory.popitem(last=False)
    return value
