"""The events of a response: their log, how they are stored, and how they are streamed again."""

from __future__ import annotations

import asyncio
import logging
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import sub
from typing import Final

import msgspec

from fastovms.api.dialect import DONE, END, Dialect, split_frame, without_name
from fastovms.errors import StateFailed, TooLarge
from fastovms.http.messages import HeaderPairs, Request
from fastovms.params import FinishReason, GenerationOutput, TokenLogprobs
from fastovms.state.operations import Operations
from fastovms.state.state_store import StateStore
from fastovms.state.store import EventPack, ResponseKey

logger = logging.getLogger(__name__)

_FRAMES_SIZE: Final = 64 * 1024
"""The number of bytes of frames that are compressed together; frames of one kind are similar."""
_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">II")
"""The header of each piece of packed frames: the number of frames, and the compressed bytes."""


class EventLog:
    """The frames of a stream, numbered consecutively.

    Args:
        first: the number of the first frame.

    Attributes:
        is_closed: whether the last frame has been added.
        is_cut: whether another replica resumes the response, so that no more frames are added here.
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
        """The number of events so far."""
        return self._open_start + len(self._open)

    @property
    def num_bytes(self) -> int:
        """The memory of the log in bytes. Most frames are compressed."""
        return sum(map(len, self._packs)) + self._open_size

    def append(self, frames: Sequence[bytes], *, closes: bool = False) -> None:
        """Appends frames and notifies the listeners. `closes` is whether they are the last ones."""
        for frame in frames:
            self._open.append(frame)
            self._open_size += len(frame)
            if self._open_size >= _FRAMES_SIZE:
                self._seal()
        self.is_closed = closes
        self._notify()

    def read(self, start: int) -> Sequence[bytes]:
        """Returns some of the frames from number `start` on; empty = not available yet."""
        if start >= self._open_start:
            return self._open[start - self._open_start :]
        index = bisect_right(self._starts, start) - 1
        frames = zlib.decompress(self._packs[index]).split(END)
        return [frame + END for frame in frames[start - self._starts[index] : -1]]

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the name and the JSON of every event. All frames must have names."""
        number = self._starts[0] if self._starts else self._open_start
        while number < self.num_events:
            frames = self.read(number)
            yield from map(split_frame, frames)
            number += len(frames)

    def listen(self, key: object, listener: Callable[[], None]) -> None:
        """Calls `listener` whenever frames are added, until `forget` is called with the key."""
        self._listeners[key] = listener

    def forget(self, key: object) -> None:
        """Removes the listener that was registered with `key`."""
        self._listeners.pop(key, None)

    def extend(self, pack: EventPack) -> None:
        """Appends the frames of a pack, or of a dumped log, that are newer than the log. Does not
        notify listeners. Must not be called after `append`. Raises ValueError if frames in between
        are missing."""
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
        """Records that the last frame has been added, and notifies the listeners."""
        self.append([], closes=True)

    def cut(self) -> None:
        """Records that another replica resumes the response, and notifies the listeners."""
        self.is_cut = True
        self._notify()

    def dump(self, last: Sequence[bytes]) -> bytes:
        """Returns the whole log in the format that `extend` reads.

        Args:
            last: further frames to put at the end.
        """
        ends = [*self._starts[1:], self._open_start]
        return b"".join(
            [
                *map(_piece, map(sub, ends, self._starts), self._packs),
                *map(pack_frames, _shares([*self._open, *last])),
            ]
        )

    def _notify(self) -> None:
        for listener in list(self._listeners.values()):
            listener()

    def _seal(self) -> None:
        self._starts.append(self._open_start)
        self._packs.append(_compress(self._open))
        self._open_start += len(self._open)
        self._open = []
        self._open_size = 0


