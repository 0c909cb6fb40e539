"""Compiles a skeleton into a package. The text of this file is part of a package's name."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import torch

from kernels import packed_linear
from workers.compiled.form import Form

ROWS_LEAST = 2
"""A compiled graph takes no single row: 1 is a number that a compiler treats as special."""
ROWS_MOST = 1 << 16


def make_package(skeleton: Form, path: Path) -> None:
    """Compile `skeleton` into a package at `path`. Takes minutes for a large one; raises what the compiler raises."""
    import torch._inductor as inductor

    packed_linear.load()
    dims = {
        name: torch.export.Dim(name, min=ROWS_LEAST, max=ROWS_MOST) for dim in skeleton.dims for name in dim.values()
    }
    shapes = tuple({axis: dims[name] for axis, name in dim.items()} for dim in skeleton.dims)
    with torch.no_grad():
        program = torch.export.export(skeleton, skeleton.example(8, 4), dynamic_shapes=shapes, strict=False)
        merge_products(program.graph_module)
        inductor.aoti_compile_and_package(program, package_path=str(path))


def merge_products(module: torch.fx.GraphModule) -> None:
    """Products of the same rows become one call, which costs one start of the threads: q, k and v; gate and up."""
    product, graph = torch.ops.kadence_linear.packed_linear.default, module.graph
    by_rows: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        if node.target is product:
            by_rows.setdefault(node.args[0], []).append(node)
    for rows, nodes in by_rows.items():
        if len(nodes) == 1:
            continue
        arguments: list[Any] = [node.args for node in nodes]
        numbers, sizes = ([n for own in arguments for n in own[i]] for i in (1, 2))
        with graph.inserting_before(nodes[0]):
            merged = graph.call_function(product, (rows, numbers, sizes))
            merged.meta = {**nodes[0].meta, "val": torch.cat([node.meta["val"] for node in nodes], -1)}
            parts = graph.call_function(torch.ops.aten.split_with_sizes.default, (merged, sizes, -1))
            parts.meta = {**nodes[0].meta, "val": merged.meta["val"].split(sizes, -1)}
            for i, node in enumerate(nodes):
                part = graph.call_function(operator.getitem, (parts, i))
                part.meta = {**node.meta, "val": parts.meta["val"][i]}
                node.replace_all_uses_with(part)
        for node in nodes:
            graph.erase_node(node)
    graph.lint()
    module.recompile()
