"""Tables of a step lie in one buffer, and come out of it as they went in."""

from __future__ import annotations

import pytest
import torch

from workers.upload import ALIGNMENT, Packing, index, upload

CPU = torch.device("cpu")
TABLES = [
    torch.arange(5),
    torch.arange(6, dtype=torch.int32).view(2, 3),
    torch.tensor([True, False, True]),
    torch.empty(0, 4, dtype=torch.int32),
    torch.tensor([0.5]),
]


def test_tables_come_out_of_a_buffer_as_they_went_in() -> None:
    packing = Packing.of(TABLES)
    found = packing.views(packing.filled(TABLES, CPU))
    assert all(a.equal(b) and a.dtype == b.dtype for a, b in zip(found, TABLES, strict=True))


def test_every_table_begins_where_kernels_expect_it() -> None:
    packing = Packing.of(TABLES)
    assert all(offset % ALIGNMENT == 0 for offset in packing.offsets)
    assert packing.size == sum(-(-table.nbytes // ALIGNMENT) * ALIGNMENT for table in TABLES)


def test_tables_of_other_shapes_are_refused() -> None:
    packing = Packing.of(TABLES)
    with pytest.raises(ValueError, match="they must be"):
        packing.filled([torch.arange(6), *TABLES[1:]], CPU)


def test_on_a_cpu_nothing_is_copied() -> None:
    assert all(a is b for a, b in zip(upload(TABLES, CPU), TABLES, strict=True))
    assert index([3, 1], CPU).tolist() == [3, 1]
