"""The result of `kadence policy plan`: cohort by cohort, what a policy is expected to change, from the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from controlplane.comparison import Interval
from controlplane.finops.budget import BudgetStatus
from controlplane.finops.spending import CURRENCY, dollars
from controlplane.model_label import asked_for
from controlplane.policy import Policy
from controlplane.policy.reassign import Recorded, reassign
from controlplane.policy_plan import Brought, Outcome, percentile, unmet_slo
from controlplane.store.cost_rows import CostRow
from controlplane.store.recorded import RequestGroup


@dataclass(slots=True)
class Moves:
    """Where the recorded requests go. from_: new cohort -> recorded cohort -> requests that surely or likely move."""

    requests: dict[str, int] = field(default_factory=dict)
    from_: dict[str, dict[str, int]] = field(default_factory=dict)
    uncertain: dict[str, int] = field(default_factory=dict)

    @property
    def goes_to(self) -> dict[str, str]:
        """Recorded cohort -> the new cohort that takes most of its requests."""
        best: dict[str, tuple[int, str]] = {}
        for new, sources in self.from_.items():
            for old, count in sources.items():
                if old not in best or count > best[old][0]:
                    best[old] = (count, new)
        return {old: new for old, (_, new) in best.items()}

    def share(self, old: str, new: str) -> float:
        """The part of a recorded cohort's requests that the new one takes."""
        total = sum(sources.get(old, 0) for sources in self.from_.values())
        return self.from_.get(new, {}).get(old, 0) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class CohortForecast:
    """What is expected of one cohort of the new policy. Shares by K; seconds; money a million emitted tokens.

    change: of tokens per second of a sequence, as a share with its 95 % interval; None where nothing could be expected.
    """

    name: str
    requests: int
    uncertain: int
    moved_in: dict[str, int]
    k_before: dict[int, float]
    k_after: dict[int, float]
    change: Interval | None
    tpot_p95_before_s: float | None
    cost_before: Decimal | None
    joules_before: float | None

    @property
    def tpot_p95_s(self) -> float | None:
        return _over(self.tpot_p95_before_s, self.change, "mid")

    @property
    def cost(self) -> Interval | None:
        return _divided(None if self.cost_before is None else float(self.cost_before), self.change)

    @property
    def joules(self) -> Interval | None:
        """Joules a million emitted tokens."""
        return _divided(self.joules_before, self.change)

    def as_json(self) -> dict[str, Any]:
        change, cost, joules = self.change, self.cost, self.joules
        before_ms, after_ms = (None if s is None else s * 1000 for s in (self.tpot_p95_before_s, self.tpot_p95_s))
        return {
            "name": self.name,
            "requests": self.requests,
            "requests_uncertain": self.uncertain,
            "moved_in": self.moved_in,
            "k_before": {str(k): share for k, share in self.k_before.items()},
            "k_after": {str(k): share for k, share in self.k_after.items()},
            "tokens_per_s_change_percent": None if change is None else 100 * change.mid,
            "interval": None if change is None else {"low": 100 * change.low, "high": 100 * change.high},
            "tpot_p95_ms_before": before_ms,
            "tpot_p95_ms": after_ms,
            "cost_per_million_before": None if self.cost_before is None else f"{self.cost_before:f}",
            "cost_per_million_after": None if cost is None else f"{Decimal(str(cost.mid)).quantize(Decimal('1e-6')):f}",
            "cost_per_million_interval": _bounds(cost),
            "j_per_million_before": self.joules_before,
            "j_per_million_after": None if joules is None else joules.mid,
            "j_per_million_interval": _bounds(joules),
        }


def moves(old: Policy, new: Policy, groups: Iterable[RequestGroup]) -> Moves:
    """Where the recorded requests would go; one that could go to several counts for the first and as uncertain."""
    found = Moves()
    for group in groups:
        possible = reassign(old, new, Recorded(group.cohort, group.tenant, group.route, asked_for(group.model)))
        name = group.cohort if group.cohort in possible else possible[0]
        found.requests[name] = found.requests.get(name, 0) + group.requests
        sources = found.from_.setdefault(name, {})
        sources[group.cohort] = sources.get(group.cohort, 0) + group.requests
        if len(possible) > 1:
            found.uncertain[name] = found.uncertain.get(name, 0) + group.requests
    return found


def targets(moved: Moves, recorded: Iterable[str], new: Policy) -> dict[str, str]:
    """Recorded cohort -> new cohort, also for one none of whose requests ended in the range: by name, else the last."""
    names = [cohort.name for cohort in new.cohorts]
    rest = {name: name if name in names else names[-1] for name in recorded}
    return {**rest, **moved.goes_to}


