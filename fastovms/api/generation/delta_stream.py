"""Sends the deltas of a generation as the frames that its endpoint makes of them, merged while the
client does not read."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from fastovms.api.generation.deltas import SampleDelta, merged
from fastovms.errors import FastovmsError
from fastovms.http.routing.messages import Stream


class ClientTooSlow(FastovmsError):
    """The client left more of its stream unread than the server is willing to keep."""


class DeltaFrames(Protocol):
    """Encodes the deltas of one stream."""

    def delta(self, delta: SampleDelta) -> bytes:
        """Returns the event of a delta; nothing if the client is told nothing of it yet."""

    def opening_length(self, choice: int) -> int:
        """Returns how many bytes the choice's next event has before what its delta brings."""


class Frames(DeltaFrames, Protocol):
    """Encodes all events of one stream."""

    def end(self) -> bytes:
        """Returns what follows the last delta: usage, end marker."""

    def failure(self, error: Exception) -> bytes:
        """Returns the last event of a stream that cannot go on."""


class DeltaSender:
    """Writes once for each delta; those that come while the client does not read are merged.

    Args:
        max_pending_chars: how much text to keep for a client that does not read.
    """

    def __init__(self, stream: Stream, frames: DeltaFrames, *, max_pending_chars: int) -> None:
        self._stream = stream
        self._frames = frames
        self._max_pending = max_pending_chars
        self._num_pending = 0
        self._held: defaultdict[int, list[SampleDelta]] = defaultdict(list)
        stream.on_writable = self._release

    def send(self, delta: SampleDelta) -> None:
        """Sends a delta, or keeps it while the client does not read.

        Raises:
            ClientTooSlow: nothing can be sent any more.
        """
        if self._held or not self._stream.writable:
            self._hold(delta)
        elif frames := self._frames.delta(delta):
            self._stream.send(frames)

    def rest(self, last: SampleDelta | None = None) -> bytes:
        """Returns the events of everything held back, and of `last`, for the caller to send."""
        if last is not None:
            self._held[last.choice].append(last)
        deltas = [merged(deltas) for deltas in self._held.values()]
        self._held.clear()
        self._num_pending = 0
        return b"".join(map(self._frames.delta, deltas))

    def _hold(self, delta: SampleDelta) -> None:
        if delta.choice not in self._held:
            self._num_pending += self._frames.opening_length(delta.choice)
        self._num_pending += delta.size
        if self._num_pending > self._max_pending:
            self._held.clear()
            self._stream.abort()
            raise ClientTooSlow("the client does not read its stream")
        self._held[delta.choice].append(delta)

    def _release(self) -> None:
        if self._held and (frames := self.rest()):
            self._stream.send(frames)


class DeltaStream:
    """The stream of one request, whose last delta is sent together with what ends it."""

    def __init__(
        self,
        stream: Stream,
        frames: Frames,
        *,
        num_samples: int,
        handshake: bool,
        max_pending_chars: int,
    ) -> None:
        """
        Args:
            handshake: whether to send the first delta even when it has no text.
            max_pending_chars: how much text to keep for a client that does not read.
        """
        self._stream = stream
        self._frames = frames
        self._sender = DeltaSender(stream, frames, max_pending_chars=max_pending_chars)
        self._num_open = num_samples
        self._handshake = handshake

    def push(self, delta: SampleDelta) -> None:
        """Sends a delta.

        Raises:
            ClientTooSlow: nothing can be sent any more.
        """
        if delta.finish_reason is not None:
            self._num_open -= 1
        elif delta.is_empty and not self._handshake:
            return
        self._handshake = False
        if self._num_open == 0:
            self._stream.finish(self._sender.rest(delta) + self._frames.end())
        else:
            self._sender.send(delta)

    def fail(self, error: Exception) -> None:
        """Ends the stream with an error event."""
        self._stream.finish(self._sender.rest() + self._frames.failure(error))
