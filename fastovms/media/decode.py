"""Decodes image files to pixels, turned as their EXIF says, and refuses those of other formats, or
with too many pixels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any, Final

import numpy as np

from fastovms.errors import InvalidField
from fastovms.media.jpeg import MAX_SCANS, has_too_many_scans
from fastovms.params import Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

_DEEP_GREY: Final = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's names for grey of 16 bits a pixel, in the forms in which it keeps it."""

_JPEGS: Final = ("JPEG", "MPO")
"""Pillow's names for JPEG files. MPO, which cameras write, is several of them in one file."""

_STRIP: Final = 256 * 1024
"""How many pixels are copied at a time."""


Admit = Callable[[int], None]
"""Is told the number of pixels of an image before they are decoded, and raises where there are too
many."""

Decode = Callable[[bytes, str, int, Admit], Image]
"""Decodes an image as `decode_image` does."""


def decode_image(data: bytes, name: str, max_pixels: int, admit: Admit) -> Image:
    """Decodes an image to uint8 of shape [height, width, 3].

    Args:
        name: the part of the request that the image came in.

    Raises:
        InvalidField: it is of none of `FORMATS`, damaged, or has more than `max_pixels`.
    """
    encoded = EncodedImage(data, name, max_pixels=max_pixels)
    admit(encoded.num_pixels)
    return encoded.decode()


def is_available() -> bool:
    """Returns whether Pillow, of the extra `vision`, is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        return False
    return True


class EncodedImage:
    """An image of which only the header has been read.

    Attributes:
        num_pixels: how many pixels decoding it will make.

    Raises:
        InvalidField: it is of none of `FORMATS`, has more than `max_pixels`, by its header, or more
            scans than a JPEG may have.
    """

    def __init__(self, data: bytes, name: str, *, max_pixels: int) -> None:
        """
        Args:
            name: the part of the request that the image came in.
        """
        if not is_available():
            raise InvalidField(
                f"{name} cannot be decoded: this server was installed without the extra vision",
                param=name,
            )
        from PIL import Image as pillow

        pillow.MAX_IMAGE_PIXELS = None  # our own limit is applied before anything is decoded
        self._name = name
        self._max_pixels = max_pixels
        try:
            self._image: Any = pillow.open(BytesIO(data), formats=FORMATS)
        except Exception as error:  # whatever a decoder makes of a malformed file
            raise InvalidField(
                f"{name} must be an image in one of the formats {', '.join(FORMATS)}", param=name
            ) from error
        self.num_pixels = self._check_size()
        if self._image.format in _JPEGS and has_too_many_scans(data):
            raise InvalidField(f"{name} must have at most {MAX_SCANS} scans", param=name)

    def decode(self) -> Image:
        """Decodes the pixels, in time proportional to their number; Pillow releases the GIL for
        most of it. It may be called once.

        Raises:
            InvalidField: the file is damaged, or takes more memory than the process may have.
        """
        try:
            self._image.load()
            self._check_size()  # a frame may be larger than the header says
            return _to_rgb(_upright(self._image))
        except InvalidField:
            raise
        except MemoryError as error:
            raise InvalidField(
                f"{self._name} could not be decoded: it takes too much memory", param=self._name
            ) from error
        except Exception as error:
            raise InvalidField(f"{self._name} is damaged", param=self._name) from error

    def _check_size(self) -> int:
        width, height = self._image.size
        num_pixels: int = width * height
        if not 0 < num_pixels <= self._max_pixels:
            raise InvalidField(
                f"{self._name} must have at most {self._max_pixels} pixels, not {num_pixels} "
                f"({width} x {height})",
                param=self._name,
            )
        return num_pixels


def _upright(image: Any) -> Any:
    """Turns an image as its EXIF data say, if they can be understood."""
    from PIL import ImageOps

    with suppress(Exception):
        return ImageOps.exif_transpose(image)
    return image


def _to_rgb(image: Any) -> Image:
    """Makes transparent pixels white, as vLLM does."""
    from PIL import Image as pillow

    if image.mode in _DEEP_GREY:
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, np.newaxis], 3, axis=2)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = pillow.new("RGBA", image.size, (255, 255, 255, 255))
        image = pillow.alpha_composite(white, image)
    return _pixels(image.convert("RGB"))


def _pixels(image: Any) -> Image:
    """Copies the pixels in strips, since copying holds the GIL."""
    width, height = image.size
    pixels: Image = np.empty((height, width, 3), np.uint8)
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, width, bottom)))
    return pixels
