"""Lets Ctrl-C end a task instead of the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def cancelled_by(*signals: signal.Signals, task: asyncio.Task[Any]) -> Iterator[None]:
    """Has each of the signals cancel the task for as long as the block runs, on the main thread.
    What the signals did before, they do again afterwards."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