def _shares(frames: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields groups of frames that are compressed together, at least one group."""
    start = size = 0
    for end, frame in enumerate(frames, 1):
        size += len(frame)
        if size >= _FRAMES_SIZE:
            yield frames[start:end]
            start, size = end, 0
    if start < len(frames) or not frames:
        yield frames[start:]


def pack_frames(frames: Sequence[bytes]) -> bytes:
    """Returns frames in the format that `EventLog.extend` reads."""
    return _piece(len(frames), _compress(frames))


def _piece(num_events: int, compressed: bytes) -> bytes:
    return _HEADER.pack(num_events, len(compressed)) + compressed


def _compress(frames: Iterable[bytes]) -> bytes:
    return zlib.compress(b"".join(frames), _LEVEL)


class _Output(msgspec.Struct, array_like=True, omit_defaults=True):
    """The stored form of a `GenerationOutput` of a request with one sample."""

    token_ids: list[int]
    num_generated_tokens: int
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    stop_token_id: int | None = None
    num_prompt_tokens: int | None = None
    logprobs: list[tuple[int, float, int, list[int], list[float]]] = []


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Output]).decode


def pack_outputs(outputs: Iterable[GenerationOutput]) -> bytes:
    """Returns the outputs of a request with one sample in the format that `unpack_outputs`
    reads."""
    return zlib.compress(_encode([_kept(output) for output in outputs]), _LEVEL)


def unpack_outputs(data: bytes) -> Sequence[GenerationOutput]:
    """Returns packed outputs, without their measurements. Raises ValueError if the data are
    corrupt."""
    try:
        return [_to_output(output) for output in _decode(zlib.decompress(data))]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError("the stored output of the model is corrupt") from error


def _kept(output: GenerationOutput) -> _Output:
    return _Output(
        list(output.token_ids),
        output.num_generated_tokens,
        output.finish_reason,
        output.num_cached_tokens,
        output.stop_token_id,
        output.num_prompt_tokens,
        [
            (one.token_id, one.logprob, one.rank, list(one.top_token_ids), list(one.top_logprobs))
            for one in output.logprobs
        ],
    )


def _to_output(kept: _Output) -> GenerationOutput:
    return GenerationOutput(
        0,
        kept.token_ids,
        kept.finish_reason,
        kept.num_generated_tokens,
        kept.num_cached_tokens,
        kept.stop_token_id,
        logprobs=[TokenLogprobs(*one) for one in kept.logprobs],
        num_prompt_tokens=kept.num_prompt_tokens,
    )


SHARED_INTERVAL: Final = 0.1
"""Seconds between two writes of a response's events if clients wait for them."""
_OWN_INTERVAL: Final = 1.0
"""Seconds between two writes of events that are only read after a crash, so that disk wear stays
low."""
_RETRY: Final = 1.0
"""Seconds until a failed write is retried."""


class EventWriter:
    """Stores the events of one response. Clients read events from the log, to which events are
    added once they are stored, or once an attempt to store them has failed. Events that are not
    stored are kept in memory until the store is available.

    Args:
        log: the events that clients may get; those that it has already are stored.
        keeps_outputs: whether to store the model's output, too.
        ahead: the stored model output after the last event of the log.

    Attributes:
        advanced: set once model output of this process is stored, or no more will be stored.
    """

    def __init__(
        self,
        log: EventLog,
        store: StateStore,
        key: ResponseKey,
        *,
        keeps_outputs: bool,
        ahead: Sequence[GenerationOutput] = (),
    ) -> None:
        self._log = log
        self._store = store
        self._key = key
        self._keeps_outputs = keeps_outputs
        self._num_kept = log.num_events
        self._unsent: list[bytes] = []
        # The pack with these outputs has the number of the next pack, which replaces it.
        self._outputs = list(ahead)
        self._num_outputs_kept = len(ahead)
        self._has_ended = False
        self._more = asyncio.Event()
        self.advanced = asyncio.Event()

    def add_output(self, output: GenerationOutput) -> None:
        """Queues an output of the model. Must be called before `add` with the events that report
        it."""
        if self._keeps_outputs:
            self._outputs.append(output)
            self._more.set()

    def add(self, frames: Sequence[bytes]) -> None:
        """Queues events to be stored and then added to the log."""
        self._unsent += frames
        if self._has_ended:
            self._log_unsent()
        if frames:
            self._more.set()

    def take_unsent(self) -> list[bytes]:
        """Removes and returns the events that are not in the log yet; the caller must store and log
        them."""
        unsent, self._unsent = self._unsent, []
        return unsent

    async def run(self, on_loss: Callable[[], None]) -> None:
        """Stores events until cancelled. Writes are consecutive, and each has all events since the
        last one. Calls `on_loss` and ends if this replica no longer owns the response."""
        while True:
            await self._more.wait()
            self._more.clear()
            has_output = self._has_unstored_output
            try:
                while self._is_behind:
                    if not await self._write():
                        on_loss()
                        return
            except StateFailed:
                self._log_unsent()
                self._more.set()
                await asyncio.sleep(_RETRY)
                continue
            except TooLarge as error:
                logger.warning("cannot store events of response %s: %s", self._key.id, error)
                self._has_ended = True
                self._log_unsent()
                self.advanced.set()
                return
            if self._keeps_outputs and not has_output:
                continue  # only the server's own events are stored: write the model's output now
            has_readers = self._store.lease is not None or self._log.has_listeners
            await asyncio.sleep(SHARED_INTERVAL if has_readers else _OWN_INTERVAL)

    async def flush(self) -> None:
        """Stores the remaining events after `run` has ended. If that fails, clients have not
        received the unstored events."""
        try:
            while self._is_behind and await self._write():
                pass
        except (StateFailed, TooLarge) as error:
            logger.warning("cannot store the last events of response %s: %s", self._key.id, error)

    @property
    def _has_unstored_output(self) -> bool:
        return self._num_outputs_kept < len(self._outputs)

    @property
    def _is_behind(self) -> bool:
        return (
            bool(self._unsent) or self._num_kept < self._log.num_events or self._has_unstored_output
        )

    async def _write(self) -> bool:
        """Stores some events and all new model output, even if the output has no events yet, such
        as within a tool call. Returns whether this replica still owns the response."""
        log, outputs, has_output = self._log, list(self._outputs), self._has_unstored_output
        is_logged = self._num_kept < log.num_events
        frames = log.read(self._num_kept) if is_logged else list(self._unsent)
        # Events are stored with their outputs, from which a resuming replica makes the next ones.
        packed = pack_outputs(outputs) if outputs else None
        pack = EventPack(self._num_kept, pack_frames(frames), packed)
        if not await self._store.run(Operations.add_events, *self._key, pack):
            return False
        if has_output:
            self.advanced.set()
        if frames:
            del self._outputs[: len(outputs)]
        self._num_outputs_kept = 0 if frames else len(outputs)
        self._num_kept += len(frames)
        if not is_logged:
            del self._unsent[: len(frames)]
            log.append(frames)
        return True

    def _log_unsent(self) -> None:
        self._log.append(self.take_unsent())


async def replay(
    request: Request, log: EventLog, start: int, dialect: Dialect, *, headers: HeaderPairs = ()
) -> None:
    """Streams a log from event number `start` on. Returns when the log is closed and sent, or
    cut."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    stream = request.stream(headers=headers)
    next_number = start

    def send() -> None:
        nonlocal next_number
        if done.done():
            return
        if log.is_cut:
            stream.abort()  # the client continues at the replica that runs the response
            done.set_result(None)
            return
        if not stream.writable:
            return
        frames = log.read(next_number)
        next_number += len(frames)
        data = b"".join(frames if dialect.responses.names_events else map(without_name, frames))
        if next_number < log.num_events:
            stream.send(data)
            loop.call_soon(send)  # let other connections send first
        elif log.is_closed:
            stream.finish(data + DONE)
            done.set_result(None)
        elif data:
            stream.send(data)

    stream.on_writable = send
    log.listen(stream, send)
    try:
        send()
        await done
    finally:
        log.forget(stream)
