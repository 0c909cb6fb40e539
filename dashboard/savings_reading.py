"""What the savings page reads: the experiments on record, the chosen one's report, its pairs, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from controlplane.experiment import Run
from controlplane.finops.confidence_sequence import MIN_PAIRS
from controlplane.finops.savings import Measure, Pair, Saving, saving
from controlplane.finops.savings_report import Report, pairs_of
from controlplane.policy import Experiment
from controlplane.store.experiment_report import priced_arms, report_of_arms
from controlplane.store.experiments import experiments, find_experiment
from dashboard.ledger import Ledger
from dashboard.policy_reading import policy_in_force

LOOKS_MOST = 80


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
    policy = policy_in_force(engine)
    section = None if policy is None else policy.experiment
    runs = experiments(engine)
    if run is None:
        return SavingsReading(runs, None, asked.measure, (), None, section)
    now = told(ledger, run)
    spec, measure = run.spec, asked.measure
    looks, plain = ledger.cached_minute(
        ("looks", run, ledger.main_basis, ledger.sheet.revision, measure),
        lambda: (
            looks_at(run, now.pairs, measure),
            saving(now.pairs, measure, target=spec.pairs, pair_every_s=spec.pair_every_s, adjust=False),
        ),
    )
    return SavingsReading(runs, now, measure, looks, plain, section)


def told(ledger: Ledger, run: Run) -> Told:
    """The experiment as it stands. It is made of all of its raw windows, so it is made again once a minute at most."""
    engine, sheet, basis = ledger.engine, ledger.sheet, ledger.main_basis

    def tell() -> Told:
        arms = priced_arms(engine, run, sheet, basis)
        return Told(report_of_arms(engine, run, arms, sheet, ledger.now, basis), pairs_of(run, arms)[0])

    return ledger.cached_minute(("told", run, basis, sheet.revision), tell)


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
