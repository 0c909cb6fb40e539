"""Hours in which a cohort's tokens cost, or took, unusually much or little, and what that likely comes from. Pure.

The cost of a token (with the cohort's part of idle) is a product of things that can be looked at one by one:

    cost / token = cost / machine time                    price    (of energy: power, joules / machine time)
                 x machine time / busy time               idle
                 x busy time / time of decode steps       prefill
                 x time of decode steps / steps           load: few sequences share a step, or it drafts more
                 x steps / token                          acceptance

so its logarithm is their sum, and a change of it the sum of theirs. An hour is unusual by the robust z-score of that
logarithm, (x - median) / (1.4826 MAD), among the same cohort's earlier hours (Iglewicz and Hoaglin, 1993, whose 3.5 is
the threshold). The MAD has a floor, so that a flat history does not make a rounding error an anomaly, and is widened
where it comes from few hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Literal, NamedTuple, get_args

Metric = Literal["cost", "energy"]
METRICS: tuple[Metric, ...] = get_args(Metric)

Factor = Literal["price", "power", "idle", "prefill", "load", "acceptance"]
Factors = Mapping[Factor, float]
"""Natural logarithms, in the order of the product above; the first is price for cost and power for energy."""

Baseline = Literal["week", "day", "recent"]
"""Which earlier hours an hour is held against: the same hour of the week, of the day, or all of the last days."""

CONSISTENT = 1.4826
"""MAD x this estimates the standard deviation of a normal distribution."""
EFFICIENCY = 0.37
"""The MAD of n values knows a normal distribution's scale about as well as the standard deviation of this x n."""

HOURS_PER_DAY, HOURS_PER_WEEK = 24, 168
WEEKS, DAYS, RECENT_HOURS = 5, 14, 168


class HourUse(NamedTuple):
    """What one cohort used in one hour, with its part of the idle time of its machines.

    hour: since the unix epoch, UTC. *_ns: machine time. cost_nano: of all of it, in nano-units, None = unpriced. uj: of
    all of it, microjoules, None = not measured. tokens: emitted; measured_tokens: of them in windows with energy.
    """

    cohort: str
    hour: int
    input_ns: int
    output_ns: int
    idle_ns: int
    cost_nano: int | None
    uj: int | None
    tokens: int
    measured_tokens: int
    steps: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as unusual.

    threshold: of |z|. floor: least scale, as a change of the logarithm: with 0.05, nothing under 3.5 x 5 %, that is a
    change of 19 %, is ever unusual. min_tokens: emitted in the hour; thinner hours are neither looked at nor looked
    back on. min_same, min_recent: hours that a baseline needs, of the same hour of the day or week and its neighbours,
    or of the last days.
    """

    threshold: float = 3.5
    floor: float = 0.05
    min_tokens: int = 1000
    min_same: int = 8
    min_recent: int = 12

    def __post_init__(self) -> None:
        for name in ("threshold", "floor", "min_tokens", "min_same", "min_recent"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be over 0, not {getattr(self, name)}")


DEFAULT = Rule()


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One cohort's unusual hour.

    value, usual: currency per million emitted tokens, or joules per emitted token; usual is the median of `hours`
    earlier hours. parts: what each factor adds to the logarithm of value / usual; together they are `change`. now,
    before: the factors themselves; drafted, drafted_before: draft tokens per step.
    """

    cohort: str
    hour: int
    metric: Metric
    value: float
    usual: float
    z: float
    baseline: Baseline
    hours: int
    parts: Factors
    now: Factors
    before: Factors
    drafted: float
    drafted_before: float

    @property
    def change(self) -> float:
        """Logarithm of value / usual."""
        return log(self.value / self.usual)

    @property
    def cause(self) -> Factor:
        """The factor that moved most in the direction of the change."""
        sign = 1.0 if self.change >= 0 else -1.0
        return max(self.parts, key=lambda factor: sign * self.parts[factor])


@dataclass(frozen=True, slots=True)
class Findings:
    """anomalies: by hour, cohort and metric. The rest are numbers of hours of cohorts.

    thin: those with too few tokens. young: those with too little before them to say what is usual. examined: the
    others, whether for cost, for energy or for both.
    """

    anomalies: tuple[Anomaly, ...]
    examined: int
    thin: int
    young: int


def factors_of(use: HourUse, metric: Metric) -> Factors | None:
    """The logarithms whose sum is that of the cost of a token; None where it or one of them is not known.

    Units: nanoseconds, nano-units of the currency, microjoules.
    """
    busy = use.input_ns + use.output_ns
    machine = busy + use.idle_ns
    amount, per = (use.cost_nano, use.tokens) if metric == "cost" else (use.uj, use.measured_tokens)
    if not amount or not per or not use.tokens or not use.steps or not use.output_ns:
        return None
    # Energy is that of the measured tokens: machine time is taken for as many.
    first = log(amount / per) - log(machine / use.tokens)
    rest: dict[Factor, float] = {
        "idle": log(machine / busy),
        "prefill": log(busy / use.output_ns),
        "load": log(use.output_ns / use.steps),
        "acceptance": log(use.steps / use.tokens),
    }
    return {"price" if metric == "cost" else "power": first, **rest}


