"""Loads the kernels of the suffix index: compiled at the first start of all, read at others.

A server has that done beside the loading of its model; until it is done nothing is looked up.
Whoever has not begun it waits at the first use.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger(__name__)

Kernel = Callable[..., Any]


class SuffixFunctions:
    """The kernels of the suffix index, which exist once for all indexes.

    Attributes:
        extend, look_up, learn: see `suffix_kernels`. They may be called when `are_there`.
    """

    extend: Kernel
    look_up: Kernel
    learn: Kernel

    def __init__(self) -> None:
        self._are_loaded = False
        self._are_awaited = True

    def are_there(self) -> bool:
        """Returns whether the kernels can be called; loads them, unless a thread does so."""
        if not self._are_loaded and self._are_awaited:
            self.load()
        return self._are_loaded

    def load(self) -> None:
        """Compiles the kernels, or reads them."""
        from fastovms.engine.drafting import suffix_kernels

        self.extend = suffix_kernels.extend
        self.look_up = suffix_kernels.look_up
        self.learn = suffix_kernels.learn
        self._are_loaded = True

    def load_beside(self, after: threading.Thread) -> threading.Thread:
        """Does that in a thread, when another one has ended. Where the kernels cannot be had,
        nothing is looked up."""
        self._are_awaited = False
        thread = threading.Thread(
            target=self._try_to_load, args=(after,), name="suffix-kernels", daemon=True
        )
        thread.start()
        return thread

    def _try_to_load(self, after: threading.Thread) -> None:
        after.join()
        try:
            self.load()
        except Exception:
            logger.exception("nothing is looked up, as the kernels cannot be compiled")


SUFFIX_FUNCTIONS: Final = SuffixFunctions()
