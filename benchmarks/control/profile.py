"""What is simulated, as YAML: a step's cost, the load, and how each cohort's acceptance drifts. No randomness here."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

SHIPPED = Path(__file__).with_name("profiles")
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "control"
MAX_SEQUENCES = 256
MAX_COMBINATIONS = 4096
"""Ways to give every cohort a rung; the clairvoyant arm tries them all at every step."""


class ProfileError(ValueError):
    """A profile cannot be used; one line a problem."""


def _rising(values: tuple[int, ...]) -> tuple[int, ...]:
    if any(b <= a for a, b in pairwise(values)):
        raise ValueError("must rise from each value to the next")
    return values


def _not_falling(table: dict[int, float]) -> dict[int, float]:
    """Sorted by positions; more positions never cost less."""
    ordered = dict(sorted(table.items()))
    costs = list(ordered.values())
    if any(b < a for a, b in pairwise(costs)):
        raise ValueError("more positions must not take less time")
    return ordered


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CostShape(_Frozen):
    """What a step takes, milliseconds.

    verify_ms: positions -> time of one target forward, straight lines between, the last slope carried on.
    padding: sizes that positions are rounded up to (beyond the last, multiples of the last gap); empty = not rounded.
    kv_ms_per_1k_tokens, context: time per thousand context tokens read, and context tokens of a sequence.
    draft_share: one drafted token of m sequences takes this share of a target forward of m positions.
    on_cost_ms: once per step in which anything is drafted.
    """

    verify_ms: Annotated[dict[Count, Positive], Field(min_length=1), AfterValidator(_not_falling)]
    padding: Annotated[tuple[Count, ...], AfterValidator(_rising)] = ()
    kv_ms_per_1k_tokens: NotNegative = 0.0
    context: NotNegative = 0.0
    draft_share: NotNegative
    on_cost_ms: NotNegative = 0.0


class Load(_Frozen):
    """Running sequences: an Ornstein-Uhlenbeck process in ln(load), cut off at 1 and `most`.

    spread: its standard deviation. correlation_steps: steps in which its correlation falls to 1/e. mix_spread,
    mix_correlation_steps: the same for the logarithm of each cohort's share. request_steps: steps until the sequences'
    rounding to whole numbers moves on by one sequence.
    """

    median: Annotated[float, Field(ge=1, le=MAX_SEQUENCES)]
    most: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = MAX_SEQUENCES
    spread: NotNegative
    correlation_steps: Positive
    mix_spread: NotNegative = 0.5
    mix_correlation_steps: Positive = 2000.0
    request_steps: Positive = 100.0


class Cohort(_Frozen):
    """How one cohort's acceptance behaves.

    share: of the sequences, beside the other cohorts' shares. levels: conditional acceptance at the first position of
    the median request, one regime each. regime_steps: mean length of a regime (exponential). gradual: share of the
    switches that take ramp_steps instead of none. decline: share of the level lost with every further position.
    spread: standard deviation of logit(acceptance) between requests.
    """

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][\w.-]*$")]
    share: Positive = 1.0
    levels: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)] = (0.35, 0.6, 0.8, 0.92)
    regime_steps: Positive = 2000.0
    gradual: Share = 0.3
    ramp_steps: Count = 400
    decline: Annotated[float, Field(ge=0, lt=1)] = 0.015
    spread: NotNegative = 0.5


class Profile(_Frozen):
    """One simulated worker.

    kind: recorded ones replay what a real engine did (recorded.py). ladder: the rungs that arms choose from. steps:
    length of a trace. steps_per_second: how many steps pass between two ticks of the controller, which come once a
    second. timing_noise: standard deviation of ln(measured / true time).
    """

    version: Literal[1]
    kind: Literal["simulated", "recorded"] = "simulated"
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][\w.-]*$")]
    description: str = ""
    ladder: Annotated[tuple[Annotated[int, Field(ge=0, le=16)], ...], Field(min_length=2), AfterValidator(_rising)]
    steps: Annotated[int, Field(ge=100, le=1_000_000)] = 8000
    steps_per_second: Annotated[int, Field(ge=1, le=1000)]
    timing_noise: Annotated[float, Field(ge=0, le=1)] = 0.03
    cost: CostShape
    load: Load
    cohorts: Annotated[tuple[Cohort, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Profile:
        names = [cohort.name for cohort in self.cohorts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"cohorts: named twice: {', '.join(twice)}")
        if self.ladder[0] != 0:
            raise ValueError("ladder: must begin with 0, the rung without drafts")
        if len(self.ladder) ** len(self.cohorts) > MAX_COMBINATIONS:
            raise ValueError(
                f"ladder: {len(self.ladder)} rungs for {len(self.cohorts)} cohorts are over {MAX_COMBINATIONS} "
                "combinations; take fewer rungs or fewer cohorts"
            )
        return self

    @property
    def depth(self) -> int:
        """The deepest rung."""
        return self.ladder[-1]


def shipped_profiles() -> tuple[Profile, ...]:
    """The simulated profiles that come with Kadence, by name."""
    return tuple(load_profile(path) for path in sorted(SHIPPED.glob("*.yaml")))


def recorded_profiles() -> tuple[Profile, ...]:
    """Those of a checkout that replay recordings; none where Kadence was installed without its tests."""
    return tuple(load_profile(path) for path in sorted(RECORDED.glob("*.yaml")))


def load_profile(path: Path) -> Profile:
    """The profile in the file `path`. Raises ProfileError with every problem, each with its field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ProfileError(f"{path}: cannot be read: {reason}") from error
    return parse_profile(text, str(path))


def parse_profile(text: str, source: str) -> Profile:
    """The profile that `text` says; `source` names it in messages. Raises ProfileError with every problem."""
    try:
        values: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProfileError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ProfileError(f"{source}: must be a mapping with version, name, ladder, cost, load and cohorts")
    model, values = _kind_of(values, Path(source).parent)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ProfileError("\n".join(f"{source}: {_problem(each)}" for each in error.errors())) from error


def _kind_of(values: dict[str, Any], folder: Path) -> tuple[type[Profile], dict[str, Any]]:
    if values.get("kind") != "recorded":
        return Profile, values
    from benchmarks.control.recorded import RecordedProfile, resolved  # it builds on this module

    return RecordedProfile, resolved(values, folder)


def _problem(problem: Any) -> str:
    message = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}: {message[0].lower()}{message[1:]}" if where else message
