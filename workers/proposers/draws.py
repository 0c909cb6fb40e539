"""How a drafter that has a distribution takes a token from it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from kernels.verify import GREEDY_BELOW, Purpose, gumbel_noise
from workers.sampling import adjust_sequence, has_wishes, is_greedy, restrict
from workers.sequence import Sequence


def over_target_vocabulary(logits: torch.Tensor, vocabulary: torch.Tensor, size: int) -> torch.Tensor:
    """[..., size], -inf for what is not in the draft vocabulary; logits: [..., len(vocabulary)]."""
    full = logits.new_full((*logits.shape[:-1], size), -torch.inf)
    full[..., vocabulary] = logits
    return full


def takes_largest(sequence: Sequence) -> bool:
    """Whether its drafts are the drafter's largest logits as they are, and nothing asks what they were drawn from."""
    return is_greedy(sequence.request.sampling) and not has_wishes(sequence)


def largest(logits: torch.Tensor, count: int) -> list[int]:
    """Indices of the `count` largest of logits [1, n], the largest first."""
    found: list[int] = [int(logits.argmax())] if count == 1 else logits[0].topk(count).indices.tolist()
    return found


class NoiseRows:
    """Gumbel noise of a proposal's sequences, each row made once: nodes of one depth share it.

    They may: which of them is reached is decided by the noise of shallower positions, so what is drawn behind the one
    that is reached is independent of that.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, Purpose], torch.Tensor] = {}

    def of(self, sequence: Sequence, depth: int, vocab: int) -> torch.Tensor:
        """[vocab] f32 for the token `depth` tokens behind the sequence's last.

        A coupled sequence has the target's own row there, others have one of a stream of their own.
        """
        purpose = Purpose.COUPLED if sequence.coupled else Purpose.DRAFT
        key = sequence.noise_seed, len(sequence.token_ids) + depth, purpose
        if key not in self._rows:
            seed, position = torch.tensor([key[0]]), torch.tensor([key[1]])
            self._rows[key] = gumbel_noise(seed, position, vocab, purpose=purpose)[0]
        return self._rows[key]


def draft_children(
    logits: torch.Tensor, sequence: Sequence, path: Seq[int], count: int, noise: NoiseRows
) -> tuple[list[int], torch.Tensor]:
    """`count` tokens drafted side by side after `path`, in the order in which they are to be tried.

    Also what they were drawn from: logits [1, vocab] as the request would have them. Not because it must be: the closer
    to what the target's row becomes, the more drafts are kept.

    Greedy: the largest logits. Coupled: those that the target would most likely take, under its own noise row. Else
    they are drawn without replacement (Gumbel top-k, Kool et al. 2019), as `kernels.verify_tree` wants them: where no
    token is left that the drafter gives anything, from all others alike.
    """
    wished = adjust_sequence(logits, sequence, path, ())
    if sequence.grammar is not None and not bool(wished.isfinite().any()):
        wished = logits  # nothing that the grammar allows is in the draft vocabulary
    limited = restrict(wished, sequence.request.sampling).float()
    temperature = sequence.request.sampling.temperature
    scores, row = limited[0], torch.zeros_like(limited[0])
    if temperature >= GREEDY_BELOW:
        row = noise.of(sequence, len(path), limited.shape[1]).to(limited.device)
        scores = scores / temperature + row
    if count == 1:
        return [int(scores.argmax())], limited
    tokens: list[int] = []
    scores = scores.clone()
    for _ in range(count):
        token = int(scores.argmax())
        if scores[token] == -torch.inf:
            scores = row.clone()
            scores[tokens] = -torch.inf
            token = int(scores.argmax())
        scores[token] = -torch.inf
        tokens.append(token)
    return tokens, limited
