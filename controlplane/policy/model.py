"""What an operator wrote, as frozen values, and the error that says everything that is wrong with a file.

Durations are seconds, shares are in [0, 1], K counts draft tokens per sequence and step without the extra token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from controlplane.telemetry import MAX_K

__all__ = [
    "MAX_K",
    "Budget",
    "BudgetAction",
    "BudgetPeriod",
    "CohortPolicy",
    "Experiment",
    "ExperimentUnit",
    "Guard",
    "Match",
    "NamedBudget",
    "Policy",
    "PolicyError",
    "PolicyFileError",
    "PolicyProblem",
    "Slo",
    "Speculation",
    "TunerName",
]

TunerName = Literal["fixed", "threshold", "goodput"]
Objective = Literal["throughput", "latency", "cost", "energy"]
Slots = Literal["uniform", "ragged"]
BudgetPeriod = Literal["day", "week", "month"]
BudgetAction = Literal["warn", "reject", "dial"]
ExperimentUnit = Literal["window", "replica"]


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests belong to a cohort: every field that is set must allow the request's value.

    A field is a tuple of allowed values; an empty one allows anything, also an absent value. route, model, user and
    the values of headers and metadata are shell-style patterns (`*`, `?`, `[...]`), case-sensitive; api_key (the
    key's name, never its secret) and service_tier are compared literally. Header names are in lower case.
    """

    api_key: tuple[str, ...] = ()
    route: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    user: tuple[str, ...] = ()
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    service_tier: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether this is `match: {}`, which every request matches."""
        return self == Match()


@dataclass(frozen=True, slots=True)
class Speculation:
    """How K of a cohort is chosen.

    ladder: the allowed K, rising. start: K before anything was measured (for the fixed tuner: always). fallback: K once
    a plan has expired. acceptance_floor: conditional acceptance that the last position of a rung must reach (threshold
    only). objective: what a rung is good for (goodput only): tokens per second; tokens per second of one sequence
    within the SLO; dollars per token; joules per token. slots (goodput only): one K for all sequences of a step, or
    positions dropped one by one where they do not pay.
    """

    tuner: TunerName
    acceptance_floor: float
    ladder: tuple[int, ...]
    start: int
    fallback: int
    objective: Objective = "throughput"
    slots: Slots = "uniform"


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives at the 95th percentile, seconds; None where the operator set none."""

    tpot_p95_s: float | None = None
    ttft_p95_s: float | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """Limits on how K may move.

    tolerance: dead band, as a share of the floor. hold_s: least time between two changes of K. min_samples: examined
    drafts without which nothing is decided, but for fewer after a drift alarm (guard.needed_samples). probe_every_s:
    time between two probes of a rung given up, doubled while they fail.
    """

    tolerance: float = 0.02
    hold_s: float = 10.0
    min_samples: int = 50
    probe_every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Money for a period. Days, weeks (from Monday) and months begin at midnight in `timezone`, an IANA name.

    soft: shares of it at which to alert, rising. notify: the URL that is told of every alert, signed with the secret in
    the environment variable `secret_env`; both or neither.
    """

    usd: Decimal
    period: BudgetPeriod
    soft: tuple[float, ...]
    on_exceeded: BudgetAction
    timezone: str = "UTC"
    notify: str | None = None
    secret_env: str | None = None


@dataclass(frozen=True, slots=True)
class NamedBudget:
    """A budget and whose money it is: a cohort's, a tenant's (the name of an API key), or a tenant's in a cohort."""

    name: str
    cohort: str | None
    tenant: str | None
    budget: Budget


@dataclass(frozen=True, slots=True)
class Experiment:
    """Savings experiment. holdout: share of time in control windows; window_s, burn_in_s: seconds."""

    holdout: float
    unit: ExperimentUnit
    window_s: float
    burn_in_s: float


@dataclass(frozen=True, slots=True)
class CohortPolicy:
    """Everything the operator said about one cohort."""

    name: str
    match: Match
    speculation: Speculation
    slo: Slo = Slo()
    guard: Guard = Guard()
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy file. The last cohort matches everything.

    revision: first 12 hex digits of the SHA-256 of the text. warnings: one line each, for the operator. budgets: those
    of the list `budgets:`; `all_budgets` has the cohorts' own, too.
    """

    version: int
    cohorts: tuple[CohortPolicy, ...]
    experiment: Experiment | None
    revision: str
    text: str
    warnings: tuple[str, ...] = ()
    budgets: tuple[NamedBudget, ...] = ()

    @property
    def all_budgets(self) -> tuple[NamedBudget, ...]:
        """Every budget: the cohorts' own, called like their cohort, and then the others, as the file has them."""
        own = (NamedBudget(c.name, c.name, None, c.budget) for c in self.cohorts if c.budget is not None)
        return (*own, *self.budgets)

    @property
    def key_names(self) -> frozenset[str]:
        """The names of API keys that the policy knows: cohorts match them, or they have a budget."""
        matched = {key for cohort in self.cohorts for key in cohort.match.api_key}
        return frozenset(matched | {b.tenant for b in self.budgets if b.tenant is not None})

    def cohort(self, name: str) -> CohortPolicy:
        """The cohort called `name`; raises KeyError when there is none."""
        for cohort in self.cohorts:
            if cohort.name == name:
                return cohort
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One thing wrong with a policy. line: 1-based, None for the file as a whole. field: path, "" for the file."""

    line: int | None
    field: str
    message: str


class PolicyError(ValueError):
    """A policy that cannot be used. `problems` holds all of them; as a string, one line a problem."""

    def __init__(self, source: str, problems: tuple[PolicyProblem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(_line(source, p) for p in problems))


class PolicyFileError(PolicyError):
    """The file could not be read at all: it is missing, a folder, or not ours to read."""


def _line(source: str, problem: PolicyProblem) -> str:
    place = source if problem.line is None else f"{source}:{problem.line}"
    return f"{place}: {problem.field}: {problem.message}" if problem.field else f"{place}: {problem.message}"
