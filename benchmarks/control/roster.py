"""The arms by name. `PLANNED` know the whole trace beforehand, `REACTING` see one step after the other."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.control.arms import clairvoyant, fixed
from benchmarks.control.arms.base import ArmFactory, Planner
from benchmarks.control.arms.ema_tiers import EmaTiers
from benchmarks.control.arms.lifetime_rates import LifetimeRates
from benchmarks.control.arms.throughput_ucb import ThroughputUcb
from benchmarks.control.arms.up_down import UpDown
from benchmarks.control.ours import Ours

CLAIRVOYANT, BEST_FIXED, OURS = "clairvoyant", "best fixed K", "ours"

PLANNED: Mapping[str, Planner] = {
    CLAIRVOYANT: clairvoyant.plan,
    BEST_FIXED: fixed.best,
    "K = 0": fixed.none,
}

REACTING: Mapping[str, ArmFactory] = {
    OURS: Ours,
    "threshold": lambda setting: Ours(setting, "tuner: threshold"),
    "+2/-1": UpDown,
    "EMA tiers": EmaTiers,
    "lifetime rates": LifetimeRates,
    "throughput UCB": ThroughputUcb,
}
