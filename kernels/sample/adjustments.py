"""What a request does to single logits before they are sampled: penalties for tokens seen, and biases. All sparse."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

REPETITION_OFF, PRESENCE_OFF, FREQUENCY_OFF = 1.0, 0.0, 0.0


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of B sequences, each once; those of sequence b are cu[b] .. cu[b + 1].

    token_ids: [n] i64. output_counts: [n] i32, occurrences in the output, 0 for a token of the prompt alone.
    cu: [B + 1] i32, rising from 0 to n; a sequence without penalties needs no tokens.
    """

    token_ids: torch.Tensor
    output_counts: torch.Tensor
    cu: torch.Tensor


@dataclass(frozen=True, slots=True)
class LogitBias:
    """What is added to single logits: token_ids [n] i64, each once a row; values [n] f32; cu [B + 1] i32 as above.

    A value of -inf bans the token.
    """

    token_ids: torch.Tensor
    values: torch.Tensor
    cu: torch.Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of B sequences: repetition, presence, frequency [B] f32, and the tokens that they hit."""

    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    counts: TokenCounts


def count_tokens(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> TokenCounts:
    """TokenCounts of B sequences from the token ids of their prompts and outputs."""
    token_ids: list[int] = []
    output_counts: list[int] = []
    bounds = [0]
    for prompt, output in zip(prompts, outputs, strict=True):
        counts = Counter(dict.fromkeys(prompt, 0))
        counts.update(output)
        token_ids += counts.keys()
        output_counts += counts.values()
        bounds.append(len(token_ids))
    return TokenCounts(
        torch.tensor(token_ids, dtype=torch.int64, device=device),
        torch.tensor(output_counts, dtype=torch.int32, device=device),
        torch.tensor(bounds, dtype=torch.int32, device=device),
    )


def penalties_of(
    repetition: torch.Tensor | None,
    presence: torch.Tensor | None,
    frequency: torch.Tensor | None,
    counts: TokenCounts | None,
    like: torch.Tensor,
) -> Penalties | None:
    """Penalties for the B sequences whose temperatures are `like` [B]; None if none is given."""
    given = (("repetition", repetition), ("presence", presence), ("frequency", frequency))
    if all(value is None for _, value in given):
        return None
    if counts is None:
        raise ValueError("a penalty is given without token_counts; pass those of count_tokens")
    for name, value in given:
        if value is not None:
            _check_penalty(name, value, like)
    off = torch.zeros_like(like)
    return Penalties(
        repetition if repetition is not None else torch.full_like(like, REPETITION_OFF),
        presence if presence is not None else off,
        frequency if frequency is not None else off,
        counts,
    )


def penalised(
    logits: torch.Tensor,
    occurrences: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Logits [..., n] f32 of n tokens that were seen, `occurrences` [..., n] i32 times in the output.

    repetition, presence, frequency: [] f32 each; `kernels.sample.sample` has the rule.
    """
    logits = torch.where(logits > 0, logits * (1.0 / repetition), logits * repetition)
    logits = logits - frequency * occurrences
    return torch.where(occurrences > 0, logits - presence, logits)


def check_ragged(
    name: str, token_ids: torch.Tensor, values: torch.Tensor, cu: torch.Tensor, logits: torch.Tensor
) -> None:
    """Raise ValueError naming the field that does not fit the rows of `logits` [B, V]; reads host tensors only."""
    batch, vocab_size = logits.shape
    wanted = torch.float32 if name == "logit_bias" else torch.int32
    if token_ids.dtype != torch.int64 or values.dtype != wanted or cu.dtype != torch.int32:
        raise ValueError(f"{name} is {token_ids.dtype}, {values.dtype}, {cu.dtype}; it must be int64, {wanted}, int32")
    if token_ids.ndim != 1 or token_ids.shape != values.shape or cu.shape != (batch + 1,):
        shapes = ", ".join(str(tuple(t.shape)) for t in (token_ids, values, cu))
        raise ValueError(f"{name} has shapes {shapes}; {batch} rows need (n,), (n,), ({batch + 1},)")
    if {token_ids.device, values.device, cu.device} != {logits.device}:
        raise ValueError(f"{name} is on {token_ids.device}, {values.device}, {cu.device}; move it to {logits.device}")
    if cu.device.type != "cpu":
        return
    bounds = cu.tolist()
    if bounds[0] != 0 or bounds[-1] != len(token_ids) or any(a > b for a, b in itertools.pairwise(bounds)):
        raise ValueError(f"{name}.cu is {bounds}; it must rise from 0 to {len(token_ids)}, the number of tokens")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise ValueError(f"{name}.token_ids must lie in [0, {vocab_size})")
    owner = torch.arange(batch).repeat_interleave(cu.diff())
    if len(torch.unique(owner * vocab_size + token_ids)) < len(token_ids):
        raise ValueError(f"{name}.token_ids names a token twice in a row; give each once")
    if bool((values.isnan() | (values == torch.inf)).any() if name == "logit_bias" else (values < 0).any()):
        raise ValueError(f"{name} has a value of NaN or +inf, or a negative count; correct it")


def _check_penalty(name: str, value: torch.Tensor, like: torch.Tensor) -> None:
    if value.dtype != torch.float32 or value.shape != like.shape:
        raise ValueError(f"{name}_penalty is {value.dtype} {tuple(value.shape)}; it must be float32 ({len(like)},)")
    if value.device != like.device:
        raise ValueError(f"{name}_penalty is on {value.device}, not on {like.device}; move one")
    if value.device.type != "cpu":
        return
    if not bool(value.isfinite().all()) or (name == "repetition" and bool((value <= 0).any())):
        bound = "finite and above 0" if name == "repetition" else "finite"
        raise ValueError(f"{name}_penalty is {value.tolist()}; each must be {bound}")
