"""The counter-based random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from kernels.verify import Purpose, gumbel_noise, native_noise, uniform
from kernels.verify.noise import _as_words, _gumbel_by_numpy, _philox, _unit


@pytest.mark.parametrize(
    ("bits", "purpose", "expected"),
    [
        # Known answers published with Random123 for philox4x32-10.
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_words(bits: int, purpose: int, expected: tuple[int, ...]) -> None:
    wide = np.array([bits], np.uint64)
    words = _philox(wide[:, None] & np.uint64(0xFFFFFFFF), wide, wide, purpose)  # type: ignore[arg-type]
    assert tuple(int(w[0, 0]) for w in words) == expected


@pytest.mark.skipif(native_noise.obstacle() is not None, reason="no C++ compiler")
@pytest.mark.parametrize("vocab_size", [1, 7, 255, 256, 257, 49152])
def test_noise_has_the_same_bits_with_a_compiler_and_without_one(vocab_size: int) -> None:
    seeds, positions = torch.tensor([5, -6, 2**62 + 17]), torch.tensor([0, 2**40 + 3, 77])
    quads = -(-vocab_size // 4)
    native = gumbel_noise(seeds, positions, vocab_size, purpose=Purpose.DRAFT).numpy()
    expected = _gumbel_by_numpy(_as_words(seeds), _as_words(positions), quads, Purpose.DRAFT)[:, :vocab_size]
    assert np.array_equal(native.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


def test_noise_is_there_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, positions = torch.tensor([5, -6]), torch.tensor([0, 3])
    expected = gumbel_noise(seeds, positions, 100)
    monkeypatch.setattr(native_noise, "obstacle", lambda: "no compiler")
    assert torch.equal(gumbel_noise(seeds, positions, 100), expected)


def test_uniforms_lie_strictly_between_0_and_1_at_both_ends() -> None:
    ends = _unit(np.array([0, 2**32 - 1], np.uint64))
    assert 0.0 < ends[0] < ends[1] < 1.0


def test_the_noise_has_gumbels_distribution() -> None:
    noise = gumbel_noise(torch.tensor([1]), torch.tensor([2]), 49152)
    assert stats.kstest(noise[0].numpy(), "gumbel_r").pvalue > 1e-3


def test_a_row_does_not_depend_on_the_vocabulary_or_on_the_other_rows() -> None:
    seeds, positions = torch.tensor([5, -6, 7]), torch.tensor([0, 2**40, 3])
    wide = gumbel_noise(seeds, positions, 1001)
    assert torch.equal(gumbel_noise(seeds[1:2], positions[1:2], 7)[0], wide[1, :7])


@pytest.mark.parametrize(
    ("seed", "position", "purpose"), [(5, 9, Purpose.DRAFT), (4, 10, Purpose.DRAFT), (4, 9, Purpose.RESAMPLE),
                                      (4 + 2**32, 9, Purpose.DRAFT), (4, 9 + 2**32, Purpose.DRAFT)],
)  # fmt: skip
def test_seed_position_and_purpose_each_give_an_independent_row(seed: int, position: int, purpose: Purpose) -> None:
    n = 20000
    one = gumbel_noise(torch.tensor([4]), torch.tensor([9]), n, purpose=Purpose.DRAFT)[0]
    other = gumbel_noise(torch.tensor([seed]), torch.tensor([position]), n, purpose=purpose)[0]
    assert abs(stats.pearsonr(one.numpy(), other.numpy()).statistic) < 4 / n**0.5


def test_uniforms_of_consecutive_positions_are_uniform() -> None:
    positions = torch.arange(5000)
    drawn = uniform(torch.full_like(positions, 3), positions, Purpose.ACCEPT)
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-3


def test_seeds_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="int64"):
        gumbel_noise(torch.tensor([1], dtype=torch.int32), torch.tensor([1]), 4)
