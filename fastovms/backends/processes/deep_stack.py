"""Starts threads with stacks that are deep enough for llguidance.

It recurses as deep as a grammar is, and an overflow of the stack ends the process: so what has
passed a trial on a small stack only ever runs on a larger one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

TRIAL_STACK: Final = 2 * 2**20
"""Bytes of the stack in which grammars are tried: a JSON schema of the greatest depth needs a tenth
of it."""

_STACK: Final = 16 * TRIAL_STACK
"""Bytes of the stack in which grammars are used. Only what is touched takes memory."""


def start_thread(target: Callable[[], None], *, name: str) -> threading.Thread:
    """Starts a daemon thread with a stack that is several times as large as that of trials."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    previous = threading.stack_size(_STACK)  # holds for the threads that are started from now on
    try:
        thread.start()
    finally:
        threading.stack_size(previous)
    return thread
