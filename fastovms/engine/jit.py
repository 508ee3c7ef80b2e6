"""Compiles kernels with numba at import, or reads them from numba's cache, so that nothing is
compiled in the middle of a step.

Kernels release the GIL. numba's cache detects changes only in a kernel's own file, so functions
that a kernel calls must be in the same file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba.extending import intrinsic

from fastovms.system.disk import check_tree, private_directory, user_directory

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

_BITS = ("int32", "int16")
"""The integer types of logits' bits: for float32 and for bfloat16."""

KERNEL_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Sums may be reordered; infinities must still work.
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
}


def kernel_cache(environ: Mapping[str, str]) -> str:
    """Returns the directory for compiled kernels: NUMBA_CACHE_DIR, or one in the user's cache
    directory; "" = numba's default, if neither exists. That default is avoided because it is inside
    the package, where pip would leave it after an uninstall."""
    given = environ.get("NUMBA_CACHE_DIR")
    user_cache = user_directory("cache", environ)
    return given or ("" if user_cache is None else str(user_cache / "kernels"))


numba.config.CACHE_DIR = kernel_cache(os.environ)


def _may_cache(directory: str) -> bool:
    """Returns whether the directory of compiled kernels is safe: kernels are programs, so no other
    user may be able to write there."""
    try:
        if directory:
            private_directory(Path(directory), may_be_link=True)
            check_tree(Path(directory))
    except OSError as error:
        logger.warning("kernels: the cache of compiled code is not used: %s", error)
        return False
    return True


_MAY_CACHE = _may_cache(numba.config.CACHE_DIR)


inlined = numba.njit(inline="always")


def kernel(*signatures: str) -> Callable[[Function], Function]:
    """Returns a decorator that compiles a function with numba at once, for these signatures, such
    as `"void(float32[::1], int64)"`. Compiled code is cached on disk if possible."""

    def decorate(function: Function) -> Function:
        compiled: Any
        try:
            compiled = numba.njit(list(signatures), cache=_MAY_CACHE, **KERNEL_OPTIONS)(function)
        except Exception:  # the cache cannot be written: compile at each start
            compiled = numba.njit(list(signatures), **KERNEL_OPTIONS)(function)
        return cast(Function, compiled)

    return decorate


def row_kernel(returns: str, *others: str) -> Callable[[Function], Function]:
    """Declares a kernel on one row of logits. Its first arguments are the logits' bits,
    [vocab_size], and the bit shift that converts them to float32; `others` are the types of further
    arguments."""
    return kernel(*(f"{returns}({bits}[::1], int32, {', '.join(others)})" for bits in _BITS))


def rows_kernel(returns: str, *others: str) -> Callable[[Function], Function]:
    """Declares a kernel on several rows of logits. Its first arguments are the logits' bits, [rows,
    vocab_size], and the bit shift that converts them to float32; `others` are the types of further
    arguments."""
    return kernel(*(f"{returns}({bits}[:, ::1], int32, {', '.join(others)})" for bits in _BITS))


def _as_float(_: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return numba.float32(numba.int32), generate


def _as_bits(_: Any, number: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return numba.int32(numba.float32), generate


as_float = intrinsic(_as_float)
"""Reinterprets 32 bits as a float32."""

as_bits = intrinsic(_as_bits)
"""Reinterprets a float32 as 32 bits."""
