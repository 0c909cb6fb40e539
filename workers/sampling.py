"""What a request makes of a row of logits: penalties, then bias, then masks, then top-k, top-p and min-p.

Row j of a sequence decides the token behind j drafts, so it is adjusted as if those had been emitted. Temperature stays
out: verification applies it, to target and draft alike.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import chain

import torch

from kernels.verify import GREEDY_BELOW
from workers.grammar import unpack
from workers.penalties import TokenTally, has_penalties, penalise
from workers.sequence import SamplingParams, Sequence
from workers.token_tree import TokenTree
from workers.upload import index, upload

FIRST_LOOK = 1024
"""Candidates for a nucleus that a CPU sorts at first; a whole vocabulary of 49152 takes it 2 ms a row."""


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether verification takes the largest logit: a temperature so low that it could not be divided by."""
    return sampling.temperature < GREEDY_BELOW


def has_limits(sampling: SamplingParams) -> bool:
    """Whether `restrict` masks anything."""
    is_open = sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p <= 0
    return not (is_open or is_greedy(sampling))


def has_wishes(sequence: Sequence) -> bool:
    """Whether the sequence's next rows become anything but what they are."""
    sampling = sequence.request.sampling
    return (
        sequence.grammar is not None
        or bool(sampling.logit_bias)
        or sampling.min_tokens > sequence.completion_length
        or has_penalties(sampling)
        or has_limits(sampling)
    )


def looks_back(sequence: Sequence) -> bool:
    """Whether what becomes of a row depends on which tokens were drafted before it, and not only on how many."""
    return sequence.grammar is not None or has_penalties(sequence.request.sampling)


