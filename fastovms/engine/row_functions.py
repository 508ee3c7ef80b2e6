"""Functions on rows of logits, implemented twice: as compiled kernels, and with NumPy until these
are compiled.

Compiling the kernels takes seconds at the very first start, and loading them later half a second. A
server does that in the background after loading its model; otherwise the first call waits for it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, ParamSpec, TypeVar

from fastovms.engine import sampling_numpy
from fastovms.system.memory import forget_mapped

logger = logging.getLogger(__name__)

BROKEN: Final = sampling_numpy.BROKEN

P = ParamSpec("P")
R = TypeVar("R")


class RowFunction(Generic[P, R]):
    """A function with two implementations, in `sampling_kernels` and `sampling_numpy`."""

    def __init__(self, in_numpy: Callable[P, R]) -> None:
        self.name = in_numpy.__name__
        self._in_numpy = in_numpy
        self._run: Callable[P, R] = self._load_and_run

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(*args, **kwargs)

    def use_numpy(self) -> None:
        """Switches to the NumPy implementation, unless the kernel is loaded."""
        if self._run == self._load_and_run:
            self._run = self._in_numpy

    def use_kernel(self, kernel: Callable[P, R]) -> None:
        """Switches to the compiled kernel."""
        self._run = kernel

    def _load_and_run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        load_kernels()
        return self._run(*args, **kwargs)


likeliest: Final = RowFunction(sampling_numpy.likeliest)
likeliest_of_rows: Final = RowFunction(sampling_numpy.likeliest_of_rows)
draw_rows: Final = RowFunction(sampling_numpy.draw_rows)
log_sum_exp_and_top: Final = RowFunction(sampling_numpy.log_sum_exp_and_top)

_ALL: Final = (likeliest, likeliest_of_rows, draw_rows, log_sum_exp_and_top)


def load_kernels() -> None:
    """Compiles or loads the kernels, and switches to them."""
    from fastovms.engine import sampling_kernels

    for function in _ALL:
        function.use_kernel(getattr(sampling_kernels, function.name))


def use_numpy_for_now() -> None:
    """Switches to NumPy until the kernels are loaded."""
    for function in _ALL:
        function.use_numpy()


def load_kernels_in_thread() -> threading.Thread:
    """Runs `try_to_load_kernels` in a thread, and uses NumPy until then."""
    use_numpy_for_now()
    thread = threading.Thread(target=try_to_load_kernels, name="kernels", daemon=True)
    thread.start()
    return thread


def try_to_load_kernels() -> None:
    """Runs `load_kernels`. If the kernels are not available, NumPy is used permanently."""
    try:
        load_kernels()
    except Exception:
        logger.exception("sampling: NumPy is used because the kernels cannot be compiled")


def forget_compiler() -> None:
    """Releases the memory of LLVM's code, which is usually not needed after the kernels are
    compiled or loaded."""
    llvm = sys.modules.get("llvmlite.binding")
    if llvm is not None and llvm.__file__ is not None:
        forget_mapped(Path(llvm.__file__).with_name("libllvmlite.so"), only_code=True)
