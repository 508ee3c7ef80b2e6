"""Gives memory that was freed, and that malloc keeps, back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def find_trim() -> Callable[[], None]:
    """Returns a function that gives what malloc keeps for later back to the system. It lets other
    threads run meanwhile, and does nothing where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def call() -> None:
        if trim is not None:
            trim(0)

    return call
