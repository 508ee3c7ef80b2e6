"""The process that decodes images: `python -m fastovms.parts.media.image_process DESCRIPTOR`.

The decoders are native code that reads untrusted bytes. A crash loses only one image, and their
memory is released with the process.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import resource
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, Final

import numpy as np

from fastovms.backends.media_processes import Refused
from fastovms.backends.processes import run_media_process, set_soft_limit
from fastovms.errors import InvalidField
from fastovms.params import Image
from fastovms.parts.media.decode import EncodedImage, is_available
from fastovms.parts.media.image_decoder import HeaderRead, ImageBytes, PixelsWritten
from fastovms.system.memory import find_trim

_MAX_MEMORY: Final = 4 * 2**30
_MAX_SECONDS: Final = 20
"""CPU seconds that one image may take. A busy machine is not a fault of an image."""


def serve(connection: Connection[Any, Any]) -> None:
    """Answers images as `ImageDecoder` asks, until the connection ends."""
    trim = find_trim()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            asked: ImageBytes = connection.recv()
            seconds = math.ceil(time.process_time()) + _MAX_SECONDS
            set_soft_limit(resource.RLIMIT_CPU, seconds)
            try:
                _decode(connection, asked)
            except InvalidField as error:
                connection.send(Refused(error.message))
            trim()


def _decode(connection: Connection[Any, Any], asked: ImageBytes) -> None:
    """Decodes one image for the parent. Raises InvalidField if the data are not an image, or a
    damaged or too large one."""
    data = connection.recv_bytes()
    encoded = EncodedImage(data, asked.name, max_pixels=asked.max_pixels, bound=asked.bound)
    connection.send(HeaderRead(encoded.num_pixels, encoded.num_kept))
    if not connection.recv():
        return
    descriptor = recv_handle(connection)
    try:
        image = encoded.decode()
        _write(image, descriptor)
    finally:
        os.close(descriptor)
    connection.send(PixelsWritten(*image.shape[:2]))


def _write(image: Image, descriptor: int) -> None:
    with mmap.mmap(descriptor, image.nbytes) as memory:
        memory[:] = np.ascontiguousarray(image).data.cast("B")


if __name__ == "__main__":
    run_media_process(serve, prepare=is_available, max_memory=_MAX_MEMORY)
