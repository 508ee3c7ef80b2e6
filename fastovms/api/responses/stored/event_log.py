"""Keeps the events of one response's stream, so that who comes later can still read them."""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import sub
from typing import Final

from fastovms.api.wire.sse_frames import END, split_frame
from fastovms.state.store import EventPack

_FRAMES_SIZE: Final = 64 * 1024
"""How many bytes of frames are compressed together: events of one kind are much alike."""

_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">II")
"""What stands before each piece of packed frames: how many it has, and in how many bytes."""


class EventLog:
    """The frames of a stream by their sequence numbers.

    Args:
        first: number of the first one.

    Attributes:
        is_closed: whether there will be no more.
        is_cut: whether somebody else goes on with it, so that there will be no more here.
    """

    def __init__(self, first: int = 0) -> None:
        self._starts: list[int] = []
        self._packs: list[bytes] = []
        self._open: list[bytes] = []
        self._open_start = first
        self._open_size = 0
        self._listeners: dict[object, Callable[[], None]] = {}
        self.is_closed = False
        self.is_cut = False

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    @property
    def num_events(self) -> int:
        return self._open_start + len(self._open)

    @property
    def num_bytes(self) -> int:
        """The bytes that it takes, most of them compressed."""
        return sum(map(len, self._packs)) + self._open_size

    def append(self, frames: Sequence[bytes], *, closes: bool = False) -> None:
        """Adds frames and tells those who listen."""
        for frame in frames:
            self._open.append(frame)
            self._open_size += len(frame)
            if self._open_size >= _FRAMES_SIZE:
                self._seal()
        self.is_closed = closes
        self._tell()

    def read(self, start: int) -> Sequence[bytes]:
        """Returns some of the frames from number `start` on; none where there is none yet."""
        if start >= self._open_start:
            return self._open[start - self._open_start :]
        index = bisect_right(self._starts, start) - 1
        frames = zlib.decompress(self._packs[index]).split(END)
        return [frame + END for frame in frames[start - self._starts[index] : -1]]

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the name and the JSON of every event. They have names."""
        number = self._starts[0] if self._starts else self._open_start
        while number < self.num_events:
            frames = self.read(number)
            yield from map(split_frame, frames)
            number += len(frames)

    def listen(self, key: object, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever there is more, until `forget` is called with the key."""
        self._listeners[key] = listener

    def forget(self, key: object) -> None:
        self._listeners.pop(key, None)

    def extend(self, pack: EventPack) -> None:
        """Adds what a pack, or a whole log that was dumped, has beyond this log. Those who listen
        are not told. It is not for logs that have been appended to.

        Raises:
            ValueError: events between are missing.
        """
        number, data = pack.first, pack.data
        position = 0
        while position < len(data):
            num_events, length = _HEADER.unpack_from(data, position)
            position += _HEADER.size
            if number > self._open_start:
                raise ValueError(f"there are no events from {self._open_start} to {number}")
            if number + num_events > self._open_start:
                self._starts.append(number)
                self._packs.append(data[position : position + length])
                self._open_start = number + num_events
            number += num_events
            position += length

    def close(self) -> None:
        """Takes note that there will be no more, and tells those who listen of what there is."""
        self.append([], closes=True)

    def cut(self) -> None:
        """Takes note that somebody else goes on with it, and tells those who listen."""
        self.is_cut = True
        self._tell()

    def dump(self, last: Sequence[bytes]) -> bytes:
        """Returns all of it, for `extend`.

        Args:
            last: further frames, at its end.
        """
        ends = [*self._starts[1:], self._open_start]
        return b"".join(
            [
                *map(_piece, map(sub, ends, self._starts), self._packs),
                *map(pack_frames, _shares([*self._open, *last])),
            ]
        )

    def _tell(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

    def _seal(self) -> None:
        self._starts.append(self._open_start)
        self._packs.append(_compress(self._open))
        self._open_start += len(self._open)
        self._open = []
        self._open_size = 0


def _shares(frames: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields frames as they are compressed together; at least once."""
    start = size = 0
    for end, frame in enumerate(frames, 1):
        size += len(frame)
        if size >= _FRAMES_SIZE:
            yield frames[start:end]
            start, size = end, 0
    if start < len(frames) or not frames:
        yield frames[start:]


def pack_frames(frames: Sequence[bytes]) -> bytes:
    """Returns frames as `EventLog.extend` takes them."""
    return _piece(len(frames), _compress(frames))


def _piece(num_events: int, compressed: bytes) -> bytes:
    return _HEADER.pack(num_events, len(compressed)) + compressed


def _compress(frames: Iterable[bytes]) -> bytes:
    return zlib.compress(b"".join(frames), _LEVEL)
