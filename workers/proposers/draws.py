"""How a drafter that has a distribution takes a token from it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from kernels.verify import GREEDY_BELOW, Purpose, gumbel_noise
from workers.sampling import adjust_sequence, has_wishes, is_greedy, restrict
from workers.sequence import Sequence
from workers.upload import upload


def over_target_vocabulary(logits: torch.Tensor, vocabulary: torch.Tensor, size: int) -> torch.Tensor:
    """[..., size], -inf for what is not in the draft vocabulary; logits: [..., len(vocabulary)]."""
    full = logits.new_full((*logits.shape[:-1], size), -torch.inf)
    full[..., vocabulary] = logits
    return full


def takes_largest(sequence: Sequence) -> bool:
    """Whether its drafts are the drafter's largest logits as they are, and nothing asks what they were drawn from."""
    return is_greedy(sequence.request.sampling) and not has_wishes(sequence)


def largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """[count] int64: indices of the largest of logits [1, n], the largest first."""
    return logits[0].argmax(keepdim=True) if count == 1 else logits[0].topk(count).indices


class NoiseRows:
    """Gumbel noise of a proposal's sequences, each row made once: nodes of one depth share it.

    They may: which of them is reached is decided by the noise of shallower positions, so what is drawn behind the one
    that is reached is independent of that.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, Purpose], torch.Tensor] = {}

    def of(self, sequence: Sequence, depth: int, vocab: int, device: torch.device) -> torch.Tensor:
        """[vocab] f32 for the token `depth` tokens behind the sequence's last.

        A coupled sequence has the target's own row there, others have one of a stream of their own.
        """
        purpose = Purpose.COUPLED if sequence.coupled else Purpose.DRAFT
        key = sequence.noise_seed, len(sequence.token_ids) + depth, purpose
        if key not in self._rows:
            seed, position = upload([torch.tensor([key[0]]), torch.tensor([key[1]])], device)
            self._rows[key] = gumbel_noise(seed, position, vocab, purpose=purpose)[0]
        return self._rows[key]


@dataclass(frozen=True, slots=True)
class Draw:
    """tokens: [count] int64, in the order in which they are to be tried. limited: what they were drawn from [1, vocab],
    the logits as the request would have them; None where nobody will ask. Both where the logits were.
    """

    tokens: torch.Tensor
    limited: torch.Tensor | None


def draw_children(logits: torch.Tensor, sequence: Sequence, path: Seq[int], count: int, noise: NoiseRows) -> Draw:
    """`count` tokens drafted side by side after `path`, from logits [1, vocab]; the device is not waited for.

    They are drawn from what the request would make of the logits. Not because they must be: the closer to what the
    target's row becomes, the more drafts are kept.

    Greedy: the largest logits. Coupled: those that the target would most likely take, under its own noise row. Else
    they are drawn without replacement (Gumbel top-k, Kool et al. 2019), as `kernels.verify_tree` wants them: where no
    token is left that the drafter gives anything, from all others alike.
    """
    wished = adjust_sequence(logits, sequence, path, ())
    if sequence.grammar is not None:
        # Nothing that the grammar allows may be in the draft vocabulary.
        wished = torch.where(wished.isfinite().any(), wished, logits)
    limited = restrict(wished, sequence.request.sampling).float()
    temperature = sequence.request.sampling.temperature
    scores, row = limited[0], None
    if temperature >= GREEDY_BELOW:
        row = noise.of(sequence, len(path), limited.shape[1], limited.device)
        scores = scores / temperature + row
    if count == 1:
        return Draw(scores.argmax(keepdim=True), limited)
    tokens: list[torch.Tensor] = []
    scores = scores.clone()
    others = torch.zeros_like(scores) if row is None else row.clone()
    for _ in range(count):
        token = _largest(scores, others)
        for left in (scores, others):
            left[token] = -torch.inf
        tokens.append(token)
    return Draw(torch.cat(tokens), limited)


def _largest(scores: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """[1] int64: the largest score's token; that of `others` where all scores are -inf."""
    token = scores.argmax(keepdim=True)
    is_used_up = scores[token] == -torch.inf
    if scores.is_cpu:  # where looking costs nothing
        return others.argmax(keepdim=True) if bool(is_used_up) else token
    return torch.where(is_used_up, others.argmax(keepdim=True), token)


def read_tokens(draws: Seq[Draw]) -> list[list[int]]:
    """Each one's tokens on the host, by one transfer for all of them."""
    if not draws:
        return []
    lengths = [len(draw.tokens) for draw in draws]
    return [part.tolist() for part in torch.cat([draw.tokens for draw in draws]).cpu().split(lengths)]
