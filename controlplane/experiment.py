"""The savings experiment: which window speculates and which does not, settled by a seed before it begins.

unit window: a pair is two windows, one after the other, of the whole system: in the control window every K is 0, in the
treatment window control is as usual; chance says which comes first, and where in its period the pair lies. In between
everybody is served as usual, so that control windows make up `holdout` of the time.
unit replica: some workers have no drafter at all; a pair is one window of time, of both kinds of workers at once.

Pure: the same seed gives the same windows again. Why never by request: docs/savings.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from controlplane.policy import Experiment, Policy

Unit = Literal["window", "replica"]
Arm = Literal["control", "treatment"]
RunState = Literal["running", "finished", "stopped"]
PairState = Literal["running", "done", "aborted"]

HOLDOUT = "holdout-"
"""How the name of a worker begins that has no drafter."""
SETTLE_S = 10.0
"""Dropped of every window at least: until each worker has the new plan, and its steps under the old one are over."""
PAIRS = 60
LEAST_PAIRS = 10
MOST_SEED = 2**53


class ExperimentError(ValueError):
    """An experiment that cannot be run; the message is one line that names the field and says what to do."""


def setting_problem(given: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of the settings of a Spec that are given that cannot be, and why; None where each can be."""
    unit, holdout, window_s, burn_in_s, pairs = (
        given.get(name) for name in ("unit", "holdout", "window_s", "burn_in_s", "pairs")
    )
    if unit is not None and unit not in ("window", "replica"):
        return "unit", f"{unit!r} is not one of window, replica"
    if holdout is not None and not 0.001 <= holdout <= 0.5:
        return "holdout", f"{holdout:g} is not a share within 0.001 to 0.5; 0.05 is 5%"
    if window_s is not None and not 60 <= window_s <= 86_400:
        return "window_s", f"{window_s:g} is not within 60 to 86400 seconds"
    longest = 86_400 if window_s is None else window_s
    if burn_in_s is not None and not 0 <= burn_in_s < longest:
        return "burn_in_s", f"{burn_in_s:g} must be shorter than the window ({longest:g})"
    if pairs is not None and not LEAST_PAIRS <= pairs <= 100_000:
        return "pairs", f"{pairs} is not within {LEAST_PAIRS} to 100000"
    return None


@dataclass(frozen=True, slots=True)
class Spec:
    """How to run it. Raises ExperimentError.

    holdout: share of time in control windows (unit window), or of replicas without a drafter. window_s, burn_in_s:
    seconds of a window, and of its beginning that is not measured. pairs: complete ones after which it ends, and at
    which its interval is tightest.
    """

    unit: Unit
    holdout: float
    window_s: float
    burn_in_s: float
    pairs: int = PAIRS

    def __post_init__(self) -> None:
        problem = setting_problem({name: getattr(self, name) for name in self.__dataclass_fields__})
        if problem is not None:
            raise ExperimentError(f"{problem[0]}: {problem[1]}")

    @classmethod
    def of(cls, policy: Experiment | None, asked: Mapping[str, Any]) -> Spec:
        """What was asked, and the policy's section for what was not. Raises ExperimentError."""
        known = {"unit", "holdout", "window_s", "burn_in_s", "pairs"}
        for name in asked.keys() - known:
            raise ExperimentError(f"{name}: is not a setting of an experiment; known: {', '.join(sorted(known))}")
        values: dict[str, Any] = {"burn_in_s": 0.0}
        if policy is not None:
            values = {name: getattr(policy, name) for name in known - {"pairs"}}
        values |= {name: value for name, value in asked.items() if value is not None}
        for name in ("unit", "holdout", "window_s"):
            if name not in values:
                raise ExperimentError(
                    f"{name}: is not given, and the policy has no `experiment:` section to take it from"
                )
        for name in known - {"unit"} & values.keys():
            number = values[name]
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < MOST_SEED:
                raise ExperimentError(f"{name}: {number!r} is not a number")
        if "pairs" in values and values["pairs"] != int(values["pairs"]):
            raise ExperimentError(f"pairs: {values['pairs']!r} is not a whole number")
        return cls(**{**values, **({"pairs": int(values["pairs"])} if "pairs" in values else {})})

    @property
    def pair_every_s(self) -> float:
        """Seconds from the beginning of one pair's period to that of the next."""
        return self.window_s if self.unit == "replica" else self.window_s / self.holdout

    @property
    def dropped_s(self) -> float:
        """Seconds at the beginning of a window that are not measured."""
        return max(self.burn_in_s, SETTLE_S)


