"""The production estimator alone, as the checks of estimators want it: one cohort, steps that are independent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.control.cost import Ints
from benchmarks.control.estimators import Emitted
from controlplane.decision.drift import Drift
from controlplane.decision.estimate import Estimate
from controlplane.decision.observation import Evidence
from controlplane.telemetry import MAX_K

Z_95 = 1.959964


def fit(counts: Ints) -> Emitted:
    """What is believed of a law that does not drift after counts[k, accepted]."""
    independent = replace(Estimate.of_nothing(1), spread=np.ones(1))
    return _emitted(independent.absorb(_evidence(counts)), len(counts))


class Tracker:
    """Step by step, with the drift alarm."""

    def __init__(self, depth: int) -> None:
        self._rungs = depth + 1
        self._estimate, self._drift = Estimate.of_nothing(1), Drift.none(1)

    def absorb(self, counts: Ints) -> None:
        self._drift, _, self._estimate = self._drift.follow(self._estimate, _evidence(counts))

    def emitted(self) -> Emitted:
        return _emitted(self._estimate, self._rungs)


def _emitted(estimate: Estimate, rungs: int) -> Emitted:
    outlook = estimate.outlook()
    mean, sd = outlook.emitted[0, :rungs], outlook.emitted_sd[0, :rungs]
    return Emitted(mean, mean - Z_95 * sd, mean + Z_95 * sd)


def _evidence(counts: Ints) -> Evidence:
    """[1, MAX_K] of counts[k, accepted]: at position j, rungs over j with at least j tokens kept were examined."""
    rungs = len(counts)
    reached, accepted, planned = np.zeros((1, MAX_K)), np.zeros((1, MAX_K)), np.zeros((1, MAX_K))
    for j in range(rungs - 1):
        deeper = counts[j + 1 :]
        planned[0, j], reached[0, j] = deeper.sum(), deeper[:, j:].sum()
        accepted[0, j] = deeper[:, j + 1 :].sum()
    return Evidence(planned, planned, reached, reached, accepted)
