"""What the Medusa heads are asked and what they answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_K = 16
MAX_VOCAB = 4096 * 128
"""4096 blocks of the vocabulary are what one program of the last launch merges."""
HIDDEN_MULTIPLE = 16
"""Rows of weights then start at a multiple of 16 bytes, and 16 bytes are what a thread reads at once."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best tokens of every head for B rows.

    token_ids: [B, heads, k] i64, by falling logit, ties by rising id. logits: [B, heads, k] f32. log_sum_exp:
    [B, heads] f32 over the whole (truncated) vocabulary, so that exp(logits - log_sum_exp) are probabilities.
    """

    token_ids: torch.Tensor
    logits: torch.Tensor
    log_sum_exp: torch.Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """The validated arguments of `medusa_heads`; shapes and meaning as there."""

    hidden: torch.Tensor
    residual_weight: torch.Tensor
    residual_bias: torch.Tensor | None
    lm_head_weight: torch.Tensor
    vocab_map: torch.Tensor | None
    k: int

    def __post_init__(self) -> None:
        self._check_types()
        self._check_shapes()
        # Reading values of a device tensor would stall the stream, so only host tensors are checked further.
        if self.vocab_map is not None and self.vocab_map.device.type == "cpu":
            self._check_vocab_map(self.vocab_map)

    @property
    def num_heads(self) -> int:
        return self.residual_weight.shape[0]

    @property
    def vocab_size(self) -> int:
        """Tokens the heads choose among: the rows of one LM head."""
        return self.lm_head_weight.shape[-2]

    @property
    def is_shared(self) -> bool:
        """One LM head for all heads."""
        return self.lm_head_weight.ndim == 2

    def _check_types(self) -> None:
        if self.hidden.dtype not in WEIGHT_TYPES:
            raise ValueError(f"hidden is {self.hidden.dtype}; it must be float32, bfloat16 or float16")
        for name in ("residual_weight", "residual_bias", "lm_head_weight", "vocab_map"):
            value: torch.Tensor | None = getattr(self, name)
            if value is None:
                continue
            wanted = torch.int64 if name == "vocab_map" else self.hidden.dtype
            if value.dtype != wanted:
                raise ValueError(f"{name} is {value.dtype}; it must be {wanted}")
            if value.device != self.hidden.device:
                raise ValueError(f"{name} is on {value.device}, not on {self.hidden.device}; move one")

    def _check_shapes(self) -> None:
        if self.hidden.ndim != 2:
            raise ValueError(f"hidden has shape {tuple(self.hidden.shape)}; it must be [rows, hidden size]")
        size = self.hidden.shape[1]
        if size < 1 or size % HIDDEN_MULTIPLE:
            raise ValueError(f"hidden has {size} columns; the hidden size must be a multiple of {HIDDEN_MULTIPLE}")
        weight = self.residual_weight
        if weight.ndim != 3 or weight.shape[0] < 1 or weight.shape[1:] != (size, size):
            raise ValueError(f"residual_weight has shape {tuple(weight.shape)}; it must be (heads, {size}, {size})")
        bias = self.residual_bias
        if bias is not None and tuple(bias.shape) != (self.num_heads, size):
            raise ValueError(f"residual_bias has shape {tuple(bias.shape)}; it must be {(self.num_heads, size)}")
        head = self.lm_head_weight
        if head.ndim not in (2, 3) or head.shape[-1] != size or (head.ndim == 3 and head.shape[0] != self.num_heads):
            raise ValueError(
                f"lm_head_weight has shape {tuple(head.shape)}; it must be (vocabulary, {size}) for all heads, or "
                f"({self.num_heads}, vocabulary, {size})"
            )
        if not 1 <= self.k <= min(MAX_K, self.vocab_size):
            raise ValueError(f"k is {self.k}; it must be 1 to {min(MAX_K, self.vocab_size)}")
        if self.vocab_size > MAX_VOCAB:
            raise ValueError(f"lm_head_weight has {self.vocab_size} tokens; {MAX_VOCAB} is the most that is merged")
        if self.vocab_map is not None and tuple(self.vocab_map.shape) != (self.vocab_size,):
            raise ValueError(f"vocab_map has shape {tuple(self.vocab_map.shape)}; it must be ({self.vocab_size},)")

    def _check_vocab_map(self, vocab_map: torch.Tensor) -> None:
        if not 0 <= int(vocab_map.min()) <= int(vocab_map.max()) < 2**31 - 1:
            raise ValueError("vocab_map must hold token ids from 0 to 2**31 - 2")
        if len(vocab_map.unique()) != len(vocab_map):
            raise ValueError("vocab_map names a token twice; each row of the LM head needs a token of its own")
