"""Bounds how long a connection may be idle, or take for a head or a body that its client has begun
to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastovms.config.http_config import HttpConfig
from fastovms.http.connection.deadline import Deadline
from fastovms.http.parsing.framing import ParserPhase, RequestParser


class ReadDeadline(Deadline):
    """A deadline for the client's input. It is absolute: further bytes do not move it, only the end
    of what it waits for does.

    Args:
        on_late: called with the reason when a request was begun and is not complete in time.
        on_idle: called when none was begun.

    Attributes:
        phase: the phase of the parser that was followed last.
    """

    __slots__ = ("_body_started", "_config", "_on_idle", "_on_late", "_parser", "phase")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: HttpConfig,
        parser: RequestParser,
        on_late: Callable[[str], None],
        on_idle: Callable[[], None],
    ) -> None:
        super().__init__(loop, self._expire)
        self._config = config
        self._parser = parser
        self._on_late = on_late
        self._on_idle = on_idle
        self._body_started = 0.0
        self.phase = parser.phase

    def close(self) -> None:
        super().close()
        del self._on_late, self._on_idle  # breaks reference cycles

    def follow(self) -> None:
        """Takes note that the parser has come to another phase, which has a deadline of its own."""
        self.phase = phase = self._parser.phase
        if phase is ParserPhase.HEAD:
            self.set(self._loop.time() + self._config.head_timeout)
        elif phase is ParserPhase.BODY:
            self._body_started = self._loop.time()
            self.set(self._body_started + self._config.body_timeout)

    def _expire(self) -> None:
        phase = self._parser.phase
        if phase is ParserPhase.HEAD:
            self._on_late("the head did not arrive in time")
        elif phase is ParserPhase.BODY:
            config, sink = self._config, self._parser.body_sink
            min_rate = config.min_body_rate if sink is None else sink.min_rate
            allowance = config.body_timeout + self._parser.body_size / min_rate
            if self._body_started + allowance > self._loop.time():
                self.set(self._body_started + allowance)
            else:
                self._on_late("the body did not arrive in time")
        else:
            self._on_idle()
