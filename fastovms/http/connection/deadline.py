"""Calls back at a deadline, which can be moved cheaply and often."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

NEVER = math.inf


class Deadline:
    """A deadline that is moved often, nearly always to a later moment.

    Moving it leaves the timer alone, which fires early then and is aimed again. So a connection
    that serves many requests sets a timer once in a while, not once a request.
    """

    __slots__ = ("_callback", "_loop", "_timer", "_timer_at", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback: Callable[[], None] | None = callback
        self._when = NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    def set(self, when: float) -> None:
        """Moves the deadline to `when`, in seconds of the loop's clock."""
        self._when = when
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._on_timer)

    def clear(self) -> None:
        self._when = NEVER

    def close(self) -> None:
        """Clears the deadline for good and forgets the callback."""
        self._when = NEVER
        self._callback = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        when = self._when
        if when > self._loop.time():
            if when != NEVER:
                self.set(when)
        elif self._callback is not None:
            self._when = NEVER
            self._callback()
