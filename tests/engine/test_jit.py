from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from fastovms.engine import jit
from tests.paths import ROOT


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


_ANNOUNCED = """
import logging, sys
from fastovms.engine import jit

def twice(number):
    return 2 * number

def thrice(number):
    return 3 * number

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message).30s")
for function in (twice, thrice):
    assert jit.kernel("int64(int64)")(function)(7) in (14, 21)
"""


@pytest.mark.slow
def test_compilation_without_a_cache_is_logged_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_ANNOUNCED)
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run() -> str:
        done = subprocess.run(
            [sys.executable, program], env=environ, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert run() == "first start: compiling the sam\n"
    assert run() == "", "at the second start they are in the cache"


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
