"""Every launch of every operation compiles for the chips we name, and fits them, on a machine that has none of them.

The table in benchmarks/kernels_resources.csv spares what has not changed since it was compiled (see
`benchmarks.kernels_resources`); one launch of every kernel is compiled for every chip all the same, so that the table
is seen to be true. `make test-kernels` compiles everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="Triton is published for Linux only")
tl = pytest.importorskip("triton.language", reason="Triton is published for Linux only")

from benchmarks import kernels_resources  # noqa: E402
from benchmarks.kernels_compile import (  # noqa: E402
    CHIPS,
    Failure,
    Resources,
    all_launches,
    compile_all,
    compile_launch,
    kernels_of,
    key_of,
    launches_of,
    operations,
)
from kernels.launch import Launch  # noqa: E402

# Compiling everything anew, as after an edit of what all kernels share, takes minutes on two cores.
pytestmark = pytest.mark.timeout(1200)
RE_RECORD = f"\nif this is meant: {kernels_resources.RECORD}"


@triton.jit
def fused_or_not_kernel(out_ptr, a, b, c):
    tl.store(out_ptr, a * b + c)


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], Resources]:
    return kernels_resources.read_table()


@pytest.fixture(scope="module")
def compiled(
    table: dict[tuple[str, str], Resources], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Resources], list[Failure]]:
    pairs = dict.fromkeys([*kernels_resources.one_of_every_kernel(), *kernels_resources.unproven(table)])
    return compile_all(list(pairs), tmp_path_factory.mktemp("triton"))


@pytest.fixture
def compiler_cache(tmp_path: Path) -> Iterator[None]:
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        yield


@pytest.mark.parametrize("operation", operations())
def test_an_operation_lists_every_kernel_that_it_has(operation: str) -> None:
    listed = {launch.kernel.__name__ for launch in launches_of(operation)}
    assert set(kernels_of(operation)) - listed == set()


def test_every_launch_compiles_for_every_chip(compiled: tuple[list[Resources], list[Failure]]) -> None:
    measured, failures = compiled
    assert failures == []
    assert measured


def test_nothing_spills_and_all_fits_and_memory_is_read_in_wide_pieces(
    compiled: tuple[list[Resources], list[Failure]],
) -> None:
    assert kernels_resources.violations(compiled[0]) == []


def test_the_recorded_launches_keep_the_limits(table: dict[tuple[str, str], Resources]) -> None:
    known = [row for row in table.values() if row.launch in all_launches()]
    assert kernels_resources.violations(known) == []


def test_registers_and_shared_memory_are_those_of_the_table(
    table: dict[tuple[str, str], Resources], compiled: tuple[list[Resources], list[Failure]]
) -> None:
    changes = kernels_resources.changes(table, compiled[0])
    assert changes == [], "\n".join(changes) + RE_RECORD


def test_the_table_has_no_launch_that_is_no_more(table: dict[tuple[str, str], Resources]) -> None:
    assert kernels_resources.unknown_rows(table) == [], RE_RECORD


@pytest.mark.usefixtures("compiler_cache")
def test_multiply_and_add_stay_apart() -> None:
    # The machine code of a*b + c has one instruction where fusion is on.
    pointers = {"out_ptr": "*fp32", "a": "fp32", "b": "fp32", "c": "fp32"}
    code = assembly(Launch("test", fused_or_not_kernel, pointers, {}, num_warps=1), "ptx")
    assert "mul.rn.f32" in code or "mul.f32" in code
    assert "fma" not in code


@pytest.mark.usefixtures("compiler_cache")
def test_the_noise_takes_the_accurate_logarithm() -> None:
    # The approximate one errs by 2^-22 near 1, where the noise of the winning tokens comes from.
    noise = next(launch for name, launch in all_launches().items() if launch.kernel.__name__ == "gumbel_noise_kernel")
    assert "lg2.approx" not in assembly(noise, "ptx")


@pytest.mark.usefixtures("compiler_cache")
def test_a_program_with_too_few_warps_is_seen_to_spill() -> None:
    from kernels.medusa_heads.launches import merge_launch

    crowded = replace(merge_launch(4096), num_warps=1)
    (line,) = kernels_resources.violations([compile_launch(crowded, "sm_90")])
    assert line.startswith("medusa_merge/4096 on sm_90 spills registers")


@pytest.mark.usefixtures("compiler_cache")
def test_a_program_that_reads_piecemeal_is_seen() -> None:
    from kernels.medusa_heads.launches import merge_launch

    # Rows of num_blocks entries start anywhere: the compiler may not load them 16 bytes at once.
    claimed = merge_launch(128)
    row = compile_launch(claimed, "sm_90")
    assert not row.wide_loads


@pytest.mark.parametrize("kernel", kernels_resources.PIECEMEAL)
def test_no_kernel_is_excused_for_nothing(kernel: str, table: dict[tuple[str, str], Resources]) -> None:
    names = {name for name, launch in all_launches().items() if launch.kernel.__name__ == kernel}
    assert any(not row.wide_loads for row in table.values() if row.launch in names)


def some_row(**changed: Any) -> Resources:
    launch = "medusa_lm_head/bf16/no-map"
    return replace(Resources(launch, "gfx942", 32, 1024, 0, 0, True, triton.__version__, "abc"), **changed)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"spills": 8}, "spills registers"),
        ({"shared_bytes": CHIPS["gfx942"].shared_limit + 1}, "of 65536 bytes of shared memory"),
        ({"wide_loads": False}, "never loads 16 bytes at once"),
    ],
)
def test_a_broken_limit_is_named(changed: dict[str, Any], complaint: str) -> None:
    (line,) = kernels_resources.violations([some_row(**changed)])
    assert complaint in line


def test_a_row_at_its_limits_is_no_violation() -> None:
    assert kernels_resources.violations([some_row(shared_bytes=CHIPS["gfx942"].shared_limit)]) == []


@pytest.mark.parametrize(
    "changed", [{"registers": 33}, {"shared_bytes": 2048}, {"scalar_spills": 4}, {"wide_loads": False}]
)
def test_a_changed_number_is_named(changed: dict[str, Any]) -> None:
    row = some_row()
    (line,) = kernels_resources.changes({(row.launch, row.target): row}, [replace(row, **changed)])
    assert next(iter(changed)) in line


def test_numbers_of_another_triton_are_not_compared() -> None:
    row = some_row()
    assert kernels_resources.changes({(row.launch, row.target): row}, [replace(row, registers=1, triton="0")]) == []


def test_a_launch_that_was_never_recorded_is_named() -> None:
    assert kernels_resources.changes({}, [some_row()])[0].endswith("is not recorded")


def test_a_row_of_another_source_is_compiled_again() -> None:
    launch, pair = next((launch, (name, "sm_90")) for name, launch in all_launches().items())
    current = some_row(launch=pair[0], target=pair[1], key=key_of(launch, "sm_90"))
    assert pair not in kernels_resources.unproven({pair: current})
    assert pair in kernels_resources.unproven({pair: replace(current, key="of another source")})


@pytest.mark.parametrize("changed", [{"num_warps": 2}, {"num_stages": 7}, {"divisible_by_16": ()}])
def test_every_part_of_a_launch_is_in_its_key(changed: dict[str, Any]) -> None:
    launch = next(launch for launch in all_launches().values() if launch.divisible_by_16)
    assert key_of(replace(launch, **changed), "sm_90") != key_of(launch, "sm_90")


def test_the_table_survives_being_written_and_read(tmp_path: Path) -> None:
    rows = [some_row(), some_row(target="sm_90", wide_loads=False)]
    kernels_resources.write_table(rows, tmp_path / "table.csv")
    assert list(kernels_resources.read_table(tmp_path / "table.csv").values()) == rows


def assembly(launch: Launch, stage: str) -> str:
    from triton.backends.compiler import GPUTarget

    from benchmarks.kernels_compile import _options, _source

    chip = CHIPS["sm_90"]
    target = GPUTarget(chip.backend, chip.arch, chip.warp_size)
    code: str = triton.compile(_source(launch), target=target, options=_options(launch)).asm[stage]
    return code
