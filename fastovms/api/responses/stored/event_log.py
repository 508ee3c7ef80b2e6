"""Keeps the events of one response's stream, so that who comes later can still read them."""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import sub
from typing import Final

from fastovms.api.wire.sse_frames import END

_FRAMES_SIZE: Final = 64 * 1024
"""How many bytes of frames are compressed together: events of one kind are much alike."""

_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">II")
"""What stands before each piece of a dumped log: how many frames it has, and how many bytes."""


class EventLog:
    """The frames of a stream by their sequence numbers.

    Args:
        first: number of the first one.

    Attributes:
        is_closed: whether there will be no more.
    """

    def __init__(self, first: int = 0) -> None:
        self._starts: list[int] = []
        self._packs: list[bytes] = []
        self._open: list[bytes] = []
        self._open_start = first
        self._open_size = 0
        self._listeners: dict[object, Callable[[], None]] = {}
        self.is_closed = False

    @property
    def num_events(self) -> int:
        return self._open_start + len(self._open)

    def append(self, frames: Sequence[bytes], *, closes: bool = False) -> None:
        """Adds frames and tells those who listen."""
        for frame in frames:
            self._open.append(frame)
            self._open_size += len(frame)
            if self._open_size >= _FRAMES_SIZE:
                self._seal()
        self.is_closed = closes
        for listener in list(self._listeners.values()):
            listener()

    def read(self, start: int) -> Sequence[bytes]:
        """Returns some of the frames from number `start` on; none where there is none yet."""
        if start >= self._open_start:
            return self._open[start - self._open_start :]
        index = bisect_right(self._starts, start) - 1
        frames = zlib.decompress(self._packs[index]).split(END)
        return [frame + END for frame in frames[start - self._starts[index] : -1]]

    def listen(self, key: object, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever there is more, until `forget` is called with the key."""
        self._listeners[key] = listener

    def forget(self, key: object) -> None:
        self._listeners.pop(key, None)

    def dump(self, last: Sequence[bytes]) -> bytes:
        """Returns all of it, for `load`.

        Args:
            last: further frames, at its end.
        """
        ends = [*self._starts[1:], self._open_start]
        rest = [*self._open, *last]
        return b"".join(
            _HEADER.pack(num_events, len(pack)) + pack
            for num_events, pack in [
                *zip(map(sub, ends, self._starts), self._packs, strict=True),
                (len(rest), _compress(rest)),
            ]
        )

    @classmethod
    def load(cls, dumped: bytes) -> EventLog:
        """Returns the log that was dumped, closed."""
        log = cls()
        position = 0
        while position < len(dumped):
            num_events, length = _HEADER.unpack_from(dumped, position)
            position += _HEADER.size
            log._starts.append(log._open_start)
            log._packs.append(dumped[position : position + length])
            log._open_start += num_events
            position += length
        log.is_closed = True
        return log

    def _seal(self) -> None:
        self._starts.append(self._open_start)
        self._packs.append(_compress(self._open))
        self._open_start += len(self._open)
        self._open = []
        self._open_size = 0


def _compress(frames: Iterable[bytes]) -> bytes:
    return zlib.compress(b"".join(frames), _LEVEL)
