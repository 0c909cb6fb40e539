"""What a verification is asked and what it answers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch

from kernels.filters import Limits
from kernels.verify.shapes import MAX_VOCAB

Rule = Literal["token", "block"]
RULES: tuple[Rule, ...] = ("token", "block")
LOGIT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
# Below this temperature logits / temperature may overflow float32; such a row is greedy, as temperature 0 is.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one draft-verify step for a batch of B sequences.

    num_accepted: [B] i32, accepted draft tokens. token_ids: [B, max_k + 1] i64, the accepted draft tokens, then the
    recovered or bonus token, then -1. overlap: [num_draft] f32, sum over the vocabulary of
    min(target_probs, draft_probs) at every examined position (the accepted ones and the first rejected), NaN elsewhere;
    for a greedy row and for a proposal without draft logits the distribution in question is one-hot. Block verification
    has draft_probs / scale there, the joint scale of the tokens before: so with either rule the mean of the examined
    positions is the share of them that is kept.
    """

    num_accepted: torch.Tensor
    token_ids: torch.Tensor
    overlap: torch.Tensor


@dataclass(frozen=True, slots=True)
class Chains:
    """The validated arguments of `verify_chain`; shapes and meaning as there. max_k is known on the host."""

    target_logits: torch.Tensor
    draft_token_ids: torch.Tensor
    draft_logits: torch.Tensor | None
    cu_draft: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    coupled: torch.Tensor
    max_k: int
    limits: Limits | None = None
    rule: Rule = "token"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule is {self.rule!r}; use one of {', '.join(RULES)}")
        self._check_types()
        self._check_shapes()
        # Reading values of a device tensor would stall the stream, so only host tensors are checked further.
        if self.cu_draft.device.type == "cpu":
            self._check_values()

    def _check_types(self) -> None:
        for name, wanted in (
            ("draft_token_ids", torch.int64),
            ("cu_draft", torch.int32),
            ("temperature", torch.float32),
            ("seeds", torch.int64),
            ("positions", torch.int64),
            ("coupled", torch.bool),
        ):
            value: torch.Tensor = getattr(self, name)
            if value.dtype != wanted:
                raise ValueError(f"{name} is {value.dtype}; it must be {wanted}")
            if value.ndim != 1:
                raise ValueError(f"{name} has shape {tuple(value.shape)}; it must have one dimension")
            if value.device != self.target_logits.device:
                raise ValueError(f"{name} is on {value.device}, not on {self.target_logits.device}; move one")
        for name, logits in (("target_logits", self.target_logits), ("draft_logits", self.draft_logits)):
            if logits is None:
                continue
            if logits.dtype not in LOGIT_TYPES:
                raise ValueError(f"{name} is {logits.dtype}; it must be float32, bfloat16 or float16")
            if logits.ndim != 2 or logits.shape[1] < 1:
                raise ValueError(f"{name} has shape {tuple(logits.shape)}; it must be [rows, vocabulary]")
            if logits.shape[1] > MAX_VOCAB:
                raise ValueError(f"{name} has a vocabulary of {logits.shape[1]}; at most {MAX_VOCAB} tokens fit")
            if logits.device != self.target_logits.device:
                raise ValueError(f"{name} is on {logits.device}, not on {self.target_logits.device}; move one")

    def _check_shapes(self) -> None:
        batch, num_draft = len(self.temperature), len(self.draft_token_ids)
        for name, wanted in (("cu_draft", batch + 1), ("seeds", batch), ("positions", batch), ("coupled", batch)):
            if len(getattr(self, name)) != wanted:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries; {batch} temperatures need {wanted}")
        if len(self.target_logits) != num_draft + batch:
            raise ValueError(
                f"target_logits has {len(self.target_logits)} rows; {num_draft} draft tokens of {batch} sequences "
                f"need {num_draft + batch}"
            )
        if self.draft_logits is not None:
            wanted_shape = (num_draft, self.target_logits.shape[1])
            if tuple(self.draft_logits.shape) != wanted_shape:
                raise ValueError(f"draft_logits has shape {tuple(self.draft_logits.shape)}; it must be {wanted_shape}")

    def _check_values(self) -> None:
        bounds, num_draft = self.cu_draft.tolist(), len(self.draft_token_ids)
        if bounds[0] != 0 or bounds[-1] != num_draft or any(a > b for a, b in itertools.pairwise(bounds)):
            raise ValueError(f"cu_draft is {bounds}; it must rise from 0 to {num_draft}, the number of draft tokens")
        deepest = max((b - a for a, b in itertools.pairwise(bounds)), default=0)
        if self.max_k < deepest:
            raise ValueError(f"max_k is {self.max_k}, but cu_draft has a chain of {deepest}")
        vocab_size = self.target_logits.shape[1]
        if num_draft and not 0 <= int(self.draft_token_ids.min()) <= int(self.draft_token_ids.max()) < vocab_size:
            raise ValueError(f"draft_token_ids must lie in [0, {vocab_size})")
        if not bool(((self.temperature >= 0) & self.temperature.isfinite()).all()):
            raise ValueError(f"temperature is {self.temperature.tolist()}; each must be finite and at least 0")
