"""The kernels of a linear layer, whole or split over its inputs, and of the mean of a row."""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_columns"])
def linear_kernel(
    out_ptr,
    row_ptr,
    row_stride,
    weight_ptr,
    weight_stride,
    bias_ptr,
    num_rows,
    num_columns,
    size,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Program (block of rows, block of columns, split of the inputs).

    Whole: out [num_rows, num_columns] of any type. Split: out [splits, num_rows, num_columns] f32, without the bias.
    Every element is summed in turns of INNER inputs from the split's first one on, whatever else the tile holds.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    row_mask, column_mask = rows < num_rows, columns < num_columns
    row_ptrs, column_ptrs = row_ptr + rows * row_stride, weight_ptr + columns * weight_stride
    first = split * SPLIT
    turns = SPLIT if IS_SPLIT else size
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, turns, INNER):
        inner = first + start + tl.arange(0, INNER)
        inside = inner < size
        states = tl.load(row_ptrs[:, None] + inner[None, :], mask=row_mask[:, None] & inside[None, :], other=0.0)
        weights = tl.load(column_ptrs[:, None] + inner[None, :], mask=column_mask[:, None] & inside[None, :], other=0.0)
        # ieee: tensor cores would round float32 to tf32.
        total = tl.dot(states, tl.trans(weights), total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    at = (split.to(tl.int64) * num_rows + rows)[:, None] * num_columns + columns[None, :]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


@triton.jit(do_not_specialize=["num_rows", "splits"])
def linear_merge_kernel(
    out_ptr, partial_ptr, bias_ptr, num_rows, num_columns, splits, HAS_BIAS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Program (row, block of columns): out [num_rows, num_columns], the splits added one by one in their order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < num_columns
    total = tl.zeros((COLUMNS,), tl.float32)
    plane = num_rows.to(tl.int64) * num_columns
    for split in range(splits):
        total += tl.load(partial_ptr + split * plane + row * num_columns + column, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * num_columns + column, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def mean_kernel(out_ptr, row_ptr, row_stride, size, BLOCK: tl.constexpr):
    """Program (row): the mean of `size` elements."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(row_ptr + row * row_stride + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, (tl.sum(total, 0) / size).to(out_ptr.dtype.element_ty))
