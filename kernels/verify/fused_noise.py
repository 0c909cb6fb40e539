"""Rows of noise by Triton."""

from __future__ import annotations

import torch
import triton

from kernels.launch import are_rows_aligned
from kernels.verify.launches import noise_launch
from kernels.verify.noise import Purpose
from kernels.verify.shapes import BLOCK


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, purpose: Purpose) -> torch.Tensor:
    """See `kernels.verify.gumbel_noise`."""
    noise = torch.empty((len(seeds), vocab_size), dtype=torch.float32, device=seeds.device)
    if len(seeds):
        noise_launch(are_rows_aligned(noise)).run(
            (len(seeds), triton.cdiv(vocab_size, BLOCK)),
            noise,
            noise.stride(0),
            seeds,
            positions,
            vocab_size,
            int(purpose),
        )
    return noise
