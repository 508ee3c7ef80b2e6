from __future__ import annotations

import openvino as ov
import pytest

from fastovms.engine.kernels.compiler import Kernels, compile_kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """Kernels for AVX2, which every machine of the tests has, with two threads."""
    ov.Core().get_versions("CPU")  # its TBB is the one that numba finds
    return compile_kernels("avx2", 2)