def restrict(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Mask [rows, vocab] outside top-k, outside the nucleus of top-p, and what is too unlikely for min-p.

    Top-p and min-p are of the probabilities after temperature, and the nucleus is of what top-k leaves, as in
    `kernels.filters`. The same tensor where there are no such limits.
    """
    if not has_limits(sampling):
        return logits
    limited = logits if sampling.top_k == 0 and sampling.top_p >= 1 else _restrict_to_nucleus(logits, sampling)
    return limited if sampling.min_p <= 0 else _restrict_to_likely(limited, sampling)


def _restrict_to_likely(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """`logits` [rows, vocab] without what has less than min_p of the probability of the likeliest token."""
    # In float32 and in this order, so that the border is the kernels' own.
    scores = logits.float() * (1.0 / torch.tensor(sampling.temperature, dtype=torch.float32))
    lowest = scores.amax(-1, keepdim=True) + torch.tensor(sampling.min_p, dtype=torch.float32).log()
    return logits.float().masked_fill(scores < lowest, -torch.inf)


def _restrict_to_nucleus(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    scores, vocab = logits.float(), logits.shape[-1]
    is_open = sampling.top_k == 0 and scores.is_cpu
    width = min(FIRST_LOOK if is_open else sampling.top_k or vocab, vocab)
    limited, is_complete = _restrict_to_largest(scores, sampling, width)
    if width < vocab and is_open and not bool(is_complete.all()):
        flat = ~is_complete
        limited[flat], _ = _restrict_to_largest(scores[flat], sampling, vocab)
    return limited


def _restrict_to_largest(
    scores: torch.Tensor, sampling: SamplingParams, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [rows, vocab] outside the limits as -inf, by the `width` largest of each row.

    Also [rows] bool: whether the nucleus ends among them. What a row becomes does not depend on the other rows.
    """
    values, index = scores.topk(width, dim=-1)
    is_complete = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    if sampling.top_p < 1:
        # The nucleus is of what top-k leaves.
        of = values if sampling.top_k else scores
        probs = torch.softmax(of / sampling.temperature, dim=-1)
        if not sampling.top_k:
            probs = probs.gather(-1, index)
        # A token stays while the mass before it is under top_p, so that the first always stays.
        is_outside = probs.cumsum(-1) - probs >= sampling.top_p
        is_outside[:, 0] = False  # in float32 a top_p may be 0
        values = values.masked_fill(is_outside, -torch.inf)
        is_complete = is_outside[:, -1]
    return torch.full_like(scores, -torch.inf).scatter_(-1, index, values), is_complete


def restrict_batch(
    logits: torch.Tensor,
    batch: Seq[Sequence],
    rows_of: Seq[range],
    draft_token_ids: Seq[int],
    eos_token_ids: Seq[int],
    trees: Seq[TokenTree | None] = (),
) -> torch.Tensor:
    """Apply each sequence's wishes to its rows; row j of a sequence decides its completion token number length + j.

    draft_token_ids: of all sequences behind each other; one has a row more than drafts. trees: of sequences whose rows
    are those of the root and of each node, None for a chain and for those behind. The same tensor where nobody asks for
    anything.
    """
    wishing = [b for b, sequence in enumerate(batch) if has_wishes(sequence)]
    if not wishing:
        return logits
    out = logits.to(torch.float32, copy=True)
    chains = []
    for b in wishing:
        tree, drafts = trees[b] if b < len(trees) else None, _drafts_of(b, rows_of, draft_token_ids)
        if tree is None:
            chains.append(b)
        else:
            own = slice(rows_of[b].start, rows_of[b].stop)
            along = _adjust_tree(logits[own], batch[b], tree, drafts, eos_token_ids)
            out[own] = restrict(along, batch[b].request.sampling)
    sequences = [batch[b] for b in chains]
    every = [_drafts_of(b, rows_of, draft_token_ids) for b in chains]
    allowed_of = _allowed(logits, sequences, every)
    for b, sequence, drafts, allowed in zip(chains, sequences, every, allowed_of, strict=True):
        own = slice(rows_of[b].start, rows_of[b].stop)
        wished = _adjust_rows(logits[own], sequence, drafts, eos_token_ids, allowed)
        out[own] = restrict(wished, sequence.request.sampling)
    return out


def _drafts_of(b: int, rows_of: Seq[range], draft_token_ids: Seq[int]) -> Seq[int]:
    return draft_token_ids[rows_of[b].start - b : rows_of[b].stop - b - 1]


def _adjust_tree(
    logits: torch.Tensor, sequence: Sequence, tree: TokenTree, drafts: Seq[int], eos_token_ids: Seq[int]
) -> torch.Tensor:
    """`adjust` for the root's row and each node's, every one along its own path; logits: [1 + nodes, vocab]."""
    rows = []
    for row in range(len(logits)):
        path = [drafts[node] for node in tree.path(row - 1)]
        rows.append(adjust_sequence(logits[row : row + 1], sequence, path, eos_token_ids))
    return torch.cat(rows)


def adjust_sequence(
    logits: torch.Tensor, sequence: Sequence, drafts: Seq[int], eos_token_ids: Seq[int]
) -> torch.Tensor:
    """`adjust` for a sequence of the engine: its last rows along `drafts`, behind the text that it has."""
    grammar, allowed = sequence.grammar, None
    if grammar is not None:
        allowed = unpack(grammar.masks(drafts, len(logits)), logits.shape[1], logits.device)
    return _adjust_rows(logits, sequence, drafts, eos_token_ids, allowed)


def _allowed(logits: torch.Tensor, batch: Seq[Sequence], drafts_of: Seq[Seq[int]]) -> list[torch.Tensor | None]:
    """What each sequence's grammar allows its rows [n, vocab]; the masks of all are unpacked by one operation."""
    masks: list[bytes | None] = []
    rows_of: list[range | None] = []
    for sequence, drafts in zip(batch, drafts_of, strict=True):
        if sequence.grammar is None:
            rows_of.append(None)
            continue
        masks += sequence.grammar.masks(drafts, len(drafts) + 1)
        rows_of.append(range(len(masks) - len(drafts) - 1, len(masks)))
    allowed = unpack(masks, logits.shape[1], logits.device) if masks else logits
    return [None if rows is None else allowed[rows.start : rows.stop] for rows in rows_of]


def _adjust_rows(
    logits: torch.Tensor, sequence: Sequence, drafts: Seq[int], eos_token_ids: Seq[int], allowed: torch.Tensor | None
) -> torch.Tensor:
    first = sequence.completion_length + len(drafts) + 1 - len(logits)
    return adjust(logits, sequence.request.sampling, tally_of(sequence), drafts, first, eos_token_ids, allowed)


def tally_of(sequence: Sequence) -> TokenTally | None:
    """The sequence's token counts, up to date; None where no penalty needs them."""
    sampling = sequence.request.sampling
    if not has_penalties(sampling):
        return None
    if sequence.tally is None:
        sequence.tally = TokenTally(sequence.request.prompt_token_ids, sampling.repetition_penalty)
    sequence.tally.catch_up(sequence.token_ids)
    return sequence.tally


def adjust(
    logits: torch.Tensor,
    sampling: SamplingParams,
    tally: TokenTally | None,
    drafts: Seq[int],
    first: int,
    eos_token_ids: Seq[int],
    allowed: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows [n, vocab] f32 after penalties, bias and masks, in this order; the same tensor where there are none.

    The rows are the last n of the len(drafts) + 1 along the drafts; row 0 of them decides completion token number
    `first`. tally: of the text before the drafts, for penalties. allowed: [n, vocab] bool, by the grammar; at least one
    a row. Before min_tokens, whatever ends the text is masked, but where the grammar allows nothing else.
    """
    early = min(max(sampling.min_tokens - first, 0), len(logits))
    if tally is None and not sampling.logit_bias and not early and allowed is None:
        return logits
    out = logits.to(torch.float32, copy=True)
    if tally is not None:
        penalise(out, sampling, tally, drafts)
    if sampling.logit_bias:
        token_ids, bias = zip(*sampling.logit_bias, strict=True)
        where, amount = upload([torch.tensor(token_ids), torch.tensor(bias, dtype=torch.float32)], out.device)
        out[:, where] += amount
    if allowed is not None:
        out.masked_fill_(~allowed, -torch.inf)
    if early:
        ends = index(tuple(chain(eos_token_ids, sampling.stop_token_ids)), out.device)
        if allowed is None:
            out[:early].index_fill_(1, ends, -torch.inf)
        else:
            longer = allowed[:early].index_fill(1, ends, False)
            out[:early].masked_fill_(longer.any(-1, keepdim=True) & ~longer, -torch.inf)
    return out
