"""Compile a kernel for a chip that is not there, and read from the machine code what it takes."""

from __future__ import annotations

import functools
import hashlib
import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels
from kernels.launch import ENABLE_FP_FUSION, Launch

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
KIB = 1024
WIDE_LOADS = re.compile(
    r"\bLDG\.[\w.]*128\b|\bLDGSTS\.[\w.]*128\b|\bUTMALDG\b|\bUBLKCP\b"  # NVIDIA: to registers, to shared memory, by TMA
    r"|\b(?:global|buffer|flat)_load(?:_lds)?_dwordx4\b"  # AMD
)


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip that we name: what the compiler calls it, and the shared memory that one program may take."""

    backend: str
    arch: int | str
    warp_size: int
    shared_limit: int


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "sm_80": Chip("cuda", 80, 32, 163 * KIB),
        "sm_90": Chip("cuda", 90, 32, 227 * KIB),
        "gfx942": Chip("hip", "gfx942", 64, 64 * KIB),
    }
)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch takes of one chip.

    registers: of a thread (vector registers on AMD). shared_bytes: of a program. spills: bytes of stack and local
    memory of a thread on NVIDIA; spilled vector registers and bytes of scratch on AMD. scalar_spills: scalar registers
    of AMD kept in lanes of vector registers: an instruction each, but no memory. wide_loads: it reads memory 16 bytes
    at a time somewhere. triton: version of the compiler. key: of everything that went into the compiler.
    """

    launch: str
    target: str
    registers: int
    shared_bytes: int
    spills: int
    scalar_spills: int
    wide_loads: bool
    triton: str
    key: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The compiler refused a launch."""

    launch: str
    target: str
    message: str


def operations() -> tuple[str, ...]:
    """Names of the packages in kernels/ that have Triton kernels, as modules."""
    folders = (module.name for module in pkgutil.iter_modules(kernels.__path__, "kernels.") if module.ispkg)
    return tuple(name for name in folders if _fused_modules(name))


def kernels_of(operation: str) -> dict[str, Any]:
    """Every function of an operation that is launched: decorated, and named so."""
    found = {}
    for module in _fused_modules(operation):
        for name, value in vars(importlib.import_module(module)).items():
            if isinstance(value, triton.JITFunction) and name.endswith("_kernel"):
                found[name] = value
    return found


def launches_of(operation: str) -> tuple[Launch, ...]:
    """What an operation may launch. Raises ModuleNotFoundError where it does not list it."""
    module: ModuleType = importlib.import_module(f"{operation}.launches")
    listed: tuple[Launch, ...] = module.launches()
    return listed


@functools.cache
def all_launches() -> Mapping[str, Launch]:
    """Every launch of every operation by its name. Raises ValueError where two share a name."""
    found: dict[str, Launch] = {}
    for operation in operations():
        for launch in launches_of(operation):
            if found.setdefault(launch.name, launch) is not launch:
                raise ValueError(f"two launches are named {launch.name!r}; a name is unique in the project")
    return MappingProxyType(found)


def key_of(launch: Launch, target: str) -> str:
    """Equal for two launches exactly if the compiler is given the same: source, constants, types, options, version."""
    parts = (triton.__version__, _source(launch).hash(), target, sorted(_options(launch).items()))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def compile_launch(launch: Launch, target: str) -> Resources:
    """Compile for a chip of CHIPS. Raises what the compiler raises."""
    chip = CHIPS[target]
    compiled = triton.compile(
        _source(launch), target=GPUTarget(chip.backend, chip.arch, chip.warp_size), options=_options(launch)
    )
    read = _read_cubin(compiled.asm["cubin"]) if chip.backend == "cuda" else _read_amdgcn(compiled.asm["amdgcn"])
    return Resources(
        launch=launch.name,
        target=target,
        shared_bytes=compiled.metadata.shared,
        triton=triton.__version__,
        key=key_of(launch, target),
        **read,
    )


def compile_all(
    wanted: Sequence[tuple[str, str]], cache: Path, processes: int = 2
) -> tuple[list[Resources], list[Failure]]:
    """Compile (launch, target) pairs in processes of their own; the compiler's own cache goes to `cache`."""
    if not wanted:
        return [], []
    with ProcessPoolExecutor(
        min(processes, len(wanted)), mp_context=get_context("spawn"), initializer=_use_cache, initargs=(str(cache),)
    ) as pool:
        outcomes = list(pool.map(_compile_named, wanted, chunksize=4))
    done = [outcome for outcome in outcomes if isinstance(outcome, Resources)]
    return done, [outcome for outcome in outcomes if isinstance(outcome, Failure)]


def _use_cache(folder: str) -> None:
    triton.knobs.cache.dir = folder


def _compile_named(pair: tuple[str, str]) -> Resources | Failure:
    name, target = pair
    try:
        return compile_launch(all_launches()[name], target)
    except Exception as error:
        return Failure(name, target, f"{type(error).__name__}: {error}")


def _source(launch: Launch) -> Any:
    constants = dict(launch.constants)
    arguments = launch.kernel.arg_names
    unknown = {*constants, *launch.pointers, *launch.divisible_by_16} - set(arguments)
    if unknown:
        raise ValueError(f"{launch.name} names arguments that its kernel does not have: {', '.join(sorted(unknown))}")
    types = {name: "constexpr" if name in constants else launch.pointers.get(name, "i32") for name in arguments}
    divisible = {
        (place,): [["tt.divisibility", 16]] for place, name in enumerate(arguments) if name in launch.divisible_by_16
    }
    return ASTSource(launch.kernel, types, constexprs=constants, attrs=divisible)


def _options(launch: Launch) -> dict[str, Any]:
    return {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": ENABLE_FP_FUSION,
    }


def _read_cubin(cubin: bytes) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("cuobjdump", "-sass", file.name)
    counted = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "registers": counted["REG"],
        "spills": counted["STACK"] + counted["LOCAL"],
        "scalar_spills": 0,
        "wide_loads": WIDE_LOADS.search(code) is not None,
    }


def _read_amdgcn(assembly: str) -> dict[str, Any]:
    counted = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)\b", assembly)}
    return {
        "registers": counted["vgpr_count"],
        "spills": counted["vgpr_spill_count"] + counted["private_segment_fixed_size"],
        "scalar_spills": counted["sgpr_spill_count"],
        "wide_loads": WIDE_LOADS.search(assembly) is not None,
    }


def _tool(name: str, *arguments: str) -> str:
    done = subprocess.run([str(TOOLS / name), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _fused_modules(operation: str) -> tuple[str, ...]:
    folder = Path(kernels.__path__[0]) / operation.rpartition(".")[2]
    return tuple(f"{operation}.{path.stem}" for path in sorted(folder.glob("fused*.py")))
