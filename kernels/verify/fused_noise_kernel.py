"""The noise of `noise.py` in Triton: the same words from the same counters, the same formulas on them."""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unit(word):
    """Map u32 to float32 strictly inside (0, 1), as noise._unit does."""
    return tl.minimum(word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10, 0.99999994039535522)


@triton.jit
def _negative_log1p(u):
    """-log(1 - u) without losing small u: the rounding error of 1 - u cancels in u / (1 - w) (Goldberg 1991, th. 4)."""
    w = 1.0 - u
    lost = 1.0 - w
    return tl.where(lost == 0.0, u, -tl.log(w) * (u / tl.where(lost == 0.0, 1.0, lost)))


@triton.jit
def philox_words(seed, position, purpose, counters):
    return tl.philox(
        seed,
        counters,
        counters * 0 + (position & 0xFFFFFFFF).to(tl.uint32),
        counters * 0 + ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        counters * 0 + purpose,
    )


@triton.jit
def gumbel_block(seed, position, purpose, first_token, BLOCK: tl.constexpr):
    """Noise [BLOCK] of the tokens from `first_token`, a multiple of 4."""
    counters = (first_token // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    lane_0, lane_1, lane_2, lane_3 = philox_words(seed, position, purpose, counters)
    even, odd = tl.join(lane_0, lane_2), tl.join(lane_1, lane_3)
    words = tl.reshape(tl.join(even, odd), (BLOCK,))
    return -tl.log(_negative_log1p(unit(words)))


@triton.jit(do_not_specialize=["purpose"])
def gumbel_noise_kernel(noise_ptr, noise_stride, seed_ptr, position_ptr, vocab_size, purpose, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first_token = tl.program_id(1) * BLOCK
    tokens = first_token + tl.arange(0, BLOCK)
    noise = gumbel_block(tl.load(seed_ptr + row), tl.load(position_ptr + row), purpose, first_token, BLOCK)
    tl.store(noise_ptr + row * noise_stride + tokens, noise, mask=tokens < vocab_size)
