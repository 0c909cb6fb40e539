"""What the target alone would have emitted, against what was: token by token, by teacher forcing.

Text that was verified is the target's own up to rounding. Where a token differs, the question is how far its score lies
under the best: rounding moves scores by a share of the logits' size, a wrong token is anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace

import torch

from workers.sampling import restrict_rows
from workers.sequence import EngineRequest, SamplingParams
from workers.verifier import target_scores

NEAR_TIE = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 1e-5}
"""Share of a row's largest logit by which another order of sums may move the distance of two leading tokens.

Measured on SmolLM2-135M, 459 positions, slots against the library's own attention: at most 2.8e-2 in bf16 and 1.1e-6
in fp32 (docs/canary.md). float16 has three bits more than bf16.
"""


SAMPLING = frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "ignore_eos", "min_tokens"})
REQUEST = frozenset({"request_id", "prompt_token_ids", "sampling", "cohort", "tenant", "route", "stream", "created_at"})
"""What `compare` knows of a request. A wish that is new here would make right text look wrong: it is not checked."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of some positions of one completion; fields as in controlplane.alerts.CanaryCheck, worst_gap inf for None."""

    positions: int = 0
    near_ties: int = 0
    mismatches: int = 0
    worst_gap: float = 0.0
    tolerance: float = 0.0
    first_mismatch: int | None = None

    def __add__(self, later: Comparison) -> Comparison:
        worst = max(self, later, key=lambda c: c.worst_gap)
        return Comparison(
            self.positions + later.positions,
            self.near_ties + later.near_ties,
            self.mismatches + later.mismatches,
            worst.worst_gap,
            max(self.tolerance, later.tolerance),
            self.first_mismatch if self.first_mismatch is not None else later.first_mismatch,
        )


def is_reproducible(request: EngineRequest) -> bool:
    """Whether `compare` can tell what the text must be: greedy or seeded, and with no wish that it does not know."""
    sampling = request.sampling
    is_determined = sampling.temperature == 0 or sampling.seed is not None
    return is_determined and _asks_only(sampling, SAMPLING) and _asks_only(request, REQUEST)


def _asks_only(wishes: EngineRequest | SamplingParams, known: frozenset[str]) -> bool:
    """Whether everything but the `known` fields is left at its default."""
    return all(getattr(wishes, f.name) == f.default for f in fields(wishes) if f.name not in known)


def noise_seed_of(sampling: SamplingParams) -> int:
    """The key of a seeded request's noise; anything for a greedy one, which has none."""
    return 0 if sampling.seed is None else sampling.seed % 2**63


def compare(
    logits: torch.Tensor, request: EngineRequest, emitted: Seq[int], at: int, eos_token_ids: Seq[int]
) -> Comparison:
    """`logits` [n, vocab] decide the n tokens `emitted`, the first of which is number `at` of the completion."""
    sampling, position = request.sampling, len(request.prompt_token_ids) + at
    limited = restrict_rows(logits, sampling, at, eos_token_ids)
    scores = target_scores(limited, sampling.temperature, noise_seed_of(sampling), position)
    # numpy's argmax takes the lowest of equal ones, as verification does.
    own = scores.cpu().numpy().argmax(-1).tolist()
    total = Comparison(len(emitted))
    for j, (best, token) in enumerate(zip(own, emitted, strict=True)):
        if best == token:
            continue
        row = logits[j : j + 1]
        tolerance = NEAR_TIE.get(logits.dtype, NEAR_TIE[torch.bfloat16]) * float(row.float().abs().max())
        gap = _gap(row, request, token, at + j, eos_token_ids, tolerance)
        is_wrong = gap > tolerance
        total += Comparison(0, int(not is_wrong), int(is_wrong), gap, tolerance, at + j if is_wrong else None)
    return total


def _gap(
    row: torch.Tensor, request: EngineRequest, token: int, number: int, eos_token_ids: Seq[int], tolerance: float
) -> float:
    """How far `token` lies under the best for `row` [1, vocab], in logits; inf where no rounding would allow it.

    A token at the border of top-k or top-p may have been in or out: the best of those that were in for certain
    competes, and the token need only be one of those that may have been.
    """
    sampling, seed = request.sampling, noise_seed_of(request.sampling)
    tight, loose = _borders(row, sampling, number, eos_token_ids, tolerance)
    position = len(request.prompt_token_ids) + number

    def scores(limits: SamplingParams) -> torch.Tensor:
        limited = restrict_rows(row, limits, number, eos_token_ids)
        return target_scores(limited, sampling.temperature, seed, position)[0]

    own = float(scores(loose)[token])
    if math.isinf(own):
        return math.inf
    scale = sampling.temperature if sampling.seed is not None and sampling.temperature > 0 else 1.0
    return max(float(scores(tight).max()) - own, 0.0) * scale


def _borders(
    row: torch.Tensor, sampling: SamplingParams, number: int, eos_token_ids: Seq[int], tolerance: float
) -> tuple[SamplingParams, SamplingParams]:
    """Limits that only let in what is in for certain, and limits that let in whatever may have been in.

    Errors of `tolerance` between two logits move the log-odds of any set of tokens by tolerance / temperature at most,
    and its mass by a quarter of that.
    """
    if sampling.temperature == 0:
        return sampling, sampling
    slack = tolerance / (4 * sampling.temperature)
    tight, loose = sampling, sampling
    if 0 < sampling.top_k < row.shape[-1]:
        allowed = restrict_rows(row, replace(sampling, top_k=0, top_p=1.0), number, eos_token_ids)[0].float()
        last_in, first_out = allowed.topk(sampling.top_k + 1).values[-2:].tolist()
        certain = int((allowed > first_out + tolerance).sum())
        tight = replace(tight, top_k=max(certain, 1))
        loose = replace(loose, top_k=int((allowed >= last_in - tolerance).sum()))
    if sampling.top_p < 1:
        tight = replace(tight, top_p=max(sampling.top_p - slack, 1e-6))
        loose = replace(loose, top_p=min(sampling.top_p + slack, 1.0))
    return tight, loose
