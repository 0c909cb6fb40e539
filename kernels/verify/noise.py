"""Random numbers as a function of (seed, position, purpose, token), so that any backend and any batch draws the same.

Philox-4x32-10 (Salmon et al., SC 2011) with key = the 64 bits of the seed and counter = (token // 4, low and high half
of the position, purpose); lane token % 4 belongs to the token. Nothing is stored between calls.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from kernels.verify import native_noise

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_2 = np.uint64(0xCD9E8D57)
_KEY_STEP_0 = 0x9E3779B9
_KEY_STEP_1 = 0xBB67AE85
_ROUNDS = 10
# Counters worked on together: more would leave the processor's cache, fewer would pay for the calls.
_CACHED_COUNTERS = 12288
# The largest float32 below 1: a word that rounds up to 1 would have an infinite noise.
_BELOW_ONE = np.float32(1.0 - 2.0**-24)


class Purpose(IntEnum):
    """The independent streams of one (seed, position). Two uses of one stream would bias the text."""

    DRAFT = 0
    """A drafter sampling its own proposal (unseeded)."""
    ACCEPT = 1
    """The uniform of the acceptance test."""
    RESAMPLE = 2
    """The recovered or the bonus token."""
    COUPLED = 3
    """The row that target and drafter share when the request carries a seed."""


def uniform(seed: torch.Tensor, position: torch.Tensor, purpose: Purpose) -> torch.Tensor:
    """One float32 strictly inside (0, 1) for each pair of `seed` and `position` (i64, same shape), on their device."""
    check_streams(seed, position)
    words = _philox(np.zeros((seed.numel(), 1), np.uint64), _as_words(position), _as_words(seed), purpose)[0]
    return torch.from_numpy(_unit(words)).reshape(seed.shape).to(seed.device)


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, count: int, purpose: Purpose) -> torch.Tensor:
    """Return [n, count] float32 inside (0, 1), independent ones of each pair; number i stands where token i would.

    Number 0 is that of `uniform`. Siblings in a tree of drafts take one each, by their rank.
    """
    check_streams(seeds, positions)
    counters = np.arange(-(-count // 4), dtype=np.uint64)[None, :]
    lanes = _philox(counters, _as_words(positions), _as_words(seeds), purpose)
    words = np.stack(lanes, -1).reshape(len(seeds), 4 * counters.shape[1])[:, :count]
    return torch.from_numpy(_unit(words)).to(seeds.device)


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, purpose: Purpose) -> torch.Tensor:
    """See `kernels.verify.gumbel_noise`."""
    quads = -(-vocab_size // 4)
    keys, places = _as_words(seeds), _as_words(positions)
    if native_noise.obstacle() is None:
        noise = native_noise.uniforms(keys, places, 4 * quads, purpose)
        for row in noise:
            _to_gumbel(row)
    else:
        noise = _gumbel_by_numpy(keys, places, quads, purpose)
    return torch.from_numpy(noise[:, :vocab_size]).to(seeds.device)


def _gumbel_by_numpy(keys: np.ndarray, places: np.ndarray, quads: int, purpose: Purpose) -> np.ndarray:
    """[n, 4 * quads] float32, where there is no compiler."""
    counters = np.arange(quads, dtype=np.uint64)[None, :]
    noise = np.empty((len(keys), quads, 4), np.float32)
    at_once = max(1, _CACHED_COUNTERS // quads)
    for start in range(0, len(keys), at_once):
        rows = slice(start, start + at_once)
        for lane, words in enumerate(_philox(counters, places[rows], keys[rows], purpose)):
            noise[rows, :, lane] = _to_gumbel(_unit(words))
    return noise.reshape(len(keys), 4 * quads)


def _to_gumbel(units: np.ndarray) -> np.ndarray:
    """In place. -log1p(-u), not -log(u): the largest noise decides an argmax, so small exponentials need fine steps."""
    np.negative(units, out=units)
    np.log1p(units, out=units)
    np.negative(units, out=units)
    np.log(units, out=units)
    return np.negative(units, out=units)


def _unit(words: np.ndarray) -> np.ndarray:
    """Map 32-bit words to float32 strictly inside (0, 1): (word + 1/2) / 2^32, fine steps near 0."""
    fractions = words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    clipped: np.ndarray = np.minimum(fractions, _BELOW_ONE)
    return clipped


def _philox(counters: np.ndarray, positions: np.ndarray, seeds: np.ndarray, purpose: Purpose) -> tuple[np.ndarray, ...]:
    """Four 32-bit words (held in u64) for each of `counters` [n or 1, c], under `positions` and `seeds` [n] u64."""
    shape = np.broadcast_shapes(counters.shape, (len(seeds), 1))
    word_0 = np.broadcast_to(counters, shape)
    word_1 = np.broadcast_to((positions & _LOW)[:, None], shape)
    word_2 = np.broadcast_to((positions >> _HALF)[:, None], shape)
    word_3 = np.full(shape, int(purpose), np.uint64)
    key_0, key_1 = (seeds & _LOW)[:, None], (seeds >> _HALF)[:, None]
    for _ in range(_ROUNDS):
        product_0, product_2 = word_0 * _MULTIPLIER_0, word_2 * _MULTIPLIER_2
        high_0, high_2 = product_0 >> _HALF, product_2 >> _HALF
        high_2 ^= word_1
        high_2 ^= key_0
        high_0 ^= word_3
        high_0 ^= key_1
        product_0 &= _LOW
        product_2 &= _LOW
        word_0, word_1, word_2, word_3 = high_2, product_2, high_0, product_0
        key_0, key_1 = (key_0 + np.uint64(_KEY_STEP_0)) & _LOW, (key_1 + np.uint64(_KEY_STEP_1)) & _LOW
    return word_0, word_1, word_2, word_3


def _as_words(values: torch.Tensor) -> np.ndarray:
    """Return the bits of int64 values, flat, as unsigned 64-bit."""
    return values.detach().reshape(-1).cpu().contiguous().numpy().view(np.uint64)


def check_streams(seeds: torch.Tensor, positions: torch.Tensor) -> None:
    if seeds.dtype != torch.int64 or positions.dtype != torch.int64:
        raise ValueError(f"seeds and positions must be int64, not {seeds.dtype} and {positions.dtype}")
    if seeds.shape != positions.shape:
        raise ValueError(f"seeds {tuple(seeds.shape)} and positions {tuple(positions.shape)} must have one shape")
