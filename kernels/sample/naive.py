"""The definition of sampling, one row at a time in plain PyTorch."""

from __future__ import annotations

import torch

from kernels.filters.naive import restricted
from kernels.sample.adjustments import LogitBias, Penalties, penalised
from kernels.sample.draws import Draws, Sampled
from kernels.verify.noise import Purpose, gumbel_noise
from kernels.verify.verdict import GREEDY_BELOW


def sample(draws: Draws) -> Sampled:
    """See `kernels.sample.sample`."""
    device, vocab_size = draws.logits.device, draws.logits.shape[1]
    inverse_temperatures = (1.0 / draws.temperature).tolist()
    coupled = draws.coupled.tolist()
    # Compared as float32, which is what a kernel compares.
    is_greedy = (draws.temperature < GREEDY_BELOW).tolist()
    token_ids, logprobs = [], []
    for b in range(len(coupled)):
        logits = adjusted_row(draws, b)
        if is_greedy[b]:
            scores = logits
            token = _argmax(scores)
        else:
            scores = _limited(draws, b, logits * inverse_temperatures[b])
            purpose = Purpose.COUPLED if coupled[b] else draws.purpose
            noise = gumbel_noise(draws.seeds[b, None], draws.positions[b, None], vocab_size, purpose)[0]
            token = _argmax(scores + noise)
        token_ids.append(token)
        # log_softmax sums 262144 tokens to 4 digits less on a CPU.
        logprobs.append(float(scores[token] - scores.logsumexp(0)))
    return Sampled(
        torch.tensor(token_ids, dtype=torch.int64, device=device),
        torch.tensor(logprobs, dtype=torch.float32, device=device),
    )


def adjusted_row(draws: Draws, b: int) -> torch.Tensor:
    """Logits [V] f32 of row b after penalties and bias."""
    logits = draws.logits[b].float()
    if draws.penalties is not None:
        logits = _penalised(logits, draws.penalties, b)
    if draws.logit_bias is not None:
        logits = _biased(logits, draws.logit_bias, b)
    return logits


def _penalised(logits: torch.Tensor, penalties: Penalties, b: int) -> torch.Tensor:
    counts = penalties.counts
    own = slice(int(counts.cu[b]), int(counts.cu[b + 1]))
    token_ids, occurrences = counts.token_ids[own], counts.output_counts[own]
    weights = (penalties.repetition[b], penalties.presence[b], penalties.frequency[b])
    return logits.scatter(0, token_ids, penalised(logits[token_ids], occurrences, *weights))


def _biased(logits: torch.Tensor, bias: LogitBias, b: int) -> torch.Tensor:
    own = slice(int(bias.cu[b]), int(bias.cu[b + 1]))
    return logits.scatter_add(0, bias.token_ids[own], bias.values[own])


def _limited(draws: Draws, b: int, scores: torch.Tensor) -> torch.Tensor:
    if draws.limits is None:
        return scores
    limits = draws.limits
    return restricted(scores, int(limits.top_k[b]), float(limits.top_p[b]), float(limits.log_min_p[b]))


def _argmax(scores: torch.Tensor) -> int:
    """The lowest of the best tokens. numpy's is ten times as fast as torch's on a CPU, and a vocabulary is long."""
    return int(scores.cpu().numpy().argmax())
