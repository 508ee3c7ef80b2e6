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

from fastovms.engine.kernels import (
    attention,
    chunk_products,
    low_rank,
    packing,
    products,
    programs,
)

_CPUINFO: Final = Path("/proc/cpuinfo")

_NEEDED: Final = {
    "avx512_vnni": frozenset({"avx512_vnni", "avx512bw", "avx512vl"}),
    "avx_vnni": frozenset({"avx_vnni"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "fma", "f16c"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
}
"""The CPU flags that each instruction set needs, the fastest set first."""


def find_instructions(cpuinfo: Path = _CPUINFO) -> str | None:
    """Returns the fastest of `INSTRUCTION_SETS` that this CPU has, or None if it has none of
    them."""
    try:
        flags = frozenset(cpuinfo.read_text().split())
    except OSError:
        return None
    return next((name for name, needed in _NEEDED.items() if needed <= flags), None)


def compiled_mark(instructions: str) -> Path | None:
    """Returns the path of a marker file. The file exists if numba's cache already has the kernels
    of this installation, for these instructions and this CPU. Returns None if numba has no
    configured cache directory."""
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
        product: the address of the matrix multiplication; see `products.multiply_avx2`.
        chunk_product: the address of `chunk_products.chunk_product_of`'s function; 0 = activations
            of chunks have as many bits as others.
        low_rank: the address of `low_rank.multiply_low_rank`.
        attend: the address of the function that `attention.attention_of` returns.
        run: see `programs.run_program`.
        pack: see `packing.pack_rows`.
        address_of: returns the address of an array, f32 [tokens, 1, width] or [tokens, width].
        num_threads: the number of threads that compute.
        references: objects that keep the compiled code in memory.
    """

    instructions: str
    product: int
    chunk_product: int
    low_rank: int
    attend: int
    run: Callable[..., None]
    pack: Callable[..., None]
    address_of: Callable[[Any], int]
    num_threads: int
    references: tuple[object, ...]


@cache
def compile_kernels(instructions: str, num_threads: int) -> Kernels:
    """Compiles the kernels, which takes some seconds, or reads them from numba's cache. The result
    is shared by all models, because numba never frees code. Raises Exception if compilation fails
    or numba does not find TBB. OpenVINO must be imported before: numba uses its TBB."""
    numba.config.THREADING_LAYER = "tbb"
    multiply = {
        "avx2": products.multiply_avx2,
        "avx_vnni": products.multiply_avx_vnni,
        "avx512_vnni": products.multiply_avx512_vnni,
        "avx_vnni16": products.multiply_avx_vnni16,
        "avx512_vnni16": products.multiply_avx512_vnni16,
        "avx512": products.multiply_avx512,
    }[instructions]
    signature = void(*[int64] * programs.PRODUCT_ARGUMENTS)
    compile_function = numba.cfunc(signature, nopython=True, cache=True)
    product, adapt = compile_function(multiply), compile_function(low_rank.multiply_low_rank)
    lanes = attention.MAX_LANES if instructions.startswith("avx512") else 8
    attend = numba.cfunc(
        void(*[int64] * attention.ARGUMENTS), nopython=True, cache=True, error_model="numpy"
    )(attention.attention_of(lanes))
    chunk_product = None
    if "vnni" not in instructions:
        chunk_product = compile_function(chunk_products.chunk_product_of(lanes))
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
        0 if chunk_product is None else chunk_product.address,
        adapt.address,
        attend.address,
        run,
        pack,
        address_of,
        num_threads,
        (product, chunk_product, adapt, attend),
    )
