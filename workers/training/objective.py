"""What a drafter is trained for: to say at each position what the target would say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from workers.training.batches import TrainingBatch, shifted
from workers.training.ranks import RANKS, RankOutcome, greedy_ranks, over_draft_vocabulary, sampled_ranks

GREEDY_BELOW = 1e-3


@dataclass(frozen=True, slots=True)
class Teacher:
    """The frozen parts of the target that a drafter shares.

    embeddings: [vocab, hidden]. head: [vocab, hidden], the LM head. vocabulary: [draft vocabulary] int64, ascending.
    draft_head: [draft vocabulary, hidden], its rows of the head.
    """

    embeddings: torch.Tensor
    head: torch.Tensor
    vocabulary: torch.Tensor
    draft_head: torch.Tensor

    @classmethod
    def of(cls, model: Any, vocabulary: torch.Tensor) -> Teacher:
        embeddings = model.get_input_embeddings().weight.detach().float()
        head = model.get_output_embeddings().weight.detach().float()
        return cls(embeddings, head, vocabulary, head[vocabulary])


class Objective(ABC):
    """A drafter in training, taught and judged at `depth` positions beyond what is known."""

    model: nn.Module
    taught: int | None = None
    """Positions that the loss is of; None: all."""

    def __init__(self, teacher: Teacher, depth: int) -> None:
        self.teacher = teacher
        self.depth = depth

    @abstractmethod
    def outputs(self, batch: TrainingBatch) -> list[torch.Tensor]:
        """`depth` tensors [batch, length, hidden], by anchor: what `logits` takes.

        At anchor t the token t + 1 is known; output j is of the token at t + 2 + j.
        """

    @abstractmethod
    def logits(self, output: torch.Tensor, step: int) -> torch.Tensor:
        """[rows, draft vocabulary], fp32, of rows [rows, hidden] of output number `step`."""

    def losses(self, batch: TrainingBatch) -> list[torch.Tensor]:
        """One scalar a taught position: the mean over the anchors whose token there is the target's answer."""
        # What the target says at position p, wherever the token at p + 1 is its own, serves every anchor p - 1 - step.
        said = shifted(batch.is_answer, 1)
        with torch.no_grad():
            teacher_probs = (batch.last_hidden[said] @ self.teacher.draft_head.T).float().softmax(-1)
        place = said.nonzero()[:, 1]
        losses = []
        for step, output in enumerate(self.outputs(batch)[: self.taught]):
            rows = shifted(batch.is_answer, step + 2)
            has_anchor = place > step
            taught = teacher_probs if bool(has_anchor.all()) else teacher_probs[has_anchor]
            losses.append(soft_cross_entropy(self.logits(output[rows], step), taught))
        return losses

    @torch.no_grad()
    def acceptance(self, batch: TrainingBatch) -> torch.Tensor:
        """[depth, batch, length] in [0, 1], by anchor: the probability that the token which the target gave at each
        position would have been a kept draft, the ones before it being so.
        """
        return self.judge(batch).kept

    @torch.no_grad()
    def judge(self, batch: TrainingBatch, generator: torch.Generator | None = None) -> Judgement:
        """How its drafts would have fared along the target's text; by rank too where a generator is given."""
        shape = (self.depth, *batch.token_ids.shape)
        kept = torch.zeros(shape)
        by_rank = RankOutcome(torch.zeros(*shape, RANKS), torch.zeros(*shape, RANKS)) if generator else None
        temperatures = batch.temperature.tolist()
        # The target's whole LM head is what costs here: once for every position of a sampled answer, never for a greedy
        # one, whose tokens say all.
        empty = torch.empty(batch.last_hidden.shape[1], 0)
        heads = [
            empty if temperature < GREEDY_BELOW else hidden @ self.teacher.head.T
            for hidden, temperature in zip(batch.last_hidden, temperatures, strict=True)
        ]
        for step, output in enumerate(self.outputs(batch)):
            is_taught, token_ids = shifted(batch.is_answer, step + 2), shifted(batch.token_ids, step + 2)
            for b, temperature in enumerate(temperatures):
                rows = is_taught[b]
                logits = self.logits(output[b, rows], step)
                teacher_logits = heads[b][rows.nonzero()[:, 0] + step + 1]
                taught = token_ids[b, rows]
                kept[step, b, rows] = kept_probability(
                    logits, teacher_logits, taught, self.teacher.vocabulary, temperature
                )
                if by_rank is not None and generator is not None:
                    tried, stood = self._ranks(logits, teacher_logits, taught, temperature, generator)
                    by_rank.tried[step, b, rows], by_rank.stood[step, b, rows] = tried, stood
        return Judgement(kept, by_rank)

    def _ranks(
        self,
        logits: torch.Tensor,
        teacher_logits: torch.Tensor,
        token_ids: torch.Tensor,
        temperature: float,
        generator: torch.Generator,
    ) -> RankOutcome:
        vocabulary = self.teacher.vocabulary
        if temperature < GREEDY_BELOW:
            return greedy_ranks(logits, *places(token_ids, vocabulary))
        target_probs = over_draft_vocabulary((teacher_logits / temperature).softmax(-1), vocabulary)
        return sampled_ranks(target_probs, (logits / temperature).softmax(-1), generator)


class Judgement(NamedTuple):
    """kept: [depth, batch, length], see `Objective.acceptance`. by_rank: [depth, batch, length, RANKS] each."""

    kept: torch.Tensor
    by_rank: RankOutcome | None


def soft_cross_entropy(logits: torch.Tensor, teacher_probs: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of -sum teacher_probs log draft_probs; both [rows, draft vocabulary], fp32."""
    loss: torch.Tensor = _SoftCrossEntropy.apply(logits, teacher_probs)
    return loss


class _SoftCrossEntropy(torch.autograd.Function):
    """With its gradient, draft_probs - teacher_probs, written out: a quarter of the passes over memory."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, teacher_probs: torch.Tensor) -> torch.Tensor:
        normalizer = logits.logsumexp(-1)
        ctx.save_for_backward(logits, normalizer, teacher_probs)
        return (normalizer - torch.linalg.vecdot(teacher_probs, logits)).mean()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, normalizer, teacher_probs = ctx.saved_tensors
        grad = (logits - normalizer[:, None]).exp_().sub_(teacher_probs).mul_(grads[0] / len(logits))
        return grad, None


def kept_probability(
    logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    token_ids: torch.Tensor,
    vocabulary: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    """[rows]: the probability that the token which the target gave came from an accepted draft.

    Of text that speculative sampling gave, a token x came from the draft with probability min(1, draft_probs[x] /
    target_probs[x]) (Leviathan et al. 2023, equation 1 and appendix A.1: the accepted part of the law is the smaller of
    the two). At temperature 0 it is whether the draft's argmax is that token. logits: [rows, draft vocabulary],
    teacher_logits: [rows, vocab], not looked at where greedy, token_ids: [rows].
    """
    place, is_known = places(token_ids, vocabulary)
    if temperature < GREEDY_BELOW:
        return ((logits.argmax(-1) == place) & is_known).float()
    draft = (logits / temperature).log_softmax(-1).gather(-1, place[:, None])[:, 0]
    target = (teacher_logits / temperature).log_softmax(-1).gather(-1, token_ids[:, None])[:, 0]
    return (draft - target).exp().clamp(max=1.0) * is_known


def places(token_ids: torch.Tensor, vocabulary: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(place, is_known) [rows] each: of the tokens in the ascending draft vocabulary, and whether they are in it."""
    place = torch.searchsorted(vocabulary, token_ids).clamp(max=len(vocabulary) - 1)
    return place, vocabulary[place] == token_ids
