"""How a drafter that has a distribution takes a token from it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from kernels.verify import GREEDY_BELOW, Purpose, gumbel_noise
from workers.sampling import adjust_sequence, restrict
from workers.sequence import Sequence


def over_target_vocabulary(logits: torch.Tensor, vocabulary: torch.Tensor, size: int) -> torch.Tensor:
    """[..., size], -inf for what is not in the draft vocabulary; logits: [..., len(vocabulary)]."""
    full = logits.new_full((*logits.shape[:-1], size), -torch.inf)
    full[..., vocabulary] = logits
    return full


def draft_next(logits: torch.Tensor, sequence: Sequence, drafts: Seq[int]) -> tuple[int, torch.Tensor]:
    """The token drafted after `drafts`, and what it was drawn from: logits [1, vocab] as the request would have them.

    Not because it must be: the closer to what the target's row becomes, the more drafts are kept.
    """
    wished = adjust_sequence(logits, sequence, drafts, ())
    if sequence.grammar is not None and not bool(wished.isfinite().any()):
        wished = logits  # nothing that the grammar allows is in the draft vocabulary
    limited = restrict(wished, sequence.request.sampling).float()
    return sample_draft(limited, sequence, len(drafts)), limited


def sample_draft(logits: torch.Tensor, sequence: Sequence, depth: int) -> int:
    """One draft token from [1, vocab], `depth` tokens behind the sequence's last: the argmax when greedy.

    A coupled sequence's token is the argmax under the target's own noise row, others draw from a stream of their own.
    """
    temperature = sequence.request.sampling.temperature
    if temperature < GREEDY_BELOW:
        return int(logits.argmax())
    seed = torch.tensor([sequence.noise_seed])
    position = torch.tensor([len(sequence.token_ids) + depth])
    purpose = Purpose.COUPLED if sequence.coupled else Purpose.DRAFT
    noise = gumbel_noise(seed, position, logits.shape[1], purpose=purpose)
    return int((logits / temperature + noise.to(logits.device)).argmax())
