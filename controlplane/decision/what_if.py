"""What another K, acceptance, load, price or utilisation would bring, from the beliefs that the controller decides on.

    tokens per second of a busy worker   sum of E[N](K) over sum of T(n, K) / n, over the steps that were seen
    TPOT                                 sum of T(n, K) over sum of E[N](K), seconds of one sequence
    money per token                      price a second / utilisation x (1 / tokens per second + prefill a token)
    joules per token                     watts while busy, joules a position, and idle watts for the idle time

Prefill stays what it was, a token. A step takes what it takes when every sequence beside it drafts the same K, at the
upper bound of its load bucket: what the goodput tuner goes by, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from controlplane.decision.believed import Believed, scaled
from controlplane.decision.latency import AT_BUCKETS, LEAST_STEPS, LOADS
from controlplane.decision.observation import RUNGS, Floats
from controlplane.decision.sentence import load_label

_BOUNDS = LOADS[AT_BUCKETS]
HOUR_S = 3600.0
LEAST_EXAMINED = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What the windows say of the machine beside its steps; None for what is not known.

    price_per_hour: of a worker's machine, in units of a currency. utilisation: busy share of its time, over 0.
    prefill_s, prefill_positions: of prefill, for each emitted token. idle_w: watts of a machine that has no work.
    """

    price_per_hour: float | None = None
    utilisation: float | None = None
    prefill_s: float = 0.0
    prefill_positions: float = 0.0
    idle_w: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What is asked. price, acceptance: times what it is now. utilisation: busy share; load_bucket: index into
    LOAD_BUCKETS; k: for all steps. None: as it is now. cohort: index of the only one that counts, None for all.
    """

    price: float = 1.0
    acceptance: float = 1.0
    utilisation: float | None = None
    load_bucket: int | None = None
    k: int | None = None
    cohort: int | None = None

    @property
    def as_now(self) -> Change:
        """Nothing changed, for the same cohorts."""
        return Change(cohort=self.cohort)


@dataclass(frozen=True, slots=True)
class Brings:
    """tokens_per_s: of one busy worker; sd of it from acceptance alone. tpot_s: mean. money, joules: of a million
    emitted tokens; None where a price, the utilisation or energy is not known."""  # noqa: D209

    tokens_per_s: float
    sd: float
    tpot_s: float
    money: float | None
    joules: float | None


def brings(believed: Believed, machine: Machine, change: Change) -> Brings | None:
    """What the change brings; None without step times, or where no step was seen."""
    weight = asked_steps(believed, change)
    hazards, outlook = believed.hazards, believed.outlook
    if change.acceptance != 1.0:
        outlook = scaled(outlook, hazards, change.acceptance)
    seconds = believed.step_seconds(outlook)
    if seconds is None or not weight.any():
        return None
    tokens = float((weight * outlook.emitted[:, None, :]).sum())
    passed = float((weight * seconds).sum())
    machine_s = float((weight * seconds / _BOUNDS[:, None]).sum())
    positions = float((weight * outlook.positions[:, None, :]).sum())
    sd = float((weight * outlook.emitted_sd[:, None, :]).sum())
    per_token = machine_s / tokens
    busy_s = per_token + machine.prefill_s
    utilisation = machine.utilisation if change.utilisation is None else change.utilisation
    money = None
    if machine.price_per_hour is not None and utilisation:
        money = machine.price_per_hour * change.price / HOUR_S * busy_s / utilisation * 1e6
    joules = None
    rates = believed.state.power.rates()
    if rates is not None and utilisation and (machine.idle_w is not None or utilisation >= 1.0):
        busy_w, position_j = rates
        idle_s = busy_s * (1.0 - utilisation) / utilisation
        computed = positions / tokens + machine.prefill_positions
        joules = (busy_w * busy_s + position_j * computed + (machine.idle_w or 0.0) * idle_s) * 1e6
    return Brings(1.0 / per_token, sd / machine_s, passed / tokens, money, joules)


def asked_steps(believed: Believed, change: Change) -> Floats:
    """[cohorts, loads, MAX_K + 1]: the steps that were seen, moved to the load and the K that are asked for.

    A K that is deeper than a cohort's ladder goes to its deepest rung, as the plan would have no other.
    """
    weight = believed.steps.copy()
    if change.cohort is not None:
        only = np.zeros(len(weight), np.bool_)
        only[change.cohort] = True
        weight[~only] = 0.0
    if change.load_bucket is not None:
        moved = np.zeros_like(weight)
        moved[:, change.load_bucket] = weight.sum(axis=1)
        weight = moved
    if change.k is not None:
        is_rung = believed.state.table.is_rung & (np.arange(RUNGS) <= change.k)
        lowest = believed.state.table.is_rung.argmax(axis=1)
        rung = np.where(is_rung.any(axis=1), RUNGS - 1 - is_rung[:, ::-1].argmax(axis=1), lowest)
        moved = np.zeros_like(weight)
        moved[np.arange(len(weight)), :, rung] = weight.sum(axis=2)
        weight = moved
    return weight


def extrapolations(believed: Believed, change: Change) -> Iterator[str]:
    """A sentence for everything that the figures take to lie beyond what was measured; none where all was measured.

    Cohorts' names are not in them, only how many cohorts it is.
    """
    weight = asked_steps(believed, change)
    if not weight.any():
        return
    ks = np.flatnonzero(weight.sum(axis=(0, 1)))
    yield from _of_acceptance(believed, weight)
    measured = believed.measured_steps()
    for load in np.flatnonzero(weight.sum(axis=(0, 2))).tolist():
        unmeasured = [k for k in ks.tolist() if weight[:, load, k].any() and measured[load, k] < LEAST_STEPS]
        inside = [k for k in unmeasured if believed.is_profiled(load, k)]
        beyond = [k for k in unmeasured if k not in inside]
        where = f"beside {load_label(load)} running, K {{}}"
        if inside:
            yield f"step times {where.format(_listed(inside))}: hardly measured in these steps, taken from the profile"
        if beyond:
            sizes = _profiled_sizes(believed)
            yield f"step times {where.format(_listed(beyond))}: extrapolated, {sizes}"
    if change.acceptance > 1.0:
        yield "acceptance over what was measured: no drafter is known to reach it"


def _of_acceptance(believed: Believed, weight: Floats) -> Iterator[str]:
    examined = believed.hazards.examined
    deepest = (weight.sum(axis=1) > 0) * np.arange(RUNGS)
    reach = deepest.max(axis=1)
    unseen = [
        int(np.count_nonzero(examined[c, : reach[c]] < LEAST_EXAMINED)) for c in range(len(reach)) if reach[c] > 0
    ]
    unseen = [n for n in unseen if n]
    if unseen:
        of = "1 cohort" if len(unseen) == 1 else f"{len(unseen)} cohorts"
        upto = "1 draft position" if max(unseen) == 1 else f"up to {max(unseen)} draft positions"
        yield f"acceptance: {upto} of {of} not examined yet, taken to be like the positions and cohorts that were"


def _profiled_sizes(believed: Believed) -> str:
    if not believed.profile:
        return "no profile is on record"
    loads, ks = {c.sequences for c in believed.profile}, {c.k for c in believed.profile}
    return f"the profile has {min(loads)} to {max(loads)} sequences and K {min(ks)} to {max(ks)}"


def _listed(ks: list[int]) -> str:
    return ", ".join(map(str, ks))
