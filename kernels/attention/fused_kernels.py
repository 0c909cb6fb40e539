"""Attention over a block KV cache in two kernels: every split of the keys by itself, then the splits together.

A program's rows are packed: packed row r * group + m is head m of the group of row r, so that all query heads that read
the same keys read them once. What a row gets depends on the logical slots of its keys only: the turns of the loop start
at multiples of TILE_KEYS, the splits at multiples of SPLIT, and a turn that a row sees nothing of changes no bit of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_FAR = tl.constexpr(2147483647)


@triton.jit
def _packed_rows(cu_rows_ptr, depth_ptr, tiles, group, has_depths, TILE_ROWS: tl.constexpr):
    """(sequence, its first row, its rows, row, member of the group and depth of each packed row, which are live)."""
    sequence = tl.program_id(0) // tiles
    packed = (tl.program_id(0) % tiles) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    first = tl.load(cu_rows_ptr + sequence)
    rows = tl.load(cu_rows_ptr + sequence + 1) - first
    row = packed // group
    live = row < rows
    depth = row
    if has_depths != 0:
        depth = tl.load(depth_ptr + first + row, mask=live, other=0)
    return sequence, first, rows, row, packed % group, depth, live


@triton.jit
def _lowest_slot(context, shallowest, window):
    """No row of a tile sees a slot before this one: blocks behind the window may be gone, or hold anything."""
    return tl.maximum(tl.minimum(context + shallowest - window + 1, context), 0)


@triton.jit
def _load_turn(
    key_ptr, key_block_stride, key_slot_stride, value_ptr, value_block_stride, value_slot_stride,
    table_ptr, block_shift, slot, wanted, column, ALL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """(keys [BLOCK_D, slots], values [slots, BLOCK_D]) of one turn; ALL: every slot is wanted.

    Only values must be masked: a score may be NaN where nobody looks, but no weight takes a NaN out of a sum.
    """
    if ALL:
        block = tl.load(table_ptr + (slot >> block_shift))
    else:
        block = tl.load(table_ptr + (slot >> block_shift), mask=wanted, other=0)
    block = tl.maximum(block, 0).to(tl.int64)
    inside = (slot & ((1 << block_shift) - 1)).to(tl.int64)
    key_at = key_ptr + (block * key_block_stride + inside * key_slot_stride)[None, :] + column[:, None]
    value_at = value_ptr + (block * value_block_stride + inside * value_slot_stride)[:, None] + column[None, :]
    in_head = column < HEAD_DIM
    keys = tl.load(key_at) if HEAD_DIM == BLOCK_D else tl.load(key_at, mask=in_head[:, None], other=0.0)
    if not ALL:
        values = tl.load(value_at, mask=wanted[:, None] & in_head[None, :], other=0.0)
    elif HEAD_DIM == BLOCK_D:
        values = tl.load(value_at)
    else:
        values = tl.load(value_at, mask=in_head[None, :], other=0.0)
    return keys, values


@triton.jit
def _take_in(query, keys, values, visible, scale, softcap, peak, mass, weighted):
    """One turn of the online softmax: (peak, mass, weighted) with these keys taken in, scores in base-2 units."""
    scores = tl.dot(query, keys, input_precision="ieee") * scale
    if softcap > 0.0:
        # tanh; far out it is 1 and -1, where the exponential would overflow or vanishes.
        growth = tl.exp2(tl.minimum(scores * (2.0 * _LOG2_E / softcap), 64.0))
        scores = softcap * (1.0 - 2.0 / (growth + 1.0))
    scores = tl.where(visible, scores * _LOG2_E, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # a row that has seen nothing yet
    weights = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(peak - shift)
    mass = mass * fade + tl.sum(weights, 1)
    weighted = weighted * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return new_peak, mass, weighted


# A step's numbers: a kernel compiled anew for a 1 or a multiple of 16 among them would be one that nobody tested.
_VARYING = (
    "words", "has_depths", "num_rows", "q_heads", "group", "tiles", "block_shift", "window", "table_stride",
)  # fmt: skip


@triton.jit(do_not_specialize=_VARYING)
def attention_split_kernel(
    partial_ptr, statistics_ptr,
    query_ptr, query_row_stride, query_head_stride,
    key_ptr, key_block_stride, key_slot_stride, key_head_stride,
    value_ptr, value_block_stride, value_slot_stride, value_head_stride,
    block_table_ptr, table_stride, context_ptr, cu_rows_ptr, ancestor_ptr, words, depth_ptr, has_depths,
    num_rows, q_heads, group, tiles, block_shift, window, scale, softcap,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Program (sequence and tile of its packed rows, kv head, split): sum of exponentials and weighted values.

    Writes partial [splits, num_rows, q_heads, HEAD_DIM] and statistics [splits, num_rows, q_heads, 2], both f32: the
    values weighted by exp2(score - peak); the peak, which is the largest score in base-2 units, and the weights' sum.
    A program without keys writes nothing: the second kernel works out which do.
    """
    sequence, first, rows, row, member, depth, live = _packed_rows(
        cu_rows_ptr, depth_ptr, tiles, group, has_depths, TILE_ROWS
    )
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_ptr + sequence)
    shallowest = tl.min(tl.where(live, depth, _FAR), 0)
    if shallowest == _FAR:
        return  # a tile behind the sequence's last row
    lowest = _lowest_slot(context, shallowest, window)
    begin = tl.maximum(split * SPLIT, lowest // TILE_KEYS * TILE_KEYS)
    end = tl.minimum(split * SPLIT + SPLIT, context + rows)
    if begin >= end:
        return

    column = tl.arange(0, BLOCK_D)
    in_head = column < HEAD_DIM
    q_head = kv_head * group + member
    query_offset = (first + row).to(tl.int64) * query_row_stride + q_head.to(tl.int64) * query_head_stride
    query = tl.load(
        query_ptr + query_offset[:, None] + column[None, :], mask=live[:, None] & in_head[None, :], other=0.0
    )
    key_ptr += kv_head.to(tl.int64) * key_head_stride
    value_ptr += kv_head.to(tl.int64) * value_head_stride
    table_ptr = block_table_ptr + sequence.to(tl.int64) * table_stride
    position = context + depth
    peak = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    mass = tl.zeros((TILE_ROWS,), tl.float32)
    weighted = tl.zeros((TILE_ROWS, BLOCK_D), tl.float32)

    # First a turn cut by `lowest`, then whole turns of committed tokens, then those with rows of this step: only the
    # middle ones are many, and they need no mask to load. Loops count from 0: the compiler knows nothing of a number
    # that came from a reduction, as `begin` did, and would load addresses that descend from it 2 bytes at a time.
    middle = tl.maximum(tl.minimum(context // TILE_KEYS * TILE_KEYS, end), begin)
    whole = tl.minimum(tl.where(begin < lowest, begin + TILE_KEYS, begin), middle)
    for ahead in tl.range(0, whole - begin, TILE_KEYS, num_stages=1):
        slot = begin + ahead + tl.arange(0, TILE_KEYS)
        wanted = slot >= lowest
        keys, values = _load_turn(
            key_ptr, key_block_stride, key_slot_stride, value_ptr, value_block_stride, value_slot_stride,
            table_ptr, block_shift, slot, wanted, column, False, HEAD_DIM, BLOCK_D,
        )  # fmt: skip
        visible = wanted[None, :] & (position[:, None] - slot[None, :] < window)
        peak, mass, weighted = _take_in(query, keys, values, visible, scale, softcap, peak, mass, weighted)

    for ahead in range(0, middle - whole, TILE_KEYS):
        slot = whole + ahead + tl.arange(0, TILE_KEYS)
        keys, values = _load_turn(
            key_ptr, key_block_stride, key_slot_stride, value_ptr, value_block_stride, value_slot_stride,
            table_ptr, block_shift, slot, slot, column, True, HEAD_DIM, BLOCK_D,
        )  # fmt: skip
        visible = position[:, None] - slot[None, :] < window
        peak, mass, weighted = _take_in(query, keys, values, visible, scale, softcap, peak, mass, weighted)

    ancestor_row_ptr = ancestor_ptr + (first + tl.minimum(row, rows - 1)).to(tl.int64) * words
    for ahead in tl.range(0, end - middle, TILE_KEYS, num_stages=1):
        slot = middle + ahead + tl.arange(0, TILE_KEYS)
        wanted = (slot >= lowest) & (slot < end)
        keys, values = _load_turn(
            key_ptr, key_block_stride, key_slot_stride, value_ptr, value_block_stride, value_slot_stride,
            table_ptr, block_shift, slot, wanted, column, False, HEAD_DIM, BLOCK_D,
        )  # fmt: skip
        other = slot - context  # row number, where not negative
        any_other = tl.minimum(tl.maximum(other, 0), rows - 1)  # a load that needs no mask
        related = other[None, :] <= row[:, None]
        if words != 0:
            word = tl.load(ancestor_row_ptr[:, None] + (any_other >> 5)[None, :])
            related = ((word >> (any_other & 31)[None, :]) & 1) != 0
        slot_position = slot
        if has_depths != 0:
            slot_position = tl.where(slot < context, slot, context + tl.load(depth_ptr + first + any_other))
        visible = wanted[None, :] & (related | (slot < context)[None, :])
        visible = visible & (position[:, None] - slot_position[None, :] < window)
        peak, mass, weighted = _take_in(query, keys, values, visible, scale, softcap, peak, mass, weighted)

    at = (split.to(tl.int64) * num_rows + first + row) * q_heads + q_head
    tl.store(statistics_ptr + at * 2, peak, mask=live)
    tl.store(statistics_ptr + at * 2 + 1, mass, mask=live)
    tl.store(partial_ptr + at[:, None] * HEAD_DIM + column[None, :], weighted, mask=live[:, None] & in_head[None, :])


@triton.jit(do_not_specialize=("has_depths", "num_rows", "q_heads", "group", "tiles", "window"))
def attention_merge_kernel(
    out_ptr, partial_ptr, statistics_ptr, context_ptr, cu_rows_ptr, depth_ptr, has_depths,
    num_rows, q_heads, group, tiles, window,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, TILE_ROWS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Program (sequence and tile of its packed rows, kv head): out [num_rows, q_heads, HEAD_DIM] from the splits.

    The splits are added in their order, one by one: a sum over a padded number of them would depend on the padding.
    """
    sequence, first, rows, row, member, depth, live = _packed_rows(
        cu_rows_ptr, depth_ptr, tiles, group, has_depths, TILE_ROWS
    )
    context = tl.load(context_ptr + sequence)
    if tl.max(live.to(tl.int32), 0) == 0:
        return
    # The first split that the first kernel wrote for this tile, which is the same rows there.
    shallowest = tl.min(tl.where(live, depth, _FAR), 0)
    begin = _lowest_slot(context, shallowest, window) // SPLIT
    end = (context + rows + SPLIT - 1) // SPLIT
    at = (first + row).to(tl.int64) * q_heads + tl.program_id(1) * group + member
    stride = num_rows.to(tl.int64) * q_heads
    column = tl.arange(0, BLOCK_D)
    in_head = column < HEAD_DIM

    peak = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    for split in range(begin, end):
        peak = tl.maximum(peak, tl.load(statistics_ptr + (split * stride + at) * 2, mask=live, other=float("-inf")))
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    mass = tl.zeros((TILE_ROWS,), tl.float32)
    weighted = tl.zeros((TILE_ROWS, BLOCK_D), tl.float32)
    for split in range(begin, end):
        here = split * stride + at
        fade = tl.exp2(tl.load(statistics_ptr + here * 2, mask=live, other=float("-inf")) - shift)
        mass += fade * tl.load(statistics_ptr + here * 2 + 1, mask=live, other=0.0)
        part = tl.load(
            partial_ptr + here[:, None] * HEAD_DIM + column[None, :],
            mask=live[:, None] & in_head[None, :],
            other=0.0,
        )
        weighted += fade[:, None] * part
    result = weighted / tl.where(live, mass, 1.0)[:, None]
    tl.store(
        out_ptr + at[:, None] * HEAD_DIM + column[None, :], result.to(out_ptr.dtype.element_ty),
        mask=live[:, None] & in_head[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=("table_stride", "tiles", "block_shift"))
def write_kv_kernel(
    key_cache_ptr, key_block_stride, key_slot_stride, key_head_stride,
    value_cache_ptr, value_block_stride, value_slot_stride, value_head_stride,
    key_ptr, key_row_stride, key_row_head_stride, value_ptr, value_row_stride, value_row_head_stride,
    block_table_ptr, table_stride, context_ptr, cu_rows_ptr, tiles, block_shift,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, TILE_ROWS: tl.constexpr,
):  # fmt: skip
    """Program (sequence and tile of its rows, kv head): rows to their slots."""
    sequence = tl.program_id(0) // tiles
    row = (tl.program_id(0) % tiles) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    kv_head = tl.program_id(1).to(tl.int64)
    first = tl.load(cu_rows_ptr + sequence)
    live = row < tl.load(cu_rows_ptr + sequence + 1) - first
    slot = tl.load(context_ptr + sequence) + row
    table_ptr = block_table_ptr + sequence.to(tl.int64) * table_stride
    block = tl.load(table_ptr + (slot >> block_shift), mask=live, other=-1).to(tl.int64)
    live = live & (block >= 0)
    inside = (slot & ((1 << block_shift) - 1)).to(tl.int64)
    source = (first + row).to(tl.int64)
    column = tl.arange(0, BLOCK_D)
    mask = live[:, None] & (column < HEAD_DIM)[None, :]
    keys = tl.load(
        key_ptr + (source * key_row_stride + kv_head * key_row_head_stride)[:, None] + column[None, :], mask=mask
    )
    values = tl.load(
        value_ptr + (source * value_row_stride + kv_head * value_row_head_stride)[:, None] + column[None, :], mask=mask
    )
    key_at = block * key_block_stride + inside * key_slot_stride + kv_head * key_head_stride
    value_at = block * value_block_stride + inside * value_slot_stride + kv_head * value_head_stride
    tl.store(key_cache_ptr + key_at[:, None] + column[None, :], keys, mask=mask)
    tl.store(value_cache_ptr + value_at[:, None] + column[None, :], values, mask=mask)
