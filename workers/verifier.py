"""Compare the proposal with the target and decide what each sequence keeps: the one caller of the verify kernel."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import torch

from kernels.launch import Backend
from kernels.verify import GREEDY_BELOW, Rule, Verdict, gumbel_noise, native_noise, verify_chain
from kernels.verify_tree import TreeVerdict, verify_tree
from workers.late_tokens import LateTokens
from workers.logprobs import RowsToMeasure
from workers.proposers.base import Proposal
from workers.sampling import is_greedy, restrict_batch
from workers.sequence import Sequence, TokenLogprob
from workers.target import Score
from workers.token_tree import chain_of
from workers.upload import index, upload


@dataclass(frozen=True, slots=True)
class Accepted:
    """Of one sequence: the draft tokens kept, and the token after them (recovered or bonus).

    acceptance: by examined position (the kept ones and the first rejected), the probability with which it was kept,
    given draft and target distributions; 0 or 1 where only the outcome is known. logprobs: one of each token, where the
    request asks for them. Of a tree, which has no such positions: nodes, the accepted ones from the root on, and tried,
    how many siblings were tried at each depth; nodes is None for a chain.
    """

    num_accepted: int
    token_ids: tuple[int, ...]
    acceptance: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    nodes: tuple[int, ...] | None = None
    tried: tuple[int, ...] = ()


class Verifier:
    """Lossless for any proposer: greedy, rejection sampling (Leviathan et al. 2023), and coupled by shared noise.

    A step with a tree in it is verified by `kernels.verify_tree`, chains and all; other steps by `kernels.verify`.
    rule: of the chains of unseeded sequences there, token by token or by block (Sun et al. 2025): the same law.
    """

    def __init__(self, eos_token_ids: Seq[int], backend: Backend = "auto", rule: Rule = "token") -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._backend: Backend = backend
        self.rule: Rule = rule
        native_noise.obstacle()  # built now, so that no request waits for it

    def verify(self, sequences: Seq[Sequence], proposal: Proposal, score: Score) -> list[Accepted]:
        """One Accepted per sequence; one transfer from the device for all of them."""
        if not sequences:
            return []
        rows_of = [range(a + b, z + b + 1) for b, (a, z) in enumerate(pairwise(score.cu_draft))]
        drafted: list[int] = proposal.draft_token_ids.tolist()
        logits = restrict_batch(score.logits, sequences, rows_of, drafted, self._eos_token_ids, proposal.trees)
        of_trees = any(tree is not None for tree in proposal.trees)
        verdict = (self._verify_trees if of_trees else self._verify_chains)(sequences, proposal, score, logits)
        nodes = verdict.accepted_nodes if isinstance(verdict, TreeVerdict) else None
        # Looking at a verdict costs nothing on a host, and a stall on a device: there all rows are measured.
        known = verdict.num_accepted.tolist() if verdict.num_accepted.is_cpu else None
        num_top = [s.request.sampling.logprobs for s in sequences]
        rows = RowsToMeasure.of(num_top, rows_of, known, verdict.token_ids.shape[1])
        found = _to_host(verdict, rows.measure(score.logits, verdict.token_ids, nodes), proposal.late)
        has_draft_logits = proposal.draft_logits is not None
        accepted = []
        for b, (start, end) in enumerate(pairwise(score.cu_draft)):
            n = found.num_accepted[b]
            emitted = tuple(found.token_ids[b][: n + 1])
            logprobs = rows.read(b, emitted, found.measured)
            if proposal.tree(b) is not None:
                tried = tuple(count for count in found.tried[b] if count)
                accepted.append(Accepted(n, emitted, (), logprobs, tuple(found.nodes[b][:n]), tried))
                continue
            examined = min(n + 1, end - start)
            # Two distributions coupled by noise agree less often than they overlap: there only the outcome counts.
            if sequences[b].coupled and has_draft_logits:
                acceptance = (*(1.0,) * n, 0.0)[:examined]
            else:
                acceptance = tuple(found.overlap[start : start + examined])
            accepted.append(Accepted(n, emitted, acceptance, logprobs))
        return accepted

    def _verify_chains(
        self, sequences: Seq[Sequence], proposal: Proposal, score: Score, logits: torch.Tensor
    ) -> Verdict:
        cu_draft = torch.tensor(score.cu_draft, dtype=torch.int32)
        token_ids, cu_draft, *modes = upload([proposal.draft_token_ids, cu_draft, *_modes(sequences)], logits.device)
        if proposal.late is not None:
            proposal.late.put(token_ids)
        max_k = max(z - a for a, z in pairwise(score.cu_draft))
        return verify_chain(
            logits,
            token_ids,
            proposal.draft_logits,
            cu_draft,
            *modes,
            rule=self.rule,
            backend=self._backend,
            max_k=max_k,
        )

    def _verify_trees(
        self, sequences: Seq[Sequence], proposal: Proposal, score: Score, logits: torch.Tensor
    ) -> TreeVerdict:
        drafted = [z - a for a, z in pairwise(score.cu_draft)]
        trees = [proposal.tree(b) or chain_of(n) for b, n in enumerate(drafted)]
        parents = [parent for tree in trees for parent in tree.parents]
        # What children were drawn from is looked at where that decides.
        is_drawn = any(
            n and not (s.coupled or is_greedy(s.request.sampling)) for s, n in zip(sequences, drafted, strict=True)
        )
        draft_logits = None
        if is_drawn and proposal.draft_logits is not None:
            # Widening is exact, and both must be of one type.
            logits = logits.float()
            draft_logits = torch.zeros_like(logits)
            # Every node's row says what it was drawn from, its siblings' the same.
            owners = [start + b for b, start in enumerate(score.cu_draft[:-1]) for _ in range(drafted[b])]
            rows = [first + parent + 1 for first, parent in zip(owners, parents, strict=True)]
            draft_logits[index(rows, logits.device)] = proposal.draft_logits.to(draft_logits)
        cu_nodes, flat = (torch.tensor(column, dtype=torch.int32) for column in (score.cu_draft, parents))
        token_ids, flat, cu_nodes, *modes = upload(
            [proposal.draft_token_ids, flat, cu_nodes, *_modes(sequences)], logits.device
        )
        if proposal.late is not None:
            proposal.late.put(token_ids)
        return verify_tree(
            logits,
            token_ids,
            flat,
            draft_logits,
            cu_nodes,
            *modes,
            backend=self._backend,
            max_depth=max(tree.depth for tree in trees),
            max_children=max(tree.most_children for tree in trees),
            max_nodes=max(map(len, trees)),
        )


def _modes(sequences: Seq[Sequence]) -> tuple[torch.Tensor, ...]:
    """temperature, seeds, positions and coupled of a step, each [B], as the verify kernels take them; on the host."""
    return (
        torch.tensor([s.request.sampling.temperature for s in sequences], dtype=torch.float32),
        torch.tensor([s.noise_seed for s in sequences], dtype=torch.int64),
        torch.tensor([len(s.token_ids) for s in sequences], dtype=torch.int64),
        torch.tensor([s.coupled for s in sequences], dtype=torch.bool),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A verdict on the host, and what was measured [n, width] i64. nodes, tried: of a step with trees."""

    num_accepted: list[int]
    token_ids: list[list[int]]
    overlap: list[float]
    nodes: list[list[int]]
    tried: list[list[int]]
    measured: torch.Tensor | None


