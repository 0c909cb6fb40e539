"""What a sampling is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.filters import Limits
from kernels.sample.adjustments import LogitBias, Penalties, check_ragged
from kernels.verify.noise import Purpose
from kernels.verify.shapes import MAX_VOCAB
from kernels.verify.verdict import LOGIT_TYPES


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token of each row.

    token_ids: [B] i64. logprobs: [B] f32, natural logarithm of the token's probability in the distribution that was
    sampled (after penalties, temperature and filters); of a greedy row, in that of temperature 1.
    """

    token_ids: torch.Tensor
    logprobs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """The validated arguments of `sample`; shapes and meaning as there."""

    logits: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    coupled: torch.Tensor
    purpose: Purpose
    limits: Limits | None
    penalties: Penalties | None
    logit_bias: LogitBias | None

    def __post_init__(self) -> None:
        logits, batch = self.logits, len(self.temperature)
        if logits.dtype not in LOGIT_TYPES:
            raise ValueError(f"logits is {logits.dtype}; it must be float32, bfloat16 or float16")
        if logits.ndim != 2 or not 1 <= logits.shape[1] <= MAX_VOCAB:
            raise ValueError(f"logits has shape {tuple(logits.shape)}; it must be [rows, 1 to {MAX_VOCAB} tokens]")
        if len(logits) != batch:
            raise ValueError(f"logits has {len(logits)} rows; {batch} temperatures need {batch}")
        for name, wanted in (
            ("temperature", torch.float32),
            ("seeds", torch.int64),
            ("positions", torch.int64),
            ("coupled", torch.bool),
        ):
            value: torch.Tensor = getattr(self, name)
            if value.dtype != wanted or value.shape != (batch,):
                raise ValueError(f"{name} is {value.dtype} {tuple(value.shape)}; it must be {wanted} ({batch},)")
            if value.device != logits.device:
                raise ValueError(f"{name} is on {value.device}, not on {logits.device}; move one")
        temperature = self.temperature
        if temperature.device.type == "cpu" and not bool(((temperature >= 0) & temperature.isfinite()).all()):
            raise ValueError(f"temperature is {temperature.tolist()}; each must be finite and at least 0")
        if self.penalties is not None:
            counts = self.penalties.counts
            check_ragged("token_counts", counts.token_ids, counts.output_counts, counts.cu, logits)
        if self.logit_bias is not None:
            bias = self.logit_bias
            check_ragged("logit_bias", bias.token_ids, bias.values, bias.cu, logits)
