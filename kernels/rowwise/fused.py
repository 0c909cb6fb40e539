"""Linear layers and means in Triton: one launch, or two for a layer that is split over its inputs."""

from __future__ import annotations

import torch
import triton

from kernels.rowwise.launches import MERGE_COLUMNS, linear_launch, mean_launch, merge_launch, splits_of, tile


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See `kernels.rowwise.linear`."""
    rows, weight = _contiguous_rows(rows), _contiguous_rows(weight)
    (num_rows, inputs), outputs = rows.shape, len(weight)
    out = torch.empty((num_rows, outputs), dtype=rows.dtype, device=rows.device)
    if not num_rows or not outputs:
        return out
    sizes, splits = tile(rows.dtype), splits_of(outputs, inputs, rows.dtype)
    # Row blocks are the fastest axis: programs that share a tile of weights run together and read it once.
    grid = (triton.cdiv(num_rows, sizes["ROWS"]), triton.cdiv(outputs, sizes["COLUMNS"]), splits)
    # A pointer that no kernel follows stands for what is absent.
    offsets = rows if bias is None else bias.contiguous()
    partial = out
    if splits > 1:
        partial = torch.empty((splits, num_rows, outputs), dtype=torch.float32, device=rows.device)
    linear_launch(rows.dtype, bias is not None and splits == 1, splits > 1).run(
        grid, partial, rows, rows.stride(0), weight, weight.stride(0), offsets, num_rows, outputs, inputs
    )
    if splits > 1:
        merge_launch(rows.dtype, bias is not None).run(
            (num_rows, triton.cdiv(outputs, MERGE_COLUMNS)), out, partial, offsets, num_rows, outputs, splits
        )
    return out


def mean(rows: torch.Tensor) -> torch.Tensor:
    """See `kernels.rowwise.mean`."""
    rows = _contiguous_rows(rows)
    out = torch.empty(len(rows), dtype=rows.dtype, device=rows.device)
    if len(rows):
        mean_launch(rows.dtype).run((len(rows),), out, rows, rows.stride(0), rows.shape[1])
    return out


def _contiguous_rows(matrix: torch.Tensor) -> torch.Tensor:
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()
