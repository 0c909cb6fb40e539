"""Pairs of an experiment, made up from a few numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest

from controlplane.finops.savings import LENGTH_BOUNDS, Pair, Sums
from controlplane.telemetry import LatencyHistogram

S = 10**9


@pytest.fixture
def make_pairs() -> Callable[..., list[Pair]]:
    """`pairs` pairs of windows of 600 s on one worker: d of each is normal around log(1 - saving), spread `spread`.

    Other fields of the treated arm by name, as factors of the control's.
    """

    def make(pairs: int = 40, saving: float = 0.2, spread: float = 0.05, seed: int = 1, **factors: float) -> list[Pair]:
        rng = np.random.default_rng(seed)
        made = []
        for i in range(pairs):
            d = np.log(1 - saving) + rng.normal(0, spread)
            # Both arms emit the same number of tokens, so that the ratio of their busy times is exp(d).
            control = _sums(rng, 300.0)
            treatment = replace(_sums(rng, 300.0 * exp(d)), **{k: _times(control, k, f) for k, f in factors.items()})
            made.append(Pair(i, 1000.0 + 3600 * i, bool(rng.integers(2)), treatment, control))
        return made

    return make


def _sums(rng: np.random.Generator, busy_s: float) -> Sums:
    tpot = LatencyHistogram()
    for seconds in rng.lognormal(np.log(0.03), 0.3, 40):
        tpot = tpot.observe(float(seconds))
    lengths = [0] * (len(LENGTH_BOUNDS) + 1)
    lengths[4] = 200
    return Sums(
        seconds_ns=600 * S,
        busy_ns=round(busy_s * S),
        tokens=10_000,
        billed_nano=600 * 700_000,
        energy_uj=round(busy_s * 80e6),
        measured_tokens=10_000,
        early_busy_ns=round(busy_s * S / 2),
        early_tokens=5_000,
        arrivals=200,
        prompt_tokens=20_000,
        completion_tokens=10_000,
        lengths=tuple(lengths),
        ttft=tpot,
        tpot=tpot,
    )


def _times(sums: Sums, name: str, factor: float) -> Any:
    value = getattr(sums, name)
    if isinstance(value, LatencyHistogram):  # every latency that many times as long
        out = LatencyHistogram()
        rng = np.random.default_rng(9)
        for seconds in rng.lognormal(np.log(0.03), 0.3, value.total):
            out = out.observe(float(seconds) * factor)
        return out
    return round(value * factor)
