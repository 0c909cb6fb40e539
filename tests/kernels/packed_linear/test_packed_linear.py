"""Products with packed weights: right, and the same bit for bit in any company."""

from __future__ import annotations

import pytest
import torch

from kernels import packed_linear as op
from kernels.packed_linear import WeightBank, packed_linear, quantise

BF16 = torch.bfloat16

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


def with_scale(quantised):
    """As WeightBank.add takes it, without a bias."""
    weight, scale = quantised
    return weight, None, scale


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


def differing(x: torch.Tensor, number: int, size: int) -> list[tuple[int, int]]:
    """First row and number of rows of those parts of x [70, in] that are not to the bit what they are in all of it."""
    whole = packed_linear(x, [number], [size])
    return [
        (start, rows)
        for rows in (*range(1, 20), 32, 64, 70)
        for start in range(0, 70 - rows + 1, 3)
        if not torch.equal(packed_linear(x[start : start + rows], [number], [size]), whole[start : start + rows])
    ]


def test_a_row_does_not_depend_on_the_others_nor_on_its_place(bank, dtype) -> None:
    number = bank.add(draw(130, 576, dtype=dtype))
    bank.choose()
    x = draw(70, 576, dtype=dtype)
    assert differing(x, number, 130) == []


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
    with pytest.raises(ValueError, match="float32, bfloat16 or int8"):
        bank.add(torch.zeros(4, 8, dtype=torch.float16))


def test_a_number_that_the_bank_lacks_is_an_error(bank) -> None:
    bank.choose()
    with pytest.raises((IndexError, RuntimeError)):
        packed_linear(torch.zeros(2, 8), [0], [4])


def whole_numbers(*shape, seed=0):
    return torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13])
def test_an_int8_product_is_that_of_the_weights_that_it_stands_for(bank, shape, rows) -> None:
    weight, scale = whole_numbers(*shape), draw(shape[0], dtype=torch.float32, seed=2).abs() / 127
    bias, x = draw(shape[0], dtype=BF16, seed=1), draw(rows, shape[1], dtype=BF16)
    numbers = [bank.add(weight, bias, scale), bank.add(weight, None, scale)]
    bank.choose()
    with_bias, without = packed_linear(x, numbers, [shape[0]] * 2).split(shape[0], -1)
    assert_close(with_bias, x, weight * scale[:, None], bias)
    assert_close(without, x, weight * scale[:, None])


def test_an_int8_weight_of_scale_one_has_the_bits_of_the_same_numbers_in_bfloat16() -> None:
    weight, x = whole_numbers(130, 577), draw(19, 577, dtype=BF16)
    banks = [WeightBank(), WeightBank()]
    banks[0].add(weight, None, torch.ones(130))
    banks[1].add(weight.to(BF16))
    got = []
    for bank in banks:
        bank.choose()
        got.append(packed_linear(x, [0], [130]))
    assert torch.equal(*got)


def test_an_int8_row_does_not_depend_on_the_others_nor_on_its_place(bank) -> None:
    number = bank.add(*with_scale(quantise(draw(130, 576, dtype=BF16))))
    bank.choose()
    x = draw(70, 576, dtype=BF16)
    assert differing(x, number, 130) == []


def test_the_number_of_threads_does_not_matter_to_int8(bank) -> None:
    number = bank.add(*with_scale(quantise(draw(700, 96, dtype=BF16))))
    bank.choose()
    x = draw(9, 96, dtype=BF16)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(packed_linear(x, [number], [700]))
    torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("largest", [1e-30, 1.0, 1e30])
def test_a_quantised_weight_is_off_by_half_a_step_at_most(largest) -> None:
    weight = draw(9, 50, dtype=torch.float32)
    weight *= largest / weight.abs().amax(1, keepdim=True)
    held, scale = quantise(weight)
    assert ((held * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()


def test_a_channel_of_zeros_stays_zero() -> None:
    held, scale = quantise(torch.zeros(3, 4))
    assert (held.abs().sum(), bool((scale > 0).all())) == (0, True)


def test_int8_weights_take_half_the_memory_and_a_scale_for_each_channel(bank) -> None:
    bank.add(*with_scale(quantise(draw(128, 576, dtype=BF16))))
    assert bank.nbytes == 128 * 576 + 4 * 128


@pytest.mark.parametrize("given", [(torch.int8, False), (BF16, True)], ids=["int8 without", "bf16 with"])
def test_a_scale_goes_with_int8_and_with_nothing_else(bank, given) -> None:
    dtype, has_scale = given
    with pytest.raises(ValueError, match="int8 has a scale"):
        bank.add(torch.zeros(4, 8, dtype=dtype), None, torch.ones(4) if has_scale else None)


def test_a_scale_of_another_length_is_refused(bank) -> None:
    with pytest.raises(ValueError, match=r"scale and bias are \[4\]"):
        bank.add(torch.zeros(4, 8, dtype=torch.int8), None, torch.ones(3))


def test_float32_rows_of_an_int8_weight_are_refused(bank) -> None:
    number = bank.add(torch.zeros(4, 8, dtype=torch.int8), None, torch.ones(4))
    bank.choose()
    with pytest.raises(ValueError, match="the weight is for BFloat16"):
        packed_linear(torch.zeros(2, 8), [number], [4])


def test_int8_and_other_weights_in_one_call_are_refused(bank) -> None:
    numbers = [
        bank.add(torch.zeros(4, 8, dtype=torch.int8), None, torch.ones(4)),
        bank.add(torch.zeros(4, 8, dtype=BF16)),
    ]
    bank.choose()
    with pytest.raises(ValueError, match="int8 and others"):
        packed_linear(torch.zeros(2, 8, dtype=BF16), numbers, [4, 4])
