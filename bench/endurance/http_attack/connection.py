"""A connection of an attacking client, which writes arbitrary bytes and reads responses."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from bench.endurance.http_attack.answers import Answer, AnswerReader, MalformedAnswer

_NEVER: Final = 1 << 30
_GRACE: Final = 0.01


class AttackConnection(asyncio.Protocol):
    """A connection of an attacking client.

    Attributes:
        reader: the received bytes.
        closed: whether the server or the network has ended the connection.
        fault: the framing error of the responses, or None.
        num_bytes: the number of received bytes.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = 0
        self.reader = AnswerReader()
        self.closed = False
        self.fault: MalformedAnswer | None = None
        self.num_bytes = 0

    @classmethod
    async def open(cls, host: str, port: int) -> AttackConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def answers(self) -> list[Answer]:
        return self.reader.answers

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.num_bytes += len(data)
        try:
            self.reader.feed(data)
        except MalformedAnswer as fault:
            self.fault = fault
            self.abort()
        if len(self.reader.answers) >= self._wanted or self.fault is not None:
            self._wake()

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._wake()

    # The attacker's side

    def write(self, data: bytes) -> None:
        """Writes bytes unless the server has closed the connection."""
        if self._transport is not None and not self.is_closing:
            self._transport.write(data)

    def finish(self) -> None:
        """Sends FIN after the last request."""
        if self._transport is not None and not self.is_closing:
            self._transport.write_eof()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def wait(self, num_answers: int, seconds: float) -> bool:
        """Waits for the given total number of responses, or for the end of the connection. Returns
        whether a response was received in time."""
        if self._is_over(num_answers):
            return True
        self._wanted = num_answers
        self._waiter = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._expire)
        try:
            await self._waiter
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._waiter = None
        return self._is_over(num_answers)

    async def first_answer(self, seconds: float) -> Answer | str:
        """Waits for the response to the only request of the connection, and aborts the connection
        if no other request may follow. Returns the response or its fault."""
        in_time = await self.wait(1, seconds)
        if self.fault is not None:
            return str(self.fault)
        if not self.answers:
            self.abort()
            return "no answer" if in_time else f"no answer within {seconds:.0f} s"
        answer = self.answers[0]
        if answer.is_last:
            self.abort()
        return answer

    async def wait_until_closed(self, seconds: float) -> None:
        """Waits for the end of the connection, for a limited time."""
        await self.wait(_NEVER, seconds)

    def _is_over(self, num_answers: int) -> bool:
        return self.closed or self.fault is not None or len(self.reader.answers) >= num_answers

    def _expire(self) -> None:
        """Ends the waiting after a last pass of the event loop, which reads what was received while
        this process was not running."""
        self._timer = self._loop.call_later(_GRACE, self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
