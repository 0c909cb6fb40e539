"""The kernel of the commit: one program moves all rows of one sequence in one layer of keys or values."""

# Triton gives its functions neither types nor a place for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _address(base_ptr, table_ptr, position, max_blocks, block_size, block_stride, slot_stride):
    """Return the start of a logical position's row, and whether there is a block for it."""
    index = position // block_size
    inside = (index >= 0) & (index < max_blocks)
    block = tl.load(table_ptr + index, mask=inside, other=-1)
    slot = position - index * block_size
    return base_ptr + block.to(tl.int64) * block_stride + slot * slot_stride, block >= 0


@triton.jit
def _layer(cache_ptr, layer, layer_stride, IS_STACKED: tl.constexpr, ELEMENT: tl.constexpr, ALIGNED: tl.constexpr):
    """Return the start of a layer, from its offset in a stacked cache or its address in a table."""
    if IS_STACKED:
        start = cache_ptr + layer * layer_stride
    else:
        start = tl.load(cache_ptr + layer).to(tl.pointer_type(ELEMENT))
        if ALIGNED:
            start = tl.multiple_of(start, 16)
    return start


@triton.jit(do_not_specialize=["table_stride", "max_blocks", "block_size", "max_depth", "layers", "heads"])
def kv_commit_kernel(
    key_ptr,
    key_layer_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_ptr,
    value_layer_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    block_table_ptr,
    table_stride,
    max_blocks,
    block_size,
    first_position_ptr,
    accepted_node_ptr,
    num_accepted_ptr,
    max_depth,
    layers,
    heads,
    IS_STACKED: tl.constexpr,
    ALIGNED: tl.constexpr,
    ELEMENT: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid (2 layers, sequences, groups of HEADS heads).

    Rows move one after the other, each to a place at or before its own and after all places written before: a path's
    nodes rise, so node d of it is d or more, and the row at d + 1 + first position is read by nobody after its own
    move.
    """
    layer = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    count = tl.minimum(tl.load(num_accepted_ptr + b), max_depth)
    head = tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, BLOCK_D)
    mask = (head < heads)[:, None] & (dim < HEAD_DIM)[None, :]
    is_key = layer < layers
    if is_key:
        base = _layer(key_ptr, layer, key_layer_stride, IS_STACKED, ELEMENT, ALIGNED)
    else:
        base = _layer(value_ptr, layer - layers, value_layer_stride, IS_STACKED, ELEMENT, ALIGNED)
    block_stride = tl.where(is_key, key_block_stride, value_block_stride)
    slot_stride = tl.where(is_key, key_slot_stride, value_slot_stride)
    head_stride = tl.where(is_key, key_head_stride, value_head_stride)
    table = block_table_ptr + b * table_stride
    start = tl.load(first_position_ptr + b) + 1
    offsets = head.to(tl.int64)[:, None] * head_stride + dim[None, :]
    for depth in range(count):
        node = tl.load(accepted_node_ptr + b * max_depth + depth)
        if node > depth:
            source, has_source = _address(base, table, start + node, max_blocks, block_size, block_stride, slot_stride)
            destination, has_destination = _address(
                base, table, start + depth, max_blocks, block_size, block_stride, slot_stride
            )
            if has_source & has_destination:
                tl.store(destination + offsets, tl.load(source + offsets, mask=mask, other=0), mask=mask)
            # The next move may write where this one read, in whatever thread.
            tl.debug_barrier()
