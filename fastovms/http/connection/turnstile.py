"""Keeps the passes of the event loop short when many requests, or large bodies, come at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

PASS_SECONDS: Final = 0.01
"""Seconds that the requests that begin in one pass of the loop may take together, the last one not
counted."""

TASK_SECONDS: Final = 0.0005
"""Seconds that the first step of a handler's task counts as. It runs after the pass's requests, so
that its time cannot be measured when the next of them asks."""


READ_SECONDS: Final = 0.001
"""Seconds that a further read of a large body counts as: up to 256 KB, which are copied thrice into
memory that the kernel commits then."""


class Turnstile:
    """Lets requests begin, or large bodies be read on, until a pass of the loop has spent its time
    on them. Those that wait begin in later passes, in the order in which they came.

    The loop reads from every connection that has something before it sees to anything else, such as
    the tokens of running streams, and a request takes most of a millisecond until the engine has
    it: hundreds at once would hold up everybody. So would a few bodies of many megabytes, of which
    one pass reads all that the kernel has.

    Args:
        clock: tells seconds. The loop's own clock would not do, since it stands still during a
            pass.
    """

    __slots__ = ("_clock", "_end", "_is_new_pass", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_new_pass = True
        self._end = 0.0

    @property
    def is_open(self) -> bool:
        """Returns whether a request may begin now; if not, it is to `wait`."""
        if self._waiting:
            return False
        if self._is_new_pass:
            self._start_pass()
            return True
        return self._clock() < self._end

    def wait(self, begin: Callable[[], None]) -> None:
        """Calls `begin` in one of the next passes."""
        self._waiting.append(begin)

    def count_task(self) -> None:
        """Counts a request that has begun and goes on as a task."""
        self._end -= TASK_SECONDS

    def count_read(self) -> None:
        """Counts a connection whose large body is read on after this pass."""
        self._end -= READ_SECONDS

    def _start_pass(self) -> None:
        self._is_new_pass = False
        self._end = self._clock() + PASS_SECONDS
        self._loop.call_soon(self._on_next_pass)

    def _on_next_pass(self) -> None:
        self._is_new_pass = True
        if not self._waiting:
            return
        self._start_pass()
        while self._waiting:
            self._waiting.popleft()()
            if self._clock() >= self._end:
                break
