"""Lets signals such as that of Ctrl-C end a task instead of the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Cancellation:
    """Holds which signal has cancelled a task, the first one; None = none has."""

    signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a command that the signal has ended, as shells have it."""
        assert self.signal is not None
        return 128 + self.signal


@contextmanager
def cancelled_by(*signals: signal.Signals, task: asyncio.Task[Any]) -> Iterator[Cancellation]:
    """Has each of the signals cancel the task for as long as the block runs, on the main thread.
    What the signals did before, they do again afterwards. Yields what tells of the signal."""
    loop = asyncio.get_running_loop()
    cancellation = Cancellation()

    def cancel(number: signal.Signals) -> None:
        cancellation.signal = cancellation.signal or number
        task.cancel()

    before = {number: signal.getsignal(number) for number in signals}
    for number in signals:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield cancellation
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
