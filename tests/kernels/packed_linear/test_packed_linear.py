"""Products with packed weights: right, and the same bit for bit in any company."""

from __future__ import annotations

import pytest
import torch

from kernels import packed_linear as op
from kernels.packed_linear import WeightBank, packed_linear

SHAPES = [(1, 1), (16, 7), (17, 5), (63, 64), (65, 33), (130, 576), (192, 100)]
"""Rows and columns of weights: below, at and beyond the borders of vectors, pairs and panels."""


@pytest.fixture(params=op.DTYPES, ids=["fp32", "bf16"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture
def bank() -> WeightBank:
    return WeightBank()


def draw(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(got, x, weight, bias=None):
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    eps = 4e-3 if got.dtype == torch.bfloat16 else 1e-5
    scale = x.double().abs() @ weight.double().abs().T + 1
    assert ((got.double() - expected).abs() <= eps * (expected.abs() + scale**0.5 + 1)).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13])
def test_a_product_is_that_of_the_weights(bank, dtype, shape, rows) -> None:
    weight, bias, x = draw(*shape, dtype=dtype), draw(shape[0], dtype=dtype, seed=1), draw(rows, shape[1], dtype=dtype)
    numbers = [bank.add(weight, bias), bank.add(weight)]
    bank.choose()
    with_bias, without = packed_linear(x, numbers, [shape[0]] * 2).split(shape[0], -1)
    assert_close(with_bias, x, weight, bias)
    assert_close(without, x, weight)


def test_weights_side_by_side_give_what_each_gives_alone(bank, dtype) -> None:
    weights = [draw(n, 40, dtype=dtype, seed=n) for n in (3, 70, 64)]
    numbers = [bank.add(weight) for weight in weights]
    bank.choose()
    x = draw(5, 40, dtype=dtype)
    alone = [packed_linear(x, [number], [len(w)]) for number, w in zip(numbers, weights, strict=True)]
    assert torch.equal(packed_linear(x, numbers, [3, 70, 64]), torch.cat(alone, -1))


def test_a_row_does_not_depend_on_the_others_nor_on_its_place(bank, dtype) -> None:
    number = bank.add(draw(130, 576, dtype=dtype))
    bank.choose()
    x = draw(70, 576, dtype=dtype)
    whole = packed_linear(x, [number], [130])
    differing = [
        (start, rows)
        for rows in (*range(1, 20), 32, 64, 70)
        for start in range(0, 70 - rows + 1, 3)
        if not torch.equal(packed_linear(x[start : start + rows], [number], [130]), whole[start : start + rows])
    ]
    assert not differing


def test_the_number_of_threads_does_not_matter(bank, dtype) -> None:
    number = bank.add(draw(700, 96, dtype=dtype))
    bank.choose()
    x = draw(9, 96, dtype=dtype)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(packed_linear(x, [number], [700]))
    torch.set_num_threads(before)
    assert torch.equal(*results)


def test_leading_dimensions_and_strides_of_rows_do_not_matter(bank, dtype) -> None:
    number = bank.add(draw(20, 12, dtype=dtype))
    bank.choose()
    x = draw(3, 2, 24, dtype=dtype)[..., ::2]
    got = packed_linear(x, [number], [20])
    assert torch.equal(got, packed_linear(x.reshape(6, 12).clone(), [number], [20]).view(3, 2, 20))


def test_a_thread_reads_the_bank_that_it_chose(dtype) -> None:
    banks = [WeightBank(), WeightBank()]
    weights = [draw(4, 8, dtype=dtype, seed=seed) for seed in (1, 2)]
    for bank, weight in zip(banks, weights, strict=True):
        assert bank.add(weight) == 0
    x = draw(2, 8, dtype=dtype)
    for bank, weight in zip(banks, weights, strict=True):
        bank.choose()
        assert_close(packed_linear(x, [0], [4]), x, weight)


def test_packed_weights_take_no_more_memory_than_weights(bank, dtype) -> None:
    weight = draw(128, 576, dtype=dtype)
    bank.add(weight)
    assert bank.nbytes == weight.nbytes


@pytest.mark.parametrize(
    ("x", "said"),
    [(torch.zeros(2, 9), "9 columns"), (torch.zeros(2, 8, dtype=torch.float64), "the input is Double")],
    ids=["width", "dtype"],
)
def test_rows_that_do_not_fit_are_refused(bank, x, said) -> None:
    number = bank.add(torch.zeros(4, 8))
    bank.choose()
    with pytest.raises(ValueError, match=said):
        packed_linear(x, [number], [4])


def test_a_weight_that_cannot_be_packed_is_refused(bank) -> None:
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        bank.add(torch.zeros(4, 8, dtype=torch.float16))


def test_a_number_that_the_bank_lacks_is_an_error(bank) -> None:
    bank.choose()
    with pytest.raises((IndexError, RuntimeError)):
        packed_linear(torch.zeros(2, 8), [0], [4])
