"""A transport that tests control, and an event loop whose clock jumps instead of waiting."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

from fastovms.http.protocol import Connection


class _JumpingSelector(selectors.SelectSelector):
    """Advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, selectors._EventMask]]:
        assert timeout is not None, "the loop would wait for ever"
        self.now += max(timeout, 0.0)
        return super().select(0)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return super().get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """`asyncio.sleep(3600)` returns at once, one hour later. Counts the timers that are set."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        self.num_timers = 0
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        self.num_timers += 1
        return super().call_at(when, callback, *args, context=context)


class FakeTransport:
    """Accepts `room` bytes (None = all) and buffers the rest."""

    def __init__(self, connection: Connection, address: str = "127.0.0.1") -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._high = self._low = 0
        self._paused = False
        self._reads = True
        self.room: int | None = None
        self.sent = b""
        self.buffer = b""
        self.num_writes = 0
        self.eof = self.closing = self.aborted = self.lost = False
        connection.connection_made(self)  # type: ignore[arg-type]

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 4711) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def write(self, data: bytes) -> None:
        assert not self.closing
        assert not self.eof
        assert not self.lost
        self.num_writes += 1
        self.buffer += data
        self._drain()
        if len(self.buffer) > self._high and not self._paused:
            self._paused = True
            self._connection.pause_writing()

    def take(self, size: int | None) -> None:
        """Lets the client read the given number of further bytes; None = everything from now on."""
        self.room = None if size is None else (self.room or 0) + size
        self._drain()

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def close(self) -> None:
        self.closing = True
        self._lose_if_flushed()

    def abort(self) -> None:
        self.aborted = self.closing = True
        self.buffer = b""
        self._lose_if_flushed()

    def receive(self, data: bytes) -> None:
        assert not self.lost
        self._connection.data_received(data)

    def receive_eof(self) -> None:
        if not self._connection.eof_received():
            self.close()

    def _drain(self) -> None:
        size = len(self.buffer) if self.room is None else min(self.room, len(self.buffer))
        if self.room is not None:
            self.room -= size
        self.sent += self.buffer[:size]
        self.buffer = self.buffer[size:]
        if self._paused and len(self.buffer) <= self._low:
            self._paused = False
            self._connection.resume_writing()
        if self.closing:
            self._lose_if_flushed()

    def _lose_if_flushed(self) -> None:
        if not self.buffer and not self.lost:
            self.lost = True
            self._loop.call_soon(self._connection.connection_lost, None)
