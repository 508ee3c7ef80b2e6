"""Decodes and shrinks images in other processes. A crash then loses only one image, and memory
returns to the operating system."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import send_handle
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import numpy as np

from fastovms.backends.processes import ChildProcess
from fastovms.errors import BackendUnavailable, FastovmsError, InvalidField, Overloaded
from fastovms.media.decode import Admit, PixelBound
from fastovms.params import Image

MAX_PROCESSES: Final = 2
_TIMEOUT: Final = 60.0
"""Seconds that one answer of a process may take."""
_CLOSE_TIMEOUT: Final = 2.0
"""Seconds in which the user of a process must notice that it has been killed."""


class ImageBytes(NamedTuple):
    """Announces an image, whose bytes follow.

    Attributes:
        name: the request's field with the image.
        bound: the size to which larger images are shrunk.
    """

    name: str
    max_pixels: int
    bound: PixelBound


class HeaderRead(NamedTuple):
    """Reports the image's header. The parent answers whether to continue, then sends a descriptor
    of shared memory with three bytes per pixel."""

    num_pixels: int
    num_kept: int


class PixelsWritten(NamedTuple):
    """Reports that the pixels are in the shared memory."""

    height: int
    width: int


Answer = TypeVar("Answer", HeaderRead, PixelsWritten)


class Refused(NamedTuple):
    """Reports that the image is invalid."""

    message: str


class ImageDecoder:
    """A pool of processes that decode one image each at a time. Thread-safe: a caller waits while
    all processes are busy.

    Args:
        start: starts a process. The first is started at once, the others when they are needed.
        max_processes: the maximum number of processes.
        timeout: seconds to wait for an answer of a process.
    """

    def __init__(
        self,
        start: Callable[[], ChildProcess],
        *,
        max_processes: int = MAX_PROCESSES,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._start = start
        self._timeout = timeout
        self._max_processes = max_processes
        self._lock = Lock()
        self._peers: set[ChildProcess] = set()
        self._is_closed = False
        self._idle: SimpleQueue[ChildProcess | None] = SimpleQueue()
        for _ in range(max_processes - 1):
            self._idle.put(None)
        self._idle.put(self._begin())

    def decode(
        self, data: bytes, name: str, max_pixels: int, bound: PixelBound, admit: Admit
    ) -> Image:
        """Decodes an image as `fastovms.media.decode.decode_image` does.

        Raises:
            InvalidField: the image is invalid, crashes the process or takes too long.
            Overloaded: there is not enough memory, or no process can be started.
            BackendUnavailable: the decoder is closed.
        """
        try:
            with self._process() as peer:
                return self._ask(peer, data, ImageBytes(name, max_pixels, bound), admit)
        except TimeoutError as error:
            raise InvalidField(
                f"{name} could not be decoded within {self._timeout:g} seconds", param=name
            ) from error
        except (EOFError, ConnectionError) as error:
            self._check_open()
            raise InvalidField(
                f"{name} could not be decoded: it takes too much time or memory, or is damaged",
                param=name,
            ) from error
        except OSError as error:
            raise Overloaded(f"no image can be decoded now: {error.strerror or error}") from error

    def close(self) -> None:
        """Kills the processes, in a few seconds at most. Images that are being decoded then fail
        and later calls are refused."""
        with self._lock:
            self._is_closed = True
            peers = list(self._peers)
        for peer in peers:
            peer.kill()
        idle = []
        with suppress(Empty):  # whoever still holds a process finds it ended
            for _ in range(self._max_processes):
                idle.append(self._idle.get(timeout=_CLOSE_TIMEOUT))
        for one in idle:
            if one is not None:
                self._end(one)
            self._idle.put(None)  # whoever waits is refused

    @contextmanager
    def _process(self) -> Iterator[ChildProcess]:
        """Yields an idle process. After an unexpected error the process is ended, because its next
        answers could not be trusted."""
        peer = self._idle.get()
        try:
            peer = peer or self._begin()
            yield peer
        except FastovmsError:
            raise
        except BaseException:
            if peer is not None:
                self._end(peer)
                peer = None
            raise
        finally:
            self._idle.put(peer)

    def _begin(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            peer = self._start()
            self._peers.add(peer)
        return peer

    def _end(self, peer: ChildProcess) -> None:
        peer.kill()
        peer.connection.close()
        peer.wait()
        with self._lock:
            self._peers.discard(peer)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("images are not decoded any more: the server is shutting down")

    def _ask(self, peer: ChildProcess, data: bytes, asked: ImageBytes, admit: Admit) -> Image:
        peer.connection.send(asked)
        peer.connection.send_bytes(data)
        num_pixels, num_kept = self._answer(peer, asked.name, HeaderRead)
        is_admitted = False
        try:
            admit(num_pixels, num_kept)
            is_admitted = True
        finally:
            peer.connection.send(is_admitted)
        size = num_kept * 3
        descriptor = os.memfd_create("image")
        try:
            os.ftruncate(descriptor, size)
            send_handle(peer.connection, descriptor, None)
            height, width = self._answer(peer, asked.name, PixelsWritten)
            # Unlike malloc's, this memory is free once nobody has the image any more.
            pixels = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        finally:
            os.close(descriptor)
        return pixels.reshape(height, width, 3)

    def _answer(self, peer: ChildProcess, name: str, kind: type[Answer]) -> Answer:
        if not peer.connection.poll(self._timeout):
            raise TimeoutError
        answer = peer.connection.recv()
        if isinstance(answer, Refused):
            raise InvalidField(answer.message, param=name)
        assert isinstance(answer, kind)
        return answer
