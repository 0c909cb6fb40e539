"""The Triton kernels against the definition, in Triton's interpreter.

As tests/kernels/test_fused.py, this file runs itself once as a program with TRITON_INTERPRET=1, which leaves every
case's outcome in a file. Caches hold NaN wherever no row looks, and so does fresh memory.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention import ancestor_words, tree_attention, write_kv

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
TOLERANCE = {FP32: 1e-5, FP16: 2e-3, BF16: 1.6e-2}
"""Sums in another order; the last place of a result of size 1 to 2, and weights rounded to the type."""


def tree(rows: int, seed: int) -> tuple[int, ...]:
    """Parents of a tree, deeper than a window and forked: a node hangs from one of the four before it."""
    generator = torch.Generator().manual_seed(seed)
    return (-1, *(int(torch.randint(max(0, i - 4), i, (1,), generator=generator)) for i in range(1, rows)))


def chain(rows: int) -> tuple[int, ...]:
    return tuple(range(-1, rows - 1))


@dataclass(frozen=True)
class Scene:
    """Sequences of (context, parents) in one cache; masked: whether the bitmask is given (else all must be chains)."""

    sequences: tuple[tuple[int, tuple[int, ...]], ...]
    heads: tuple[int, int] = (9, 3)
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = FP32
    masked: bool = True
    window: int | None = None
    softcap: float | None = None


EDGES = (0, 1, 15, 16, 17, 63, 64, 65)
SCENES = {
    "rows-1-to-17": Scene(tuple((EDGES[r % 8], chain(r)) for r in range(1, 18)), masked=False),
    "edges-of-blocks": Scene(tuple((c, tree(2 + c % 5, c)) for c in EDGES)),
    "an-empty-sequence": Scene(((5, ()), (7, chain(2)), (3, ()))),
    "tree-of-64": Scene(((70, tree(64, 1)), (2, tree(33, 2))), block_size=32),
    "edges-of-splits": Scene(
        tuple((c, tree(4, c)) for c in (508, 509, 511, 512, 513, 1023)), heads=(3, 1), block_size=64
    ),
    "decode": Scene(((0, chain(1)), (600, chain(1)), (16, chain(1))), masked=False),
    "heads-32-8": Scene(((30, tree(17, 3)), (1, chain(1))), heads=(32, 8), head_dim=128),
    "heads-4-4": Scene(((40, tree(9, 4)), (0, chain(3))), heads=(4, 4), head_dim=96),
    "heads-8-1": Scene(((40, tree(7, 5)),), heads=(8, 1), head_dim=256, block_size=32),
    "heads-16-1": Scene(((90, tree(5, 6)), (3, chain(2))), heads=(16, 1), head_dim=96),
    "window-chain": Scene(((0, chain(6)), (40, chain(17)), (700, chain(2))), window=5, masked=False),
    "window-tree": Scene(((0, tree(20, 7)), (100, tree(20, 8)), (1200, tree(12, 9))), window=4),
    "window-of-40": Scene(((0, tree(40, 21)), (100, tree(17, 22)), (557, chain(3))), heads=(3, 1), window=40),
    "two-roots": Scene(((20, (-1, -1, 0, 1, 2)), (0, (-1, -1, -1)))),
    "window-over-splits": Scene(((1100, tree(6, 10)), (600, tree(3, 3))), heads=(3, 1), window=600, block_size=64),
    "softcap": Scene(((50, tree(8, 11)), (1, chain(1))), softcap=2.0),
    "softcap-window": Scene(((90, tree(8, 12)),), heads=(8, 2), head_dim=256, softcap=2.0, window=33),
    "bf16": Scene(((600, tree(9, 13)), (5, chain(4))), dtype=BF16),
    "bf16-128": Scene(((100, tree(9, 13)),), heads=(4, 1), head_dim=128, dtype=BF16, window=50),
    "bf16-256": Scene(((100, tree(9, 14)),), heads=(4, 1), head_dim=256, dtype=BF16),
    "bf16-96": Scene(((33, tree(9, 15)),), heads=(4, 1), head_dim=96, dtype=BF16, softcap=3.0),
    "fp16": Scene(((600, tree(9, 16)), (5, chain(4))), dtype=FP16),
}


def build(scene: Scene, blocks_seed: int = 0, spare_columns: int = 0) -> dict[str, Any]:
    """Arguments of tree_attention. A sequence's numbers depend on its own text only, its blocks on `blocks_seed`."""
    q_heads, kv_heads = scene.heads
    size, dim = scene.block_size, scene.head_dim
    lengths = [context + len(parents) for context, parents in scene.sequences]
    columns = [-(-n // size) for n in lengths]
    generator = torch.Generator().manual_seed(blocks_seed)
    free = iter((torch.randperm(sum(columns) + 3, generator=generator)).tolist())
    # Keys and values lie side by side as one layer of several: every stride but the last differs from its size.
    store = torch.full((sum(columns) + 3, 2, size, 2, kv_heads, dim), torch.nan)
    k_cache, v_cache = store[:, 0, :, 1], store[:, 1, :, 1]
    block_tables = torch.full((len(lengths), max(columns) + spare_columns), -1, dtype=torch.int32)
    queries = []
    for b, (context, parents) in enumerate(scene.sequences):
        numbers = torch.Generator().manual_seed(1000 * context + len(parents) + (parents[-1] if parents else 0))
        keys, values = torch.randn(2, lengths[b], kv_heads, dim, generator=numbers)
        queries.append(torch.randn(len(parents), q_heads, dim, generator=numbers))
        first = 0 if scene.window is None else max(0, context - scene.window + 1)
        for slot in range(first, lengths[b]):
            if block_tables[b, slot // size] < 0:
                block_tables[b, slot // size] = next(free)
            at = int(block_tables[b, slot // size]), slot % size
            k_cache[at], v_cache[at] = keys[slot], values[slot]
    trees = [parents for _, parents in scene.sequences]
    store = store.to(scene.dtype)
    return {
        "query": torch.cat(queries).to(scene.dtype),
        "k_cache": store[:, 0, :, 1],
        "v_cache": store[:, 1, :, 1],
        "block_tables": block_tables,
        "context_lens": torch.tensor([context for context, _ in scene.sequences], dtype=torch.int32),
        "cu_rows": torch.tensor([0, *itertools.accumulate(map(len, trees))], dtype=torch.int32),
        "ancestors": ancestor_words(trees) if scene.masked else None,
        "sliding_window": scene.window,
        "softcap": scene.softcap,
    }


def rows_of(scene: Scene, b: int, result: torch.Tensor) -> torch.Tensor:
    start = sum(len(parents) for _, parents in scene.sequences[:b])
    return result[start : start + len(scene.sequences[b][1])]


# What must not matter. The sequence watched ends in a tree or chain behind more than one split.
WATCHED = {
    "tree": (Scene(((530, tree(11, 20)),), heads=(3, 1)), Scene(((530, tree(11, 20)),), heads=(3, 1), window=9)),
    "chain": (
        Scene(((530, chain(6)),), heads=(4, 1), masked=False),
        Scene(((530, chain(6)),), heads=(2, 1), masked=False, window=520),
    ),
}
MATES = ((3, chain(17)), (65, chain(1)), (1025, chain(2)))


def invariance(kind: str, index: int) -> dict[str, list[torch.Tensor]]:
    """The watched sequence's result: alone first, then under each change that must not matter."""
    scene = WATCHED[kind][index]
    alone = tree_attention(**build(scene), backend="fused")
    found = {"alone": [alone]}
    found["other-blocks"] = [tree_attention(**build(scene, 5, spare_columns=9), backend="fused")]
    found["wider-bounds"] = [tree_attention(**build(scene), max_rows=20, max_context=2000, backend="fused")]
    for b in (0, 3):
        mates = (*MATES[:b], *scene.sequences, *MATES[b:])
        company = replace(scene, sequences=mates)
        found[f"in-company-at-{b}"] = [rows_of(company, b, tree_attention(**build(company, 7), backend="fused"))]
    return found


def chains_of_every_length() -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """(17 rows at once, chains of fewer rows, each row as a plain decode) over the same text."""
    whole = build(Scene(((505, chain(17)),), heads=(3, 1), masked=False))

    def rows(first: int, last: int) -> torch.Tensor:
        query = whole["query"][first:last]
        bounds = torch.tensor([0, len(query)], dtype=torch.int32)
        context = torch.tensor([505 + first], dtype=torch.int32)
        return tree_attention(**(whole | {"query": query, "cu_rows": bounds, "context_lens": context}), backend="fused")

    return rows(0, 17), [rows(0, n) for n in (1, 2, 5, 6, 16)], [rows(i, i + 1) for i in range(17)]


def written(backend: str, dtype: torch.dtype, head_dim: int) -> torch.Tensor:
    """A cache [2, blocks, size, heads, dim] of -12345 after rows were written to it."""
    scene = Scene(((15, chain(18)), (0, chain(1)), (63, ()), (31, chain(2))), heads=(2, 2), head_dim=head_dim)
    case = build(scene)
    generator = torch.Generator().manual_seed(3)
    new = torch.randn(2, 2, 21, head_dim, generator=generator).to(dtype)  # as a model has them, heads first
    caches = torch.full((2, *case["k_cache"].shape), -12345.0, dtype=dtype)
    tables = (case["block_tables"], case["context_lens"], case["cu_rows"])
    write_kv(new[0].transpose(0, 1), new[1].transpose(0, 1), caches[0], caches[1], *tables, backend=backend)
    return caches


WRITES = [(FP32, 64), (BF16, 96), (FP16, 128), (FP32, 256)]


class Recorded:
    """A kernel that notes the configuration of each of its launches."""

    def __init__(self, kernel: Any, log: list[dict[str, Any]]) -> None:
        self.kernel, self.log = kernel, log

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            types = [str(a.dtype)[6:] for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
            state = types[2] if self.kernel.__name__ == "attention_split_kernel" else types[0]
            self.log.append({"kernel": self.kernel.__name__, "state": state} | options)
            self.kernel[grid](*args, **options)

        return launch


def run_interpreted(output: str) -> None:
    from kernels.attention import fused, launches
    from kernels.interpreter import correct_interpreter, hasten_interpreter

    correct_interpreter()
    hasten_interpreter()
    empty = torch.empty

    def poisoned(*size: Any, **options: Any) -> torch.Tensor:
        fresh = empty(*size, **options)
        return fresh.fill_(torch.nan if fresh.is_floating_point() else -12345)

    cases = {name: build(scene) for name, scene in SCENES.items()}
    log: list[dict[str, Any]] = []
    kernels = {name: getattr(fused, name) for name in dir(fused) if name.endswith("_kernel")}
    torch.empty = poisoned
    warnings.simplefilter("error")
    recorded = {name: Recorded(kernel, log) for name, kernel in kernels.items()}
    fused.configuration = lambda kernel, *rest: launches.configuration(kernel.kernel, *rest)
    for name, wrapper in recorded.items():
        setattr(fused, name, wrapper)
    torch.save(
        {
            "scenes": {name: tree_attention(**case, backend="fused") for name, case in cases.items()},
            "invariance": {(kind, i): invariance(kind, i) for kind in WATCHED for i in (0, 1)},
            "chains": chains_of_every_length(),
            "written": [written("fused", *write) for write in WRITES],
            "log": log,
        },
        output,
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    output = tmp_path_factory.mktemp("interpreted") / "outcomes.pt"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), str(output)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(output, weights_only=True)
    return loaded


@pytest.mark.parametrize("name", SCENES)
def test_fused_attends_as_the_definition_does(name: str, outcomes: dict[str, Any]) -> None:
    scene = SCENES[name]
    expected = tree_attention(**build(scene), backend="naive")
    assert outcomes["scenes"][name].dtype == scene.dtype
    torch.testing.assert_close(outcomes["scenes"][name], expected, rtol=0.0, atol=TOLERANCE[scene.dtype])


@pytest.mark.parametrize("index", [0, 1], ids=["no_window", "window"])
@pytest.mark.parametrize("kind", WATCHED)
@pytest.mark.parametrize("change", ["other-blocks", "wider-bounds", "in-company-at-0", "in-company-at-3"])
def test_a_row_has_the_same_bits(change: str, kind: str, index: int, outcomes: dict[str, Any]) -> None:
    found = outcomes["invariance"][kind, index]
    assert torch.equal(found["alone"][0], found[change][0])


def test_rows_behind_a_row_change_no_bit_of_it(outcomes: dict[str, Any]) -> None:
    whole, shorter, _ = outcomes["chains"]
    assert all(torch.equal(whole[: len(rows)], rows) for rows in shorter)


def test_a_row_of_a_chain_has_the_bits_of_a_plain_decode(outcomes: dict[str, Any]) -> None:
    whole, _, decodes = outcomes["chains"]
    assert [i for i, row in enumerate(decodes) if not torch.equal(whole[i], row[0])] == []


@pytest.mark.parametrize("index", range(len(WRITES)))
def test_fused_writes_the_same_slots(index: int, outcomes: dict[str, Any]) -> None:
    assert torch.equal(outcomes["written"][index], written("naive", *WRITES[index]))


def test_what_is_launched_is_in_the_list_that_the_compiler_builds(outcomes: dict[str, Any]) -> None:
    from kernels.attention.launches import launches

    types = {"*fp32": "float32", "*bf16": "bfloat16", "*fp16": "float16"}
    listed = [
        {
            "kernel": launch.kernel.__name__,
            "state": types[
                next(launch.pointers[a] for a in ("query_ptr", "out_ptr", "key_ptr") if a in launch.pointers)
            ],
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "enable_fp_fusion": False,
        }
        | dict(launch.constants)
        for launch in launches()
    ]
    assert {entry["kernel"] for entry in outcomes["log"]} == {entry["kernel"] for entry in listed}
    assert [entry for entry in outcomes["log"] if entry not in listed] == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA or ROCm device")
@pytest.mark.parametrize("name", SCENES)
def test_fused_attends_as_the_definition_does_on_the_accelerator(name: str) -> None:
    case = build(SCENES[name])
    there = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in case.items()}
    found = tree_attention(**there, backend="fused").cpu()
    expected = tree_attention(**case, backend="naive")
    torch.testing.assert_close(found, expected, rtol=0.0, atol=TOLERANCE[SCENES[name].dtype])


if __name__ == "__main__":
    run_interpreted(sys.argv[1])
