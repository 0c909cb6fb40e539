"""What of a verdict becomes output: trimming at EOS, stop strings and max_tokens, then the text of what is left."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from controlplane.telemetry import FinishReason
from workers.sequence import Sequence, TokenLogprob
from workers.token_tree import TokenTree
from workers.verifier import Accepted


@dataclass(frozen=True, slots=True)
class Committed:
    """What one step gave one sequence, after trimming.

    drafted, accepted: draft tokens verified and kept. ended: generation ended on a draft token, so that there is no
    extra token. from_prefill: the token that prefill yields, which belongs to no step. planned_k: the plan's K.
    acceptance: by examined position that was not cut off, the probability with which it was kept. logprobs: one of each
    token, where asked for. predicted: of the drafted tokens, the first ones, which are from the request's prediction.
    tree: where the draft was one; then nodes are those kept, and tried says how many siblings were tried by depth.
    """

    sequence: Sequence
    token_ids: tuple[int, ...]
    text: str
    drafted: int
    accepted: int
    ended: bool
    from_prefill: bool
    planned_k: int
    finish_reason: FinishReason | None
    acceptance: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    predicted: int = 0
    tree: TokenTree | None = None
    nodes: tuple[int, ...] = ()
    tried: tuple[int, ...] = ()


def trim(
    token_ids: Seq[int],
    remaining: int,
    eos_token_ids: Collection[int],
    ignore_eos: bool,
    stop_token_ids: Collection[int] = (),
) -> tuple[Seq[int], FinishReason | None]:
    """Cut at the first EOS or stop token (kept) and at the budget of `remaining` tokens; one past it does not count."""
    within = token_ids[:remaining]
    for i, token_id in enumerate(within):
        if token_id in stop_token_ids or (not ignore_eos and token_id in eos_token_ids):
            return within[: i + 1], "stop"
    return within, "length" if len(token_ids) >= remaining else None


def commit(
    sequence: Sequence,
    accepted: Accepted,
    drafted: int,
    planned_k: int,
    eos_token_ids: Collection[int],
    predicted: int = 0,
    tree: TokenTree | None = None,
) -> Committed:
    """Append what stays of the verdict to the sequence and roll its KV forward to match; returns what was committed."""
    sampling = sequence.request.sampling
    from_prefill = sequence.completion_length == 0
    stops = sampling.stop_token_ids
    token_ids, reason = trim(accepted.token_ids, sequence.remaining, eos_token_ids, sampling.ignore_eos, stops)
    # A stop token is no part of the text, as a stop string is none.
    is_at_stop = reason == "stop" and token_ids[-1] in stops
    pushed = sequence.detokenizer.push(token_ids[:-1] if is_at_stop else token_ids)
    if pushed.stopped:
        token_ids, reason = token_ids[: pushed.kept], "stop"
    text = pushed.text if reason is None or pushed.stopped else pushed.text + sequence.detokenizer.flush()
    kept_drafts = min(accepted.num_accepted, len(token_ids))
    ended = len(token_ids) == kept_drafts

    sequence.token_ids += token_ids
    if sequence.grammar is not None:
        sequence.grammar.advance(token_ids)
    sequence.kv_length = len(sequence.token_ids) - 1
    sequence.finish_reason = reason
    if not from_prefill:
        sequence.verify_positions += drafted + 1
        sequence.draft_tokens += drafted
        sequence.accepted_tokens += kept_drafts
        sequence.spec_steps += drafted > 0
        sequence.plain_steps += drafted == 0
        sequence.max_k = max(sequence.max_k, drafted if tree is None else tree.depth)
    # Where the text ended inside the draft, nothing is known of the positions behind.
    acceptance = accepted.acceptance[: kept_drafts + (not ended)]
    logprobs = accepted.logprobs[: len(token_ids)]
    return Committed(
        sequence, tuple(token_ids), text, drafted, kept_drafts, ended, from_prefill, planned_k, reason, acceptance,
        logprobs, predicted, tree, (accepted.nodes or ())[:kept_drafts], accepted.tried[: kept_drafts + (not ended)],
    )  # fmt: skip
