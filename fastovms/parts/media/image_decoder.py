"""Decodes and shrinks images in separate processes, which run `serve`."""

from __future__ import annotations

import math
import mmap
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Final, NamedTuple

import numpy as np

from fastovms.backends.processes import ChildProcess, set_soft_limit
from fastovms.errors import InvalidField
from fastovms.params import Image
from fastovms.parts.media.decode import Admit, EncodedImage, PixelBound, is_available
from fastovms.parts.media.decoders import TIMEOUT, DecoderPool, Refused, limit_decoder
from fastovms.system.memory import find_trim

_MAX_PROCESSES: Final = 2
_MAX_MEMORY: Final = 4 * 2**30
_MAX_SECONDS: Final = 20
"""The maximum CPU seconds for one image. CPU time is independent of the load of the machine."""


class ImageBytes(NamedTuple):
    """Announces an image; its bytes follow.

    Attributes:
        name: the request field with the image.
        bound: the size to which larger images are shrunk.
        is_mask: whether the image is a mask; transparent pixels then become white and all others
            black.
    """

    name: str
    max_pixels: int
    bound: PixelBound
    is_mask: bool = False


class HeaderRead(NamedTuple):
    """Reports the image's header. The parent answers whether to continue, then sends the descriptor
    of shared memory with three bytes per pixel."""

    num_pixels: int
    num_kept: int


class PixelsWritten(NamedTuple):
    """Reports that the pixels are in the shared memory."""

    height: int
    width: int


class ImageDecoder(DecoderPool):
    """Decodes images in a pool of processes."""

    def __init__(
        self,
        start: Callable[[], ChildProcess] | None = None,
        *,
        max_processes: int = _MAX_PROCESSES,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(
            "image",
            start or partial(ChildProcess, __name__),
            max_processes=max_processes,
            timeout=timeout,
        )

    def decode(
        self,
        data: bytes,
        name: str,
        max_pixels: int,
        bound: PixelBound,
        admit: Admit,
        *,
        is_mask: bool = False,
    ) -> Image:
        """Decodes an image as `decode.decode_image` does; `is_mask` is that of `ImageBytes`. Raises
        as `run` does."""
        asked = ImageBytes(name, max_pixels, bound, is_mask)
        return self.run(name, lambda peer: self._ask(peer, data, asked, admit))

    def _ask(self, peer: ChildProcess, data: bytes, asked: ImageBytes, admit: Admit) -> Image:
        peer.connection.send(asked)
        peer.connection.send_bytes(data)
        header: HeaderRead = self.answer(peer, asked.name)
        is_admitted = False
        try:
            admit(*header)
            is_admitted = True
        finally:
            peer.connection.send(is_admitted)
        size = header.num_kept * 3
        descriptor = os.memfd_create("image")
        try:
            os.ftruncate(descriptor, size)
            send_handle(peer.connection, descriptor, None)
            written: PixelsWritten = self.answer(peer, asked.name)
            # Unlike malloc's, this memory is freed as soon as the image is no longer used.
            pixels = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        finally:
            os.close(descriptor)
        return pixels.reshape(*written, 3)


def serve(connection: Connection[Any, Any]) -> None:
    """Decodes the images that `ImageDecoder` sends, until the connection closes."""
    is_available()  # import the decoder now, so that the first image does not wait for it
    limit_decoder(_MAX_MEMORY)
    trim = find_trim()
    while True:
        asked: ImageBytes = connection.recv()
        set_soft_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + _MAX_SECONDS)
        try:
            _decode(connection, asked)
        except InvalidField as error:
            connection.send(Refused(error.message))
        trim()


def _decode(connection: Connection[Any, Any], asked: ImageBytes) -> None:
    """Decodes one image for the parent. Raises InvalidField if the data are not a valid image, or
    the image is too large."""
    data = connection.recv_bytes()
    encoded = EncodedImage(data, asked.name, max_pixels=asked.max_pixels, bound=asked.bound)
    connection.send(HeaderRead(encoded.num_pixels, encoded.num_kept))
    if not connection.recv():
        return
    descriptor = recv_handle(connection)
    try:
        image = encoded.decode(is_mask=asked.is_mask)
        _write(image, descriptor)
    finally:
        os.close(descriptor)
    connection.send(PixelsWritten(*image.shape[:2]))


def _write(image: Image, descriptor: int) -> None:
    with mmap.mmap(descriptor, image.nbytes) as memory:
        memory[:] = np.ascontiguousarray(image).data.cast("B")