@dataclass(frozen=True, slots=True)
class Window:
    """One arm of a pair. started_at, burn_in_end, ended_at: unix seconds; it is measured between the last two.

    state: running until its pair was done or aborted, with the reason.
    """

    experiment: str
    pair: int
    arm: Arm
    started_at: float
    burn_in_end: float
    ended_at: float
    policy_revision: str = ""
    state: PairState = "running"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """An experiment as it was ordered, and what became of it. Times in unix seconds."""

    id: str
    spec: Spec
    seed: int
    started_at: float
    by: str
    why: str
    state: RunState = "running"
    ended_at: float | None = None
    sentence: str = ""

    def pair_at(self, now: float) -> int:
        """The number of the pair in whose period `now` is; below 0 before the first."""
        return int((now - self.started_at) // self.spec.pair_every_s)

    def windows(self, pair: int) -> tuple[Window, Window]:
        """The two windows of a pair, in the order of time (unit replica: at once, control first)."""
        spec = self.spec
        start = self.started_at + pair * spec.pair_every_s
        if spec.unit == "replica":
            return self._window(pair, "control", start), self._window(pair, "treatment", start)
        free = spec.pair_every_s - 2 * spec.window_s
        start += int(self._chance(pair, "start") * max(free, 0.0))
        first: Arm = "treatment" if self._chance(pair, "order") < 0.5 else "control"
        second: Arm = "control" if first == "treatment" else "treatment"
        return self._window(pair, first, start), self._window(pair, second, start + spec.window_s)

    def _window(self, pair: int, arm: Arm, start: float) -> Window:
        end = start + self.spec.window_s
        return Window(self.id, pair, arm, start, start + self.spec.dropped_s, end)

    def _chance(self, pair: int, what: str) -> float:
        """A number in [0, 1) that looks random and is always the same, under every version of every library."""
        digest = hashlib.sha256(f"{self.seed}:{pair}:{what}".encode()).digest()
        return int.from_bytes(digest[:7]) / 2**56

    def ended(self, state: RunState, sentence: str, now: float) -> Run:
        return replace(self, state=state, sentence=sentence, ended_at=now)


def is_holdout(worker: str) -> bool:
    """Whether a worker of that name has no drafter, to be compared with."""
    return worker.startswith(HOLDOUT)


def holdout_replicas(policy: Policy, replicas: int, asked: int = 0) -> int:
    """How many of the replicas have no drafter: as asked, else by the policy's experiment, at least one; else 0.

    Raises ExperimentError where none would be left with one.
    """
    section = policy.experiment
    wanted = asked
    if not asked and section is not None and section.unit == "replica":
        wanted = max(1, round(section.holdout * replicas))
    if wanted and wanted >= replicas:
        raise ExperimentError(
            f"replicas: {replicas} are not enough for {wanted} without a drafter beside one with it; start more with "
            "--replicas, or use `unit: window`"
        )
    return wanted


def run_json(run: Run) -> dict[str, Any]:
    """What is shown of an experiment."""
    return {
        "id": run.id,
        "unit": run.spec.unit,
        "holdout": run.spec.holdout,
        "window_s": run.spec.window_s,
        "burn_in_s": run.spec.burn_in_s,
        "pairs": run.spec.pairs,
        "pair_every_s": run.spec.pair_every_s,
        "seed": run.seed,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "by": run.by,
        "why": run.why,
        "state": run.state,
        "sentence": run.sentence,
    }


def window_json(window: Window) -> dict[str, Any]:
    """What is shown of one of its windows."""
    return {name: getattr(window, name) for name in Window.__dataclass_fields__}
