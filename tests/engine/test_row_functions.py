"""Tests of the functions on rows of logits, before their kernels are compiled and after that."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fastovms.engine import row_functions, sampling_kernels, sampling_numpy
from fastovms.engine.model.model import as_bits
from fastovms.engine.row_functions import RowFunction

ROW = as_bits(np.array([1, 3, 2], np.float32))


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> RowFunction[..., int]:
    """A function that was never called, with a kernel that can be distinguished from NumPy."""
    function = RowFunction(sampling_numpy.likeliest)
    monkeypatch.setattr(row_functions, "_ALL", (function,))
    monkeypatch.setattr(sampling_kernels, "likeliest", lambda *_: 99)
    return function


def test_first_call_compiles_kernels_that_were_not_requested(
    function: RowFunction[..., int],
) -> None:
    assert function(*ROW) == 99


def test_numpy_computes_rows_until_kernels_are_compiled(
    function: RowFunction[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, load = threading.Event(), row_functions.load_kernels

    def compile_and_load() -> None:
        compiled.wait()
        load()

    monkeypatch.setattr(row_functions, "load_kernels", compile_and_load)
    thread = row_functions.load_kernels_in_thread()
    assert function(*ROW) == 1
    compiled.set()
    thread.join()
    assert function(*ROW) == 99
    row_functions.load_kernels_in_thread().join()
    assert function(*ROW) == 99


def test_numpy_goes_on_where_they_cannot_be_compiled(
    function: RowFunction[..., int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(row_functions, "load_kernels", fail)
    row_functions.load_kernels_in_thread().join()
    assert function(*ROW) == 1
    assert "the kernels cannot be compiled" in caplog.text
