from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
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


@pytest.mark.slow
def test_what_is_not_in_the_cache_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    caplog.set_level("INFO", logger=jit.__name__)

    def twice(number: int) -> int:
        return 2 * number

    def thrice(number: int) -> int:
        return 3 * number

    # numba's first compilation in a process changes what it takes for the state of a cache.
    numba.njit("int64(int64)")(lambda number: number)
    jit._announce.cache_clear()
    for function in (twice, thrice):
        jit.kernel("int64(int64)")(function)
    assert [record.message[:30] for record in caplog.records] == ["compiling the sampling kernels"]
    # At the second start they are in the cache.
    jit._announce.cache_clear()
    caplog.clear()
    for function in (twice, thrice):
        assert jit.kernel("int64(int64)")(function)(7) in (14, 21)
    assert not caplog.records


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"HOME": "/h"}, "/h/.cache/fastovms/kernels"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/fastovms/kernels"),
        ({"HOME": "/h", "NUMBA_CACHE_DIR": "/n"}, "/n"),
        ({}, "~/.cache/fastovms/kernels"),
    ],
)
def test_kernels_are_kept_outside_of_the_package(environ: dict[str, str], directory: str) -> None:
    assert jit.kernel_cache(environ) == os.path.expanduser(directory)
