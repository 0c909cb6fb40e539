"""Cases of the operations on hidden states and the KV cache: `attention`, `medusa_heads` and `kv_commit`."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from benchmarks import kernels_eager as eager
from benchmarks.kernels_cases import Case, Outputs, Prepared, Size, difference, size_of
from kernels.attention import ancestor_words, tree_attention
from kernels.kv_commit import kv_commit
from kernels.launch import Backend
from kernels.medusa_heads import medusa_heads
from kernels.medusa_heads.heads import Heads
from kernels.medusa_heads.naive import head_logits

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HALF_TOLERANCE = 2e-2
"""bfloat16 has 8 bits: a sum of other order may round to a neighbour."""
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    batch: int
    rows: int
    """Of each sequence: the nodes of a draft tree, or 1 for plain decoding."""
    context: int
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def shape(self) -> str:
        return (
            f"batch {self.batch}, {self.rows} rows, context {self.context}, heads {self.q_heads}/{self.kv_heads}, "
            f"head_dim {self.head_dim}, {self.dtype}"
        )


@dataclass(frozen=True, slots=True)
class MedusaShape:
    batch: int
    heads: int
    hidden: int
    vocab: int
    k: int
    dtype: str
    own: bool = False
    """Each head has an LM head of its own over a truncated vocabulary."""

    @property
    def shape(self) -> str:
        vocab = f"vocab {self.vocab}{' of its own' if self.own else ''}"
        return f"batch {self.batch}, {self.heads} heads, hidden {self.hidden}, {vocab}, k {self.k}, {self.dtype}"


@dataclass(frozen=True, slots=True)
class CommitShape:
    batch: int
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    path: tuple[int, ...]
    """Nodes of the accepted path, by depth."""

    @property
    def shape(self) -> str:
        return (
            f"batch {self.batch}, {self.layers} layers, kv heads {self.kv_heads}, head_dim {self.head_dim}, "
            f"path {'-'.join(map(str, self.path))}, {self.dtype}"
        )


ATTENTION = {
    "full": (
        AttentionShape(16, 8, 8192, 32, 8, 128, "bf16"),
        AttentionShape(1, 16, 8192, 32, 8, 128, "bf16"),
        AttentionShape(64, 1, 8192, 32, 8, 128, "bf16"),
        AttentionShape(16, 5, 2048, 9, 3, 64, "bf16"),
    ),
    "tiny": (AttentionShape(2, 5, 40, 9, 3, 64, "fp32"), AttentionShape(2, 1, 20, 4, 1, 64, "bf16")),
}
MEDUSA = {
    "full": (
        MedusaShape(16, 4, 4096, 128256, 10, "bf16"),
        MedusaShape(64, 4, 4096, 128256, 10, "bf16"),
        MedusaShape(1, 4, 4096, 128256, 10, "bf16"),
        MedusaShape(16, 4, 4096, 32000, 10, "bf16", own=True),
        MedusaShape(1, 4, 576, 49152, 4, "bf16"),
    ),
    "tiny": (
        MedusaShape(3, 2, 32, 300, 4, "fp32"),
        MedusaShape(2, 2, 32, 200, 3, "bf16", own=True),
    ),
}
COMMIT = {
    "full": (
        CommitShape(16, 32, 8, 128, "bf16", (1, 4, 9, 15)),
        CommitShape(64, 32, 8, 128, "bf16", (1, 4, 9, 15)),
        CommitShape(1, 30, 3, 64, "bf16", (1, 4, 9, 15)),
    ),
    "tiny": (CommitShape(2, 3, 3, 64, "fp32", (1, 4, 20)),),
}
AIMS = (ATTENTION["full"][0], MEDUSA["full"][0], COMMIT["full"][0])


def cases(size: Size) -> list[Case]:
    """See `benchmarks.kernels_cases.cases`."""
    return [
        *(
            Case("attention", spec.shape, functools.partial(build_attention, spec), spec in AIMS)
            for spec in ATTENTION[size]
        ),
        *(
            Case("medusa_heads", spec.shape, functools.partial(build_medusa, spec), spec in AIMS)
            for spec in MEDUSA[size]
        ),
        *(Case("kv_commit", spec.shape, functools.partial(build_commit, spec), spec in AIMS) for spec in COMMIT[size]),
    ]


def build_attention(spec: AttentionShape, device: torch.device) -> Prepared:
    """Draft trees in which row i hangs under row (i - 1) // 2, over a cache whose blocks lie in random order."""
    batch, rows, dtype = spec.batch, spec.rows, TYPES[spec.dtype]
    generator = torch.Generator(device).manual_seed(spec.context)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    keys = spec.context + rows
    blocks = -(-keys // BLOCK_SIZE)
    block_tables = torch.randperm(batch * blocks, generator=generator, device=device).view(batch, blocks).int()
    k_cache, v_cache = (normal(batch * blocks, BLOCK_SIZE, spec.kv_heads, spec.head_dim) for _ in range(2))
    query = normal(batch * rows, spec.q_heads, spec.head_dim)
    parents = [(i - 1) // 2 if i else -1 for i in range(rows)]
    ancestors = ancestor_words([parents] * batch).to(device)
    context_lens = torch.full((batch,), spec.context, dtype=torch.int32, device=device)
    cu_rows = torch.arange(0, batch * rows + 1, rows, dtype=torch.int32, device=device)

    def run(backend: Backend) -> Outputs:
        attended = tree_attention(
            query, k_cache, v_cache, block_tables, context_lens, cu_rows, ancestors,
            max_rows=rows, max_context=spec.context, backend=backend,
        )  # fmt: skip
        return {"attended": attended}

    mask = torch.ones(batch, 1, rows, keys, dtype=torch.bool, device=device)
    mask[..., spec.context :] = _visible(parents).to(device)
    by_sequence = query.view(batch, rows, spec.q_heads, spec.head_dim)
    twin = functools.partial(eager.tree_attention, by_sequence, k_cache, v_cache, block_tables.long(), mask)
    read = 2 * batch * keys * spec.kv_heads * spec.head_dim * query.element_size()
    tolerance = 1e-4 if dtype == torch.float32 else HALF_TOLERANCE
    return Prepared(run, lambda: run("fused"), twin, read + 2 * size_of(query), tolerance)


def build_medusa(spec: MedusaShape, device: torch.device) -> Prepared:
    """Heads of random weights."""
    dtype, generator = TYPES[spec.dtype], torch.Generator(device).manual_seed(spec.vocab)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    hidden = normal(spec.batch, spec.hidden)
    weight = normal(spec.heads, spec.hidden, spec.hidden) / spec.hidden**0.5
    bias = normal(spec.heads, spec.hidden)
    lm_head = normal(*((spec.heads,) if spec.own else ()), spec.vocab, spec.hidden) / spec.hidden**0.5
    vocab_map = None
    if spec.own:
        vocab_map = torch.randperm(2 * spec.vocab, generator=generator, device=device)[: spec.vocab]

    def run(backend: Backend) -> Outputs:
        found = medusa_heads(hidden, weight, bias, lm_head, k=spec.k, vocab_map=vocab_map, backend=backend)
        return {"token_ids": found.token_ids, "logits": found.logits, "log_sum_exp": found.log_sum_exp}

    tolerance = 1e-4 if dtype == torch.float32 else HALF_TOLERANCE

    def compare(fused: Outputs, naive: Outputs) -> list[str]:
        # Two logits that lie closer than the tolerance may change places; what a token is given must still be its own.
        logits = head_logits(Heads(hidden, weight, bias, lm_head, vocab_map, spec.k))
        columns = fused["token_ids"]
        if vocab_map is not None:
            place = torch.full((2 * spec.vocab,), -1, device=device)
            place[vocab_map] = torch.arange(spec.vocab, device=device)
            columns = place[columns.clamp(0, 2 * spec.vocab - 1)]
        if not bool(((columns >= 0) & (columns < spec.vocab)).all()):
            return ["token_ids: not all are tokens of the vocabulary"]
        own = logits.gather(-1, columns)
        lines = (
            difference("logits", fused["logits"], naive["logits"], tolerance),
            difference("logits of the chosen tokens", fused["logits"], own, tolerance),
            difference("log_sum_exp", fused["log_sum_exp"], naive["log_sum_exp"], tolerance),
        )
        return [line for line in lines if line]

    twin = functools.partial(eager.medusa_heads, hidden, weight, bias, lm_head, spec.k, vocab_map)
    minimal = size_of(hidden, weight, bias, lm_head)
    return Prepared(run, lambda: run("fused"), twin, minimal, tolerance, compare)


def build_commit(spec: CommitShape, device: torch.device) -> Prepared:
    """A path of each sequence whose nodes all lie elsewhere than a chain's would; one cache tensor a layer."""
    dtype, generator = TYPES[spec.dtype], torch.Generator(device).manual_seed(spec.batch)
    depth, first = len(spec.path), 10
    blocks = -(-(first + 2 + max(spec.path)) // BLOCK_SIZE)
    order = torch.randperm(spec.batch * blocks, generator=generator, device=device)
    block_tables = order.view(spec.batch, blocks).int()
    shape = (spec.batch * blocks, BLOCK_SIZE, spec.kv_heads, spec.head_dim)
    k_caches, v_caches = (
        [torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(spec.layers)] for _ in "kv"
    )
    first_positions = torch.full((spec.batch,), first, dtype=torch.int64, device=device)
    accepted = torch.tensor([spec.path] * spec.batch, dtype=torch.int32, device=device)
    num_accepted = torch.full((spec.batch,), depth, dtype=torch.int32, device=device)
    rules = (block_tables, first_positions, accepted, num_accepted)

    def run(backend: Backend) -> Outputs:
        own_k, own_v = ([layer.clone() for layer in caches] for caches in (k_caches, v_caches))
        kv_commit(own_k, own_v, *rules, backend=backend)
        return {"k_cache": torch.stack(own_k), "v_cache": torch.stack(own_v)}

    positions = torch.arange(depth, device=device) + first + 1
    targets = _slots(block_tables, positions.expand(spec.batch, depth))
    sources = _slots(block_tables, accepted + first + 1)
    twin = functools.partial(eager.kv_commit, k_caches, v_caches, sources, targets)
    moved = spec.batch * depth * spec.kv_heads * spec.head_dim * k_caches[0].element_size()
    # Read and written, keys and values.
    minimal = 4 * spec.layers * moved

    def timed() -> None:
        kv_commit(k_caches, v_caches, *rules, backend="fused")

    return Prepared(run, timed, twin, minimal, tolerance=0.0)


def _slots(block_tables: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows of a cache, blocks laid behind each other, that hold logical positions [B, n]; flat."""
    return (block_tables.gather(1, positions.long() // BLOCK_SIZE) * BLOCK_SIZE + positions % BLOCK_SIZE).flatten()


def _visible(parents: list[int]) -> torch.Tensor:
    seen = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen
