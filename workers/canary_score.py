"""What the target alone would have emitted, against what was: token by token, by teacher forcing.

Text that was verified is the target's own up to rounding. Where a token differs, the question is how far its score lies
under the best: rounding moves scores by a share of the logits' size, a wrong token is anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace

import torch

from workers.grammar import unpack
from workers.penalties import TokenTally, has_penalties
from workers.sampling import adjust, is_greedy, restrict
from workers.sequence import EngineRequest, RowMasks, SamplingParams
from workers.verifier import target_scores

NEAR_TIE = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 1e-5}
"""Share of a row's largest logit by which another order of sums may move the distance of two leading tokens.

Measured on SmolLM2-135M, 459 positions, slots against the library's own attention: at most 2.8e-2 in bf16 and 1.1e-6
in fp32 (docs/canary.md). float16 has three bits more than bf16.
"""


SAMPLING = frozenset(
    {"max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "ignore_eos", "min_tokens", "min_p", "logit_bias"}
    | {"repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs", "prompt_logprobs", "stop_token_ids"}
)
REQUEST = frozenset(
    {"request_id", "prompt_token_ids", "sampling", "cohort", "tenant", "route", "stream", "created_at"}
    | {"prediction", "grammar", "deadline_at", "service_tier", "traceparent"}
)
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
    logits: torch.Tensor,
    request: EngineRequest,
    emitted: Seq[int],
    at: int,
    eos_token_ids: Seq[int],
    grammar: RowMasks | None = None,
) -> Comparison:
    """`logits` [n, vocab], raw, decide n tokens of the completion `emitted`, the first of which is number `at`.

    grammar: of the request, where it has one, at the end of emitted[:at].
    """
    sampling, position = request.sampling, len(request.prompt_token_ids) + at
    judged = emitted[at : at + len(logits)]
    allowed = None
    if grammar is not None:
        allowed = unpack(grammar.masks(judged[:-1], len(logits)), logits.shape[1], logits.device)
    wished = adjust(logits, sampling, _tally(request, emitted[:at]), judged[:-1], at, eos_token_ids, allowed)
    scores = target_scores(restrict(wished, sampling), sampling.temperature, noise_seed_of(sampling), position)
    # numpy's argmax takes the lowest of equal ones, as verification does.
    own = scores.cpu().numpy().argmax(-1).tolist()
    total = Comparison(len(judged))
    for j, (best, token) in enumerate(zip(own, judged, strict=True)):
        if best == token:
            continue
        tolerance = _tolerance(logits[j], sampling)
        gap = _gap(wished[j : j + 1], request, token, at + j, tolerance)
        is_wrong = gap > tolerance
        total += Comparison(0, int(not is_wrong), int(is_wrong), gap, tolerance, at + j if is_wrong else None)
    return total


def _tally(request: EngineRequest, emitted: Seq[int]) -> TokenTally | None:
    if not has_penalties(request.sampling):
        return None
    tally = TokenTally(request.prompt_token_ids, request.sampling.repetition_penalty)
    tally.catch_up([*request.prompt_token_ids, *emitted])
    return tally


def _tolerance(row: torch.Tensor, sampling: SamplingParams) -> float:
    """How far rounding may move two logits of a raw row [vocab] apart; a repetition penalty moves them farther."""
    penalty = sampling.repetition_penalty
    share = NEAR_TIE.get(row.dtype, NEAR_TIE[torch.bfloat16])
    return share * float(row.float().abs().max()) * max(penalty, 1.0 / penalty)


def _gap(row: torch.Tensor, request: EngineRequest, token: int, number: int, tolerance: float) -> float:
    """How far `token` lies under the best for the adjusted `row` [1, vocab], in logits; inf where no rounding would
    allow it.

    A token at the border of top-k, top-p or min-p may have been in or out: the best of those that were in for certain
    competes, and the token need only be one of those that may have been.
    """
    sampling, seed = request.sampling, noise_seed_of(request.sampling)
    tight, loose = _borders(row, sampling, tolerance)
    position = len(request.prompt_token_ids) + number

    def scores(limits: SamplingParams) -> torch.Tensor:
        return target_scores(restrict(row, limits), sampling.temperature, seed, position)[0]

    own = float(scores(loose)[token])
    if math.isinf(own):
        return math.inf
    scale = sampling.temperature if sampling.seed is not None and sampling.temperature > 0 else 1.0
    return max(float(scores(tight).max()) - own, 0.0) * scale


def _borders(row: torch.Tensor, sampling: SamplingParams, tolerance: float) -> tuple[SamplingParams, SamplingParams]:
    """Limits that only let in what is in for certain, and limits that let in whatever may have been in.

    Errors of `tolerance` between two logits move the log-odds of any set of tokens by tolerance / temperature at most,
    and its mass by a quarter of that.
    """
    if is_greedy(sampling):
        return sampling, sampling
    slack = tolerance / (4 * sampling.temperature)
    tight, loose = sampling, sampling
    if 0 < sampling.top_k < row.shape[-1]:
        allowed = row[0].float()
        last_in, first_out = allowed.topk(sampling.top_k + 1).values[-2:].tolist()
        certain = int((allowed > first_out + tolerance).sum())
        tight = replace(tight, top_k=max(certain, 1))
        loose = replace(loose, top_k=int((allowed >= last_in - tolerance).sum()))
    if sampling.top_p < 1:
        tight = replace(tight, top_p=max(sampling.top_p - slack, 1e-6))
        loose = replace(loose, top_p=min(sampling.top_p + slack, 1.0))
    if sampling.min_p > 0:
        factor = math.exp(tolerance / sampling.temperature)
        tight = replace(tight, min_p=min(sampling.min_p * factor, 1.0))
        loose = replace(loose, min_p=sampling.min_p / factor)
    return tight, loose
