"""A simulated fleet whose true saving is known: minutes of load that is correlated in time, and windows that alternate.

Busy seconds by token fall with load (a fuller batch shares each forward pass), by more or less noise. In a treated
minute they are multiplied by 1 - saving; for a while after a switch the arm before still shows (caches, queues, drafts
to catch up with), which is the carry-over. Arrivals and the mix of prompts are what the load offered: settled before
any treatment acts.

    simulate(...) -> log-ratios of paired windows, and the covariates that production code would have of them
    shared_batch(...) -> why no experiment is offered that treats some requests of one batch and not others
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fleet:
    """How minutes differ, in logs.

    load_sd, stay (correlation from minute to minute): of the offered load. mix_sd: of prompts' length, as correlated.
    cost_of_load, cost_of_mix: by how much busy seconds by token move with them. noise: what nothing explains, with
    noise_stay of it from minute to minute.
    """

    load_sd: float = 0.35
    stay: float = 0.97
    mix_sd: float = 0.1
    cost_of_load: float = -0.4
    cost_of_mix: float = 0.3
    noise: float = 0.06
    noise_stay: float = 0.5
    requests_a_minute: float = 120.0


@dataclass(frozen=True, slots=True)
class Design:
    """Pairs back to back. window_min, burn_in_min: minutes; carry_over_min: mean of an exponential, 0 for none."""

    pairs: int
    window_min: int = 15
    burn_in_min: int = 5
    carry_over_min: float = 0.0


@dataclass(frozen=True, slots=True)
class Runs:
    """[runs, pairs] log-ratios d; [runs, pairs, 2] covariates; [runs, pairs, minutes] d of each measured minute."""

    d: Floats
    x: Floats
    minutes: Floats


def simulate(runs: int, design: Design, saving: float, seed: int, fleet: Fleet = Fleet()) -> Runs:
    """`runs` experiments of `design`, in each of which speculation saves `saving` of the busy time by token."""
    rng = np.random.default_rng(seed)
    shape = (runs, design.pairs, 2, design.window_min)
    total = design.pairs * 2 * design.window_min

    def correlated(sd: float, stay: float) -> Floats:
        """Mean 0, stationary, along the minutes of a whole run."""
        shocks = rng.normal(0.0, sd * (1 - stay * stay) ** 0.5, (runs, total))
        shocks[:, 0] = rng.normal(0.0, sd, runs)
        made: Floats = lfilter([1.0], [1.0, -stay], shocks, axis=1).reshape(shape)
        return made

    load, mix = correlated(fleet.load_sd, fleet.stay), correlated(fleet.mix_sd, fleet.stay)
    first_is_treated = rng.integers(0, 2, (runs, design.pairs)).astype(bool)
    treated = np.stack([first_is_treated, ~first_is_treated], axis=-1)
    strength = _strength(treated.reshape(runs, -1), design).reshape(shape)
    cost = np.exp(fleet.cost_of_load * load + fleet.cost_of_mix * mix + correlated(fleet.noise, fleet.noise_stay)) * (
        1 - saving * strength
    )
    arrivals = rng.poisson(fleet.requests_a_minute * np.exp(load)).astype(np.float64)
    tokens = arrivals * rng.normal(1.0, 0.5 / np.sqrt(np.maximum(arrivals, 1.0)))
    tokens, arrivals = np.maximum(tokens, 1e-6), np.maximum(arrivals, 1e-6)
    prompts = arrivals * np.exp(mix)
    kept = slice(design.burn_in_min, None)

    def arms(values: Floats) -> tuple[Floats, Floats]:
        """Of a quantity by window: treated, control."""
        return (np.where(first_is_treated, values[..., i], values[..., 1 - i]) for i in (0, 1))  # type: ignore[return-value]

    def log_ratio(over: Floats, under: Floats) -> Floats:
        ratio = np.log(over[..., kept].sum(axis=-1) / under[..., kept].sum(axis=-1))
        ours, theirs = arms(ratio)
        return ours - theirs

    by_minute = np.log(cost[..., kept])
    which = first_is_treated[..., None]
    minutes = np.where(which, by_minute[..., 0, :], by_minute[..., 1, :]) - np.where(
        which, by_minute[..., 1, :], by_minute[..., 0, :]
    )
    x = np.stack([log_ratio(arrivals, np.ones_like(arrivals)), log_ratio(prompts, arrivals)], axis=-1)
    return Runs(log_ratio(cost * tokens, tokens), x, minutes)


def _strength(treated: npt.NDArray[np.bool_], design: Design) -> Floats:
    """[runs, windows, minutes]: how much of the treatment acts in each minute; the arm before shows at first."""
    now = treated[..., None].astype(np.float64)
    before = np.concatenate([treated[:, :1], treated[:, :-1]], axis=1)[..., None].astype(np.float64)
    if not design.carry_over_min:
        return np.broadcast_to(now, (*treated.shape, design.window_min)).copy()
    edges = np.arange(design.window_min + 1) / design.carry_over_min
    left = design.carry_over_min * (np.exp(-edges[:-1]) - np.exp(-edges[1:]))  # its mean over each minute
    strength: Floats = now + (before - now) * left
    return strength


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """What a request-level A/B reports, and what is true. Shares: 0.5 is half as many again.

    in_batch_gain: tokens a second of treated requests against untreated ones in the same batch. true_gain: of all
    requests treated against none. control_slowdown: how much longer a token takes an untreated request because others
    are treated.
    """

    in_batch_gain: float
    true_gain: float
    control_slowdown: float
    treated_busy_s: float
    treated_tokens: int
    plain_busy_s: float
    plain_tokens: int


def shared_batch(
    sequences: int = 32, k: int = 4, accept: float = 0.75, free_positions: int = 45, steps: int = 2000, seed: int = 0
) -> SharedBatch:
    """Steps of one batch, half of it drafting K tokens of which each is accepted with probability `accept`.

    A step takes one unit until `free_positions` are computed in it, and grows in proportion from there: the roofline of
    a forward pass (adaptive.md 4), for which `sequences` x (K + 1) positions are too many.
    """
    rng = np.random.default_rng(seed)

    def emitted(rows: int) -> npt.NDArray[np.int64]:
        kept = rng.random((steps, rows, k)) < accept
        return (np.cumprod(kept, axis=2).sum(axis=2) + 1).sum(axis=1)

    def seconds(positions: int) -> float:
        return max(1.0, positions / free_positions)

    half = sequences // 2
    mixed_s = seconds(half * (k + 1) + (sequences - half))
    ours = emitted(half).sum() / (half * steps * mixed_s)
    theirs = 1.0 / mixed_s
    plain_s, treated_s = seconds(sequences), seconds(sequences * (k + 1))
    treated = int(emitted(sequences).sum())
    plain = sequences * steps
    return SharedBatch(
        in_batch_gain=float(ours / theirs) - 1,
        true_gain=(treated / treated_s) / (plain / plain_s) - 1,
        control_slowdown=mixed_s / plain_s - 1,
        treated_busy_s=steps * treated_s,
        treated_tokens=treated,
        plain_busy_s=steps * plain_s,
        plain_tokens=plain,
    )
