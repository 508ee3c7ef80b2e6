"""Bounds how long a connection may be idle, or take for a head or a body that its client has begun
to send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastovms.config.http_config import HttpConfig
from fastovms.http.connection.deadline import Deadline
from fastovms.http.parsing.framing import ParserPhase, RequestParser


class ReadDeadline(Deadline):
    """A deadline for the client's input.

    That of a head is absolute: further bytes do not move it. A body has `body_timeout` seconds.
    Then, and whenever that time is over, it gets the time that the bytes since the last check need
    at the lowest rate, but no more than `body_timeout`: a client that sends nothing more is not
    waited for because it was fast before.

    Args:
        on_late: called with the reason when a request was begun and is not complete in time.
        on_idle: called when none was begun.

    Attributes:
        phase: the phase of the parser that was followed last.
    """

    __slots__ = ("_body_size", "_config", "_on_idle", "_on_late", "_parser", "phase")

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
        self._body_size = 0  # at the last check
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
            self._body_size = 0
            self.set(self._loop.time() + self._config.body_timeout)

    def _expire(self) -> None:
        phase = self._parser.phase
        if phase is ParserPhase.HEAD:
            self._on_late("the head did not arrive in time")
        elif phase is ParserPhase.BODY:
            config, sink = self._config, self._parser.body_sink
            min_rate = config.min_body_rate if sink is None else sink.min_rate
            size = self._parser.body_size
            allowance = min((size - self._body_size) / min_rate, config.body_timeout)
            if sink is not None and sink.is_full:  # the disk is slow, and not the client
                allowance = config.body_timeout
            self._body_size = size
            if allowance:
                self.set(self._loop.time() + allowance)
            else:
                self._on_late("the body did not arrive in time")
        else:
            self._on_idle()
