"""Bounds the memory that the decoded images of all requests take together."""

from __future__ import annotations

import weakref
from threading import Lock

from fastovms.errors import Overloaded
from fastovms.params import Image


class MemoryBudget:
    """Counts bytes from before an image is decoded until nobody has it any more. It is
    thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._used = 0
        self._lock = Lock()

    @property
    def used(self) -> int:
        return self._used

    def take(self, num_bytes: int) -> None:
        """Reserves bytes.

        Raises:
            Overloaded: there is no room now.
        """
        with self._lock:
            if self._used + num_bytes > self.max_bytes:
                raise Overloaded("too many images are being read; try again later")
            self._used += num_bytes

    def give_back(self, num_bytes: int) -> None:
        with self._lock:
            self._used -= num_bytes

    def give_back_with(self, image: Image, num_bytes: int) -> None:
        """Gives bytes back as soon as the last reference to the image has gone."""
        weakref.finalize(image, self.give_back, num_bytes).atexit = False
