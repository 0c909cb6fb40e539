"""The operator's policy: YAML in, frozen values or every problem at once out."""

from controlplane.policy.model import (
    MAX_K,
    Budget,
    CohortPolicy,
    Experiment,
    Guard,
    Match,
    NamedBudget,
    Policy,
    PolicyError,
    PolicyFileError,
    PolicyProblem,
    Slo,
    Speculation,
)
from controlplane.policy.parse import load_policy, parse_policy

__all__ = [
    "MAX_K",
    "Budget",
    "CohortPolicy",
    "Experiment",
    "Guard",
    "Match",
    "NamedBudget",
    "Policy",
    "PolicyError",
    "PolicyFileError",
    "PolicyProblem",
    "Slo",
    "Speculation",
    "load_policy",
    "parse_policy",
]
