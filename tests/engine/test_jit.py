from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numba
import pytest

from fastovms.engine import jit


@pytest.mark.parametrize("error", [RuntimeError("no locator available"), OSError(28, "disk full")])
def test_a_cache_that_fails_is_done_without(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    njit = numba.njit

    def failing(
        signatures: list[str], *, cache: bool = False, **options: Any
    ) -> Callable[[Callable[..., object]], object]:
        if cache:
            raise error
        return njit(signatures, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(numba, "njit", failing)
    double = jit.kernel("int64(int64)")(lambda number: 2 * number)
    assert double(21) == 42
    with pytest.raises(TypeError, match="No matching definition"):
        double("never compiled when it runs")


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"HOME": "/h"}, "/h/.cache/fastovms/kernels"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/fastovms/kernels"),
        ({"HOME": "/h", "NUMBA_CACHE_DIR": "/n"}, "/n"),
        ({}, "~/.cache/fastovms/kernels"),
    ],
)
def test_kernels_are_kept_outside_of_the_package(
    environ: dict[str, str], directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME")
    assert jit.kernel_cache(environ) == os.path.expanduser(directory)
