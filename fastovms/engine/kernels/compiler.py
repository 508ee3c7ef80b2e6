"""Compiles the kernels for this CPU, or reads them from numba's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numba
from llvmlite.binding import get_host_cpu_name
from numba import float32, int64, uint8, void

from fastovms.engine.kernels import attention, low_rank, packing, products, programs

_CPUINFO: Final = Path("/proc/cpuinfo")

_NEEDED: Final = {
    "avx512_vnni": frozenset({"avx512_vnni", "avx512bw", "avx512vl"}),
    "avx_vnni": frozenset({"avx_vnni"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
}
"""The flags of a CPU that each set of instructions needs, the widest first."""


def find_instructions(cpuinfo: Path = _CPUINFO) -> str | None:
    """Returns the one of `INSTRUCTION_SETS` that this CPU is fastest with; None = none of them."""
    try:
        flags = frozenset(cpuinfo.read_text().split())
    except OSError:
        return None
    return next((name for name, needed in _NEEDED.items() if needed <= flags), None)


def compiled_mark(instructions: str) -> Path | None:
    """Returns the path of a marker file. It exists if numba's cache has the kernels of this
    installation with these instructions for this CPU; None = numba has no directory of its own for
    the cache."""
    directory, source = numba.config.CACHE_DIR, Path(programs.__file__)
    if not directory:
        return None
    facts = str(source), source.stat().st_mtime_ns, numba.__version__, get_host_cpu_name()
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    return Path(directory) / f"compiled-{instructions}-{digest}"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled kernels.

    Attributes:
        instructions: one of `INSTRUCTION_SETS`.
        product: the address of the function that multiplies.
        low_rank: the address of `low_rank.multiply_low_rank`.
        attend: the address of the function of `attention.attention_of`.
        run: see `programs.run_program`.
        pack: see `packing.pack_rows`.
        address_of: returns the address of f32 [tokens, 1, width] or [tokens, width].
        num_threads: compute.
        references: objects that keep the code in memory.
    """

    instructions: str
    product: int
    low_rank: int
    attend: int
    run: Callable[..., None]
    pack: Callable[..., None]
    address_of: Callable[[Any], int]
    num_threads: int
    references: tuple[object, ...]


@cache
def compile_kernels(instructions: str, num_threads: int) -> Kernels:
    """Compiles the kernels, which takes some seconds, or reads them from the cache. All models
    share them, because numba never frees code. Raises Exception if they cannot be compiled, or
    numba finds no TBB. OpenVINO's own is found where OpenVINO is imported before."""
    numba.config.THREADING_LAYER = "tbb"
    multiply = {
        "avx2": products.multiply_avx2,
        "avx_vnni": products.multiply_avx_vnni,
        "avx512_vnni": products.multiply_avx512_vnni,
        "avx_vnni16": products.multiply_avx_vnni16,
        "avx512_vnni16": products.multiply_avx512_vnni16,
    }[instructions]
    signature = void(*[int64] * programs.PRODUCT_ARGUMENTS)
    compile_function = numba.cfunc(signature, nopython=True, cache=True)
    product, adapt = compile_function(multiply), compile_function(low_rank.multiply_low_rank)
    attend = numba.cfunc(
        void(*[int64] * attention.ARGUMENTS), nopython=True, cache=True, error_model="numpy"
    )(attention.attention_of(attention.MAX_LANES if instructions.startswith("avx512") else 8))
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "cache": True}
    run = numba.njit(
        [void(int64[:, ::1], int64[:, ::1], int64, int64[::1], int64, int64[::1], int64)],
        parallel=True,
        **options,
    )(programs.run_program)
    read_only = numba.types.Array(uint8, 1, "C", readonly=True)
    pack = numba.njit([void(read_only, *[int64] * 8, uint8[::1])], **options)(packing.pack_rows)
    shapes = (float32[:, :, ::1], float32[:, ::1])
    address_of = numba.njit([int64(shape) for shape in shapes], cache=True)(programs.address_of)
    num_threads = min(num_threads, numba.config.NUMBA_NUM_THREADS)
    return Kernels(
        instructions,
        product.address,
        adapt.address,
        attend.address,
        run,
        pack,
        address_of,
        num_threads,
        (product, adapt, attend),
    )
