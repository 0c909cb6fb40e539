"""K chosen from a request's own history censors its drafts by what is expected of them: weights undo that."""

import random

import pytest

from controlplane.decision.estimate import Estimate
from controlplane.decision.observation import Observation
from controlplane.telemetry import CohortWindow, StepCell, StepCount

EASY, HARD, EXPLORED = 0.9, 0.4, 0.2


def seen(loop, rng: random.Random, cohort, *, weighted: bool) -> Observation:  # type: ignore[no-untyped-def]
    """Half of the requests are easy; the deep K goes to these, and to EXPLORED of the others."""
    counts: dict[tuple[tuple[float, ...], int, int], int] = {}
    for _ in range(6_000):
        hazard = rng.choice((EASY, HARD))
        deep = 1.0 if hazard == EASY else EXPLORED
        k = 4 if rng.random() < deep else 1
        accepted = 0
        while accepted < k and rng.random() < hazard:
            accepted += 1
        propensity = (1.0, deep, deep, deep) if weighted else ()
        key = (propensity, k, accepted)
        counts[key] = counts.get(key, 0) + 1
    cells: dict[tuple[tuple[float, ...], int], list[StepCount]] = {}
    for (propensity, k, accepted), steps in sorted(counts.items()):
        cells.setdefault((propensity, k), []).append(StepCount(k, accepted, False, steps))
    window = CohortWindow("code", tuple(StepCell(0, k, tuple(c), 1.0, propensity=p) for (p, k), c in cells.items()))
    return Observation.of([loop(cohort).window(1.0, [window])], ["code"])


@pytest.mark.parametrize(("weighted", "error"), [(True, 0.03), (False, None)])
def test_inverse_propensity_weights_make_the_deep_hazard_unbiased(loop, cohort_policy, weighted, error) -> None:  # type: ignore[no-untyped-def]
    observed = seen(loop, random.Random(1), cohort_policy(), weighted=weighted)
    evidence = observed.cells.evidence.summed(observed.cells.cohort, 1)
    hazard = float(Estimate.of_nothing(1).absorb(evidence).hazards().mean[0, 1])
    truth = (EASY**2 + HARD**2) / (EASY + HARD)  # of those that kept the first token, by how many there are
    if error is None:
        assert hazard > truth + 0.05  # without them, too much is promised
    else:
        assert hazard == pytest.approx(truth, abs=error)