def forecast(
    outcome: Outcome, moved: Moves, goes_to: Mapping[str, str], costs: Sequence[CostRow]
) -> list[CohortForecast]:
    """By cohort of the new policy, in its order. goes_to: as `targets`. costs: of the range, by recorded cohort."""
    return [_cohort(name, brought, moved, goes_to, costs) for name, brought in outcome.cohorts.items()]


def warnings(new: Policy, outcome: Outcome, moved: Moves) -> Iterator[str]:
    """What speaks against applying the policy, one line each; budgets apart (`spent_over`)."""
    is_empty = not outcome.total.steps and not any(moved.requests.values())
    if is_empty:
        yield "no request is recorded in this range: nothing can be said of matches; try a longer --since"
    for i, cohort in enumerate(new.cohorts):
        brought = outcome.cohorts[cohort.name]
        if not is_empty and not moved.requests.get(cohort.name) and not brought.steps:
            yield f"cohorts[{i}]: no recorded request would be in {cohort.name!r}: is its match what you mean?"
        if moved.uncertain.get(cohort.name):
            yield (
                f"{cohort.name}: of {moved.uncertain[cohort.name]} requests it cannot be known whether they would be in"
                " this cohort: headers, user, metadata and service tier are not on record"
            )
    if outcome.state is not None:
        yield from unmet_slo(outcome.state, outcome)
    if outcome.total.unknown_steps == outcome.total.steps > 0:
        yield "no worker's step times are on record: what K brings per second cannot be expected"
    if outcome.stopped:
        yield f"{outcome.stopped} of {outcome.ticks} ticks were under a kill switch and are left out"


def spent_over(said: BudgetStatus) -> str | None:
    """The warning that a budget is spent already, or its soft share; None where it is not, or cannot be known."""
    spent = f"{said.name}: {dollars(said.spent_nano)} {CURRENCY}"
    if said.standing == "exceeded":
        return f"{spent} are spent in {said.period.label}, the budget of {dollars(said.limit_nano)} is exceeded"
    if said.standing == "soft":
        return f"{spent} of the budget of {dollars(said.limit_nano)} are spent in {said.period.label}"
    return None


def _cohort(
    name: str, brought: Brought, moved: Moves, goes_to: Mapping[str, str], costs: Sequence[CostRow]
) -> CohortForecast:
    sources = moved.from_.get(name, {})
    shares = {row.key: moved.share(row.key, name) for row in costs}
    # Of a cohort none of whose requests ended in the range, all goes where its windows went.
    shares |= {old: 1.0 for old, new in goes_to.items() if new == name and old in shares and old not in moved.goes_to}
    parts = [(row, shares[row.key]) for row in costs if shares[row.key]]
    emitted = sum(row.emitted_tokens * part for row, part in parts)
    measured = sum(row.measured_tokens * part for row, part in parts)
    nano = [None if row.cost_nano is None else row.cost_nano * part for row, part in parts]
    joules = [row.energy_uj * part for row, part in parts if row.energy_uj is not None]
    is_priced = emitted > 0 and None not in nano
    cost = Decimal(sum(n for n in nano if n is not None)) / 1000 / Decimal(emitted) if is_priced else None
    return CohortForecast(
        name=name,
        requests=moved.requests.get(name, 0),
        uncertain=moved.uncertain.get(name, 0),
        moved_in={old: count for old, count in sources.items() if old != name},
        k_before=_shares(brought.before),
        k_after=_shares(brought.after),
        change=brought.change,
        tpot_p95_before_s=percentile(brought.tpot, 0.95),
        cost_before=None if cost is None else cost.quantize(Decimal("1e-6")),
        joules_before=sum(joules) / measured if joules and measured else None,
    )


def _shares(steps: dict[int, int]) -> dict[int, float]:
    total = sum(steps.values())
    return {k: steps[k] / total for k in sorted(steps)} if total else {}


def _over(value: float | None, change: Interval | None, which: str) -> float | None:
    """A value per token under another speed: more tokens a second, less of it a token."""
    return None if value is None or change is None else value / max(1 + float(getattr(change, which)), 1e-9)


def _divided(value: float | None, change: Interval | None) -> Interval | None:
    low, mid, high = (_over(value, change, which) for which in ("high", "mid", "low"))
    return None if low is None or mid is None or high is None else Interval(low, mid, high)


def _bounds(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else {"low": interval.low, "high": interval.high}
