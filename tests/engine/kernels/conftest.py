from __future__ import annotations

from collections.abc import Callable
from fcntl import LOCK_EX, flock
from functools import cache

import openvino as ov
import pytest

from fastovms.engine.kernels.compiler import Kernels, compile_kernels, find_instructions
from fastovms.engine.kernels.products import INSTRUCTION_SETS
from tests.conftest import CACHE


def instructions_here() -> list[str]:
    """Returns the instruction sets of this machine. Machines that run these tests have AVX2."""
    widest = find_instructions()
    return [name for name in INSTRUCTION_SETS if name in ("avx2", widest, f"{widest}16")]


@pytest.fixture(scope="session")
def kernels_for() -> Callable[[str], Kernels]:
    """Compiles kernels for an instruction set, with two threads. One process compiles them at a
    time, so that the others find them in numba's cache."""
    ov.Core().get_versions("CPU")  # its TBB is the one that numba finds

    @cache
    def compiled(instructions: str) -> Kernels:
        with (CACHE / f"{instructions}.lock").open("w") as lock:
            flock(lock, LOCK_EX)
            return compile_kernels(instructions, 2)

    return compiled


@pytest.fixture(scope="session")
def kernels(kernels_for: Callable[[str], Kernels]) -> Kernels:
    """Kernels for AVX2."""
    return kernels_for("avx2")