def find(uses: Iterable[HourUse], first: int, last: int, rule: Rule = DEFAULT) -> Findings:
    """Unusual hours among `first` to `last` (exclusive), each held against earlier ones among `uses`."""
    by_cohort: dict[str, dict[int, HourUse]] = {}
    for use in uses:
        by_cohort.setdefault(use.cohort, {})[use.hour] = use
    found: list[Anomaly] = []
    examined = thin = young = 0
    for hours in by_cohort.values():
        enough = {hour: use for hour, use in hours.items() if use.tokens >= rule.min_tokens}
        asked = [hour for hour in hours if first <= hour < last]
        thin += sum(hour not in enough for hour in asked)
        known = {metric: _known(enough, metric) for metric in METRICS}
        for hour in asked:
            if hour not in enough:
                continue
            baselines = {metric: _baseline(known[metric], hour, rule) for metric in METRICS if hour in known[metric]}
            examined += any(baselines.values())
            young += not any(baselines.values())
            for metric, baseline in baselines.items():
                if baseline is not None:
                    found += _examine(enough, known[metric], hour, metric, baseline, rule)
    found.sort(key=lambda each: (each.hour, each.cohort, each.metric))
    return Findings(tuple(found), examined, thin, young)


def hours_needed(first: int, last: int) -> set[int]:
    """Those hours, and all that their baselines may look back on."""
    needed = set(range(first - RECENT_HOURS, last))
    for period, most in ((HOURS_PER_WEEK, WEEKS), (HOURS_PER_DAY, DAYS)):
        for n in range(1, most + 1):
            needed.update(range(first - n * period - 1, last - n * period + 1))
    return needed


class _Point(NamedTuple):
    log_cost: float
    factors: Factors


def _known(uses: Mapping[int, HourUse], metric: Metric) -> dict[int, _Point]:
    points = {}
    for hour, use in uses.items():
        factors = factors_of(use, metric)
        if factors is not None:
            points[hour] = _Point(sum(factors.values()), factors)
    return points


def _baseline(known: Mapping[int, _Point], hour: int, rule: Rule) -> tuple[Baseline, list[int]] | None:
    """The earlier hours to hold `hour` against: the most alike of which there are enough."""
    same: tuple[tuple[Baseline, int, int], ...] = (("week", HOURS_PER_WEEK, WEEKS), ("day", HOURS_PER_DAY, DAYS))
    for name, period, most in same:
        hours = [h for n in range(1, most + 1) for h in _around(hour - n * period) if h in known]
        if len(hours) >= rule.min_same:
            return name, hours
    hours = [h for h in range(hour - RECENT_HOURS, hour) if h in known]
    return ("recent", hours) if len(hours) >= rule.min_recent else None


def _around(hour: int) -> tuple[int, int, int]:
    return hour - 1, hour, hour + 1


def _examine(
    uses: Mapping[int, HourUse],
    known: Mapping[int, _Point],
    hour: int,
    metric: Metric,
    baseline: tuple[Baseline, list[int]],
    rule: Rule,
) -> Iterator[Anomaly]:
    name, hours = baseline
    earlier = [known[h].log_cost for h in hours]
    usual = median(earlier)
    scale = CONSISTENT * _mad(earlier, usual) * widening(len(hours), rule.threshold)
    z = (known[hour].log_cost - usual) / max(scale, rule.floor)
    if abs(z) < rule.threshold:
        return
    now, before = known[hour].factors, usual_factors([known[h].factors for h in hours], usual)
    unit = -log(1000.0) if metric == "cost" else -log(1e6)  # nano-units a token to units a million; microjoules to J
    yield Anomaly(
        cohort=uses[hour].cohort,
        hour=hour,
        metric=metric,
        value=exp(known[hour].log_cost + unit),
        usual=exp(usual + unit),
        z=z,
        baseline=name,
        hours=len(hours),
        parts={factor: now[factor] - before[factor] for factor in now},
        now=now,
        before=before,
        drafted=uses[hour].draft_tokens / uses[hour].steps,
        drafted_before=median(uses[h].draft_tokens / uses[h].steps for h in hours),
    )


def widening(hours: int, threshold: float) -> float:
    """By how much the scale out of so few hours is taken larger, so that the threshold is passed as seldom as meant.

    A scale that is estimated is sometimes far too small. This is the quantile of Student's t over that of the normal
    distribution, with EFFICIENCY x hours degrees of freedom, by its expansion (Abramowitz and Stegun 26.7.5).
    """
    z, freedom = threshold, EFFICIENCY * hours
    first = (z**3 + z) / 4 / freedom
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96 / freedom**2
    return (z + first + second) / z


def usual_factors(earlier: Sequence[Factors], usual: float) -> Factors:
    """What is usual of each factor, so that together they are `usual`, the usual sum.

    Medians do not add up. What they miss is given to the factors by how much they vary (their MAD): one that never
    changed keeps its median. Where none varies, in even parts.
    """
    medians = {factor: median(each[factor] for each in earlier) for factor in earlier[0]}
    spreads = {factor: _mad([each[factor] for each in earlier], medians[factor]) for factor in medians}
    missing, spread = usual - sum(medians.values()), sum(spreads.values())
    weights = {f: spreads[f] / spread if spread else 1.0 / len(medians) for f in medians}
    return {factor: medians[factor] + missing * weights[factor] for factor in medians}


def _mad(values: Sequence[float], centre: float) -> float:
    return median(abs(value - centre) for value in values)