def _to_host(verdict: Verdict | TreeVerdict, measured: torch.Tensor | None, late: LateTokens | None = None) -> _Found:
    """By one transfer, which brings the late draft tokens along."""
    batch, width = verdict.token_ids.shape
    # Packed as integers of one width, bit for bit: each transfer of its own would stall the device once more.
    parts = [verdict.num_accepted.to(torch.int64), verdict.token_ids.flatten(), _bits(verdict.overlap)]
    if isinstance(verdict, TreeVerdict):
        parts += [verdict.accepted_nodes.flatten().to(torch.int64), verdict.num_examined.flatten().to(torch.int64)]
    parts += [] if measured is None else [measured.flatten()]
    parts += [] if late is None else [late.tokens]
    num_accepted, token_ids, overlap, *rest = torch.cat(parts).cpu().split([len(part) for part in parts])
    if late is not None:
        late.resolve(rest.pop().tolist())
    is_tree = isinstance(verdict, TreeVerdict)
    nodes, tried = [part.view(batch, width - 1).tolist() for part in rest[:2]] if is_tree else ([], [])
    return _Found(
        num_accepted.tolist(),
        token_ids.view(batch, width).tolist(),
        overlap.view(torch.float64).tolist(),
        nodes,
        tried,
        None if measured is None else rest[-1].view(measured.shape),
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    """float64 [n] as int64 [n]."""
    return values.to(torch.float64).view(torch.int64)


def target_scores(logits: torch.Tensor, temperature: float, noise_seed: int, position: int) -> torch.Tensor:
    """Scores [n, vocab] float32 whose argmax is the token that the target alone takes, without any draft.

    Greedy (a temperature under GREEDY_BELOW): the logits. Else logits / temperature + the noise row that belongs to the
    seed at the absolute positions `position`, position + 1, ... of the emitted tokens, as the kernel couples them.
    """
    scores = logits.float()
    if temperature < GREEDY_BELOW:
        return scores
    # In float32, as the kernel has it: another rounding could turn a tie.
    inverse = float(1.0 / torch.tensor(temperature, dtype=torch.float32))
    positions = torch.arange(position, position + len(logits), dtype=torch.int64, device=logits.device)
    noise = gumbel_noise(torch.full_like(positions, noise_seed), positions, logits.shape[1])
    return scores * inverse + noise
