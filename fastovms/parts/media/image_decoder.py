"""Decodes and shrinks images in other processes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from multiprocessing.reduction import send_handle
from typing import NamedTuple

import numpy as np

from fastovms.backends.media_processes import MAX_PROCESSES, TIMEOUT, MediaProcesses
from fastovms.backends.processes import ChildProcess
from fastovms.params import Image
from fastovms.parts.media.decode import Admit, PixelBound


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


class ImageDecoder(MediaProcesses):
    """Decodes images in a pool of processes; see `MediaProcesses`."""

    def __init__(
        self,
        start: Callable[[], ChildProcess],
        *,
        max_processes: int = MAX_PROCESSES,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__("image", start, max_processes=max_processes, timeout=timeout)

    def decode(
        self, data: bytes, name: str, max_pixels: int, bound: PixelBound, admit: Admit
    ) -> Image:
        """Decodes an image as `decode.decode_image` does. Raises as `run` does."""
        asked = ImageBytes(name, max_pixels, bound)
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
            # Unlike malloc's, this memory is free once nobody has the image any more.
            pixels = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        finally:
            os.close(descriptor)
        return pixels.reshape(*written, 3)
