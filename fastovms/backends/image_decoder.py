"""Images decoded in other processes: what crashes a decoder costs one image, and the memory that a
large one takes belongs to somebody who gives it back."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from multiprocessing.reduction import send_handle
from queue import SimpleQueue
from typing import Final, NamedTuple, TypeVar

import numpy as np

from fastovms.backends.process import Peer
from fastovms.errors import InvalidField
from fastovms.media.decode import Admit
from fastovms.params import Image

MAX_PROCESSES: Final = 2
_TIMEOUT: Final = 60.0
"""Seconds that one answer of a process may take."""


class Encoded(NamedTuple):
    """Announces the bytes of an image.

    Attributes:
        name: of the part of the request that it is in.
    """

    name: str
    max_pixels: int


class Opened(NamedTuple):
    """The header is read. The answer is whether to go on, and then a descriptor of shared memory
    for three bytes a pixel."""

    num_pixels: int


class Shape(NamedTuple):
    """The pixels are in the shared memory."""

    height: int
    width: int


Answer = TypeVar("Answer", Opened, Shape)


class Refused(NamedTuple):
    """The image is at fault."""

    message: str


class ImageDecoder:
    """Has some processes, each of which decodes one image at a time. Thread-safe: whoever finds all
    of them busy waits.

    Args:
        start: starts a process. The first is started at once, the others when they are needed.
        max_processes: that there may be.
    """

    def __init__(
        self,
        start: Callable[[], Peer],
        *,
        max_processes: int = MAX_PROCESSES,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._start = start
        self._timeout = timeout
        self._idle: SimpleQueue[Peer | None] = SimpleQueue()
        for _ in range(max_processes - 1):
            self._idle.put(None)
        self._idle.put(start())
        self._max_processes = max_processes

    def decode(self, data: bytes, name: str, max_pixels: int, admit: Admit) -> Image:
        """As `fastovms.media.decode.decode_image`. Raises InvalidField, too, for an image that ends
        the process or takes too long."""
        peer = self._idle.get()
        try:
            peer = peer or self._start()
            return self._ask(peer, data, name, max_pixels, admit)
        except (EOFError, OSError) as error:  # TimeoutError is one
            if peer is not None:
                _end(peer)
                peer = None
            raise InvalidField(f"{name} is damaged", param=name) from error
        finally:
            self._idle.put(peer)

    def close(self) -> None:
        """Ends the processes. Nothing may be decoded any more."""
        for _ in range(self._max_processes):
            peer = self._idle.get()
            if peer is not None:
                _end(peer)

    def _ask(self, peer: Peer, data: bytes, name: str, max_pixels: int, admit: Admit) -> Image:
        peer.connection.send(Encoded(name, max_pixels))
        peer.connection.send_bytes(data)
        [num_pixels] = self._answer(peer, name, Opened)
        is_admitted = False
        try:
            admit(num_pixels)
            is_admitted = True
        finally:
            peer.connection.send(is_admitted)
        size = num_pixels * 3
        descriptor = os.memfd_create("image")
        try:
            os.ftruncate(descriptor, size)
            send_handle(peer.connection, descriptor, None)
            height, width = self._answer(peer, name, Shape)
            # Unlike malloc's, this memory is free once nobody has the image any more.
            pixels = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        finally:
            os.close(descriptor)
        return pixels.reshape(height, width, 3)

    def _answer(self, peer: Peer, name: str, kind: type[Answer]) -> Answer:
        if not peer.connection.poll(self._timeout):
            raise TimeoutError
        answer = peer.connection.recv()
        if isinstance(answer, Refused):
            raise InvalidField(answer.message, param=name)
        assert isinstance(answer, kind)
        return answer


def _end(peer: Peer) -> None:
    peer.kill()
    peer.connection.close()
    peer.wait()
