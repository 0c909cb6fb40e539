"""Cases of the operations on logits: `verify`, `verify_tree` and `sample`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import kernels_eager as eager
from benchmarks.kernels_cases import Case, Outputs, Prepared, Size, size_of
from kernels.launch import Backend
from kernels.sample import sample
from kernels.verify import verify_chain
from kernels.verify_tree import verify_tree

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Logits:
    """batch: sequences; depth: K of each, or nodes of each tree. mode: greedy, rejection or coupled."""

    op: str
    batch: int
    depth: int
    vocab: int
    dtype: str
    mode: str = "rejection"
    draft_logits: bool = True
    top_p: float | None = None

    @property
    def shape(self) -> str:
        depth = {"verify": f"K {self.depth}, ", "verify_tree": f"{self.depth} nodes, ", "sample": ""}[self.op]
        drafts = "" if self.op == "sample" or self.draft_logits else ", no draft logits"
        nucleus = "" if self.top_p is None else f", top-p {self.top_p}"
        return f"batch {self.batch}, {depth}vocab {self.vocab}, {self.dtype}, {self.mode}{drafts}{nucleus}"


FULL = (
    Logits("verify", 64, 4, 128256, "bf16"),
    Logits("verify", 64, 4, 128256, "bf16", mode="greedy"),
    Logits("verify", 64, 4, 128256, "bf16", draft_logits=False),
    Logits("verify", 64, 4, 128256, "bf16", top_p=0.9),
    Logits("verify", 8, 4, 49152, "bf16"),
    Logits("verify", 1, 4, 128256, "bf16"),
    Logits("verify_tree", 16, 16, 128256, "bf16"),
    Logits("verify_tree", 16, 16, 128256, "bf16", mode="greedy"),
    Logits("sample", 64, 0, 128256, "bf16"),
    Logits("sample", 64, 0, 128256, "bf16", top_p=0.9),
    Logits("sample", 1, 0, 128256, "bf16"),
)
AIMS = (FULL[0], FULL[3], FULL[8])
TINY = (
    Logits("verify", 3, 2, 300, "fp32"),
    Logits("verify", 3, 2, 300, "bf16", mode="greedy"),
    Logits("verify", 2, 1, 5000, "fp32", mode="coupled", draft_logits=False),
    Logits("verify", 2, 2, 300, "fp32", top_p=0.8),
    Logits("verify_tree", 2, 5, 300, "fp32"),
    Logits("verify_tree", 2, 5, 300, "fp32", mode="greedy"),
    Logits("sample", 3, 0, 300, "fp32"),
    Logits("sample", 3, 0, 300, "bf16", mode="greedy"),
    Logits("sample", 2, 0, 300, "fp32", top_p=0.8),
)


def cases(size: Size) -> list[Case]:
    """See `benchmarks.kernels_cases.cases`."""
    builders = {"verify": build_verify, "verify_tree": build_tree, "sample": build_sample}
    return [
        Case(spec.op, spec.shape, functools.partial(builders[spec.op], spec), spec in AIMS)
        for spec in (FULL if size == "full" else TINY)
    ]


def build_verify(spec: Logits, device: torch.device) -> Prepared:
    """Chains of K whose drafter is near enough to the target that they end at every depth."""
    batch, k, vocab = spec.batch, spec.depth, spec.vocab
    generator = torch.Generator(device).manual_seed(vocab + batch)
    target, rows = _target(spec, batch * (k + 1), generator), torch.arange(batch * (k + 1), device=device)
    draft_rows = rows.view(batch, k + 1)[:, :k].reshape(-1)
    draft = _near(target[draft_rows], generator)
    draft_ids, rules = draft.float().argmax(-1), _rules(spec, batch, device)
    cu_draft = torch.arange(0, batch * k + 1, k, dtype=torch.int32, device=device)
    draft_logits = draft if spec.draft_logits else None
    nucleus = _nucleus(spec, batch, device)

    def run(backend: Backend) -> Outputs:
        verdict = verify_chain(
            target, draft_ids, draft_logits, cu_draft, **rules, top_p=nucleus, backend=backend, max_k=k
        )
        return {
            "num_accepted": verdict.num_accepted, "token_ids": verdict.token_ids, "overlap": verdict.overlap,
        }  # fmt: skip

    arguments = (
        target.view(batch, k + 1, vocab),
        draft_ids.view(batch, k),
        None if draft_logits is None else draft_logits.view(batch, k, vocab),
        rules["temperature"],
    )
    twin: Callable[[], object]
    if spec.mode == "greedy":
        twin = functools.partial(eager.verify_greedy, arguments[0], arguments[1])
        minimal = size_of(target)
    else:
        twin = functools.partial(eager.verify_rejection, *arguments, spec.top_p)
        minimal = size_of(target, draft_logits)
    return Prepared(run, lambda: run("fused"), twin, minimal)


def build_tree(spec: Logits, device: torch.device) -> Prepared:
    """Trees in which node i hangs under node (i - 1) // 2; eager is the definition, which walks on the host."""
    batch, nodes, vocab = spec.batch, spec.depth, spec.vocab
    generator = torch.Generator(device).manual_seed(vocab + nodes)
    target = _target(spec, batch * (nodes + 1), generator)
    draft = _near(target, generator)
    parents = [(i - 2) // 2 if i >= 2 else -1 for i in range(nodes)]
    owner_rows = torch.tensor([b * (nodes + 1) + parent + 1 for b in range(batch) for parent in parents], device=device)
    ranks = torch.tensor([parents[:i].count(parent) for i, parent in enumerate(parents)] * batch, device=device)
    children = int(ranks.max()) + 1
    best = draft.float().topk(children, -1).indices[owner_rows]
    draft_ids = best.gather(1, ranks[:, None])[:, 0].contiguous()
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    flat = torch.tensor(parents * batch, dtype=torch.int32, device=device)
    cu_nodes = torch.arange(0, batch * nodes + 1, nodes, dtype=torch.int32, device=device)
    rules = _rules(spec, batch, device)

    def run(backend: Backend) -> Outputs:
        verdict = verify_tree(
            target, draft_ids, flat, draft if spec.draft_logits else None, cu_nodes, **rules,
            backend=backend, max_depth=max(depths), max_children=children, max_nodes=nodes,
        )  # fmt: skip
        return {
            "num_accepted": verdict.num_accepted, "token_ids": verdict.token_ids,
            "accepted_nodes": verdict.accepted_nodes, "overlap": verdict.overlap,
        }  # fmt: skip

    minimal = size_of(target, draft if spec.draft_logits and spec.mode != "greedy" else None)
    return Prepared(run, lambda: run("fused"), lambda: run("naive"), minimal, can_compile=False)


def build_sample(spec: Logits, device: torch.device) -> Prepared:
    """One token a row."""
    generator = torch.Generator(device).manual_seed(spec.vocab)
    logits, rules = _target(spec, spec.batch, generator), _rules(spec, spec.batch, device)
    nucleus = _nucleus(spec, spec.batch, device)

    def run(backend: Backend) -> Outputs:
        sampled = sample(logits, **rules, top_p=nucleus, backend=backend)
        return {"token_ids": sampled.token_ids, "logprobs": sampled.logprobs}

    twin = functools.partial(eager.sample, logits, rules["temperature"], spec.top_p)
    return Prepared(run, lambda: run("fused"), twin, size_of(logits))


def _target(spec: Logits, rows: int, generator: torch.Generator) -> torch.Tensor:
    logits = torch.randn(rows, spec.vocab, generator=generator, device=generator.device) * 4
    return logits.to(TYPES[spec.dtype])


def _near(target: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    error = torch.randn(target.shape, generator=generator, device=generator.device)
    return (target.float() + error).to(target.dtype)


def _rules(spec: Logits, batch: int, device: torch.device) -> dict[str, Any]:
    sequence = torch.arange(batch, device=device)
    return {
        "temperature": torch.full((batch,), 0.0 if spec.mode == "greedy" else 0.8, device=device),
        "seeds": sequence * 7919 + 3,
        "positions": sequence * 1000 + 1,
        "coupled": torch.full((batch,), spec.mode == "coupled", device=device),
    }


def _nucleus(spec: Logits, batch: int, device: torch.device) -> torch.Tensor | None:
    return None if spec.top_p is None else torch.full((batch,), spec.top_p, device=device)
