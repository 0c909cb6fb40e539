"""Examples as tensors, and the order in which training sees them: a function of seed and epoch, so that it resumes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from workers.training.features import Example

SORTED_BATCHES = 8
"""Batches whose examples are sorted by length together: less padding, and still a random order."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Examples side by side, padded on the right.

    token_ids: [batch, length] int64. features: [batch, length, layers, hidden]. last_hidden: [batch, length, hidden].
    is_answer: [batch, length] bool, tokens that the target gave (those to learn). lengths: [batch] int64. temperature:
    [batch], of the sampling.
    """

    token_ids: torch.Tensor
    features: torch.Tensor
    last_hidden: torch.Tensor
    is_answer: torch.Tensor
    lengths: torch.Tensor
    temperature: torch.Tensor

    @property
    def answer_tokens(self) -> int:
        return int(self.is_answer.sum())

    @classmethod
    def of(cls, examples: Sequence[Example], dtype: torch.dtype = torch.float32) -> TrainingBatch:
        longest = max(len(e.token_ids) for e in examples)
        layers, hidden = examples[0].features.shape[1:]
        token_ids = torch.zeros(len(examples), longest, dtype=torch.int64)
        features = torch.zeros(len(examples), longest, layers, hidden, dtype=dtype)
        last_hidden = torch.zeros(len(examples), longest, hidden, dtype=dtype)
        is_answer = torch.zeros(len(examples), longest, dtype=torch.bool)
        for b, e in enumerate(examples):
            length = len(e.token_ids)
            token_ids[b, :length] = e.token_ids
            features[b, :length] = e.features.to(dtype)
            last_hidden[b, :length] = e.last_hidden.to(dtype)
            is_answer[b, e.answer_start : length] = True
        lengths = torch.tensor([len(e.token_ids) for e in examples])
        temperature = torch.tensor([e.answer.question.temperature for e in examples])
        return cls(token_ids, features, last_hidden, is_answer, lengths, temperature)


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Along dimension 1: what is `by` places later, zeros (False) where the text has ended."""
    out = torch.zeros_like(x)
    out[:, : max(x.shape[1] - by, 0)] = x[:, by:]
    return out


def batch_order(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of one epoch's batches: every example once, the remainder that fills no batch left out."""
    generator = random.Random(f"{seed} {epoch}")
    order = list(range(len(lengths)))
    generator.shuffle(order)
    batches = []
    for window in range(0, len(order), batch_size * SORTED_BATCHES):
        part = sorted(order[window : window + batch_size * SORTED_BATCHES], key=lambda i: lengths[i])
        batches += [part[i : i + batch_size] for i in range(0, len(part), batch_size)]
    full = [batch for batch in batches if len(batch) == batch_size] or batches
    generator.shuffle(full)
    return full


def endless_batches(lengths: Sequence[int], batch_size: int, seed: int, start: int) -> Iterator[list[int]]:
    """Batches from the `start`-th on, epoch after epoch."""
    per_epoch = len(batch_order(lengths, batch_size, seed, 0))
    epoch, skip = divmod(start, per_epoch)
    while True:
        yield from batch_order(lengths, batch_size, seed, epoch)[skip:]
        epoch, skip = epoch + 1, 0
