"""Decodes and shrinks images."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, NamedTuple, Self

import numpy as np

from fastovms.errors import InvalidField
from fastovms.params import Image

MAX_SCANS: Final = 100
"""The maximum number of scans of a JPEG image. Each scan takes time in proportion to all pixels,
however few bytes it has. Encoders write about ten scans."""

# In a run of 0xFF fill bytes before a marker, only the last byte is matched. A pattern for the
# whole run would search a run without a marker again from each of its bytes.
_MARKER: Final = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)
_WITHOUT_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))
"""The markers without a length field: TEM, RST0 to RST7 and SOI (ITU T.81, B.1.1.3)."""

_EOI: Final = 0xD9
_SOS: Final = 0xDA


def has_too_many_scans(data: bytes) -> bool:
    """Returns whether a decoder would find more than `MAX_SCANS` scans in a file, corrupt or
    not."""
    num_scans, at = 0, 0
    # A zero byte follows each 0xFF of coded data, so that the next marker can be searched for.
    while (found := _MARKER.search(data, at)) is not None:
        marker, at = data[found.end() - 1], found.end()
        if marker == _EOI:
            return False
        if marker == _SOS:
            num_scans += 1
            if num_scans > MAX_SCANS:
                return True
        if marker not in _WITHOUT_LENGTH:
            at += int.from_bytes(data[at : at + 2])
    return False


FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

_DEEP_GREY: Final = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's mode names for grey images with 16 bits per pixel."""

_JPEGS: Final = ("JPEG", "MPO")
"""Pillow's names for JPEG files. An MPO file, which cameras write, has several JPEG images."""

_STRIP: Final = 256 * 1024
"""The number of pixels that are copied at once."""

_REDUCING_GAP: Final = 3.0
"""Large images are first reduced by an integer factor to three times the final size, which is
faster than one filter over all pixels and looks the same."""


_MIN_PIXEL_COUNT: Final = 10_000
"""A `longest_edge` of at least this is a number of pixels, as in Qwen's processors; a smaller one
is the length of a side."""


class PixelBound(NamedTuple):
    """The size to which larger images are shrunk.

    Attributes:
        max_pixels: the maximum of width times height.
        multiple: sides are multiples of this number, as the model's processor requires, so that a
            shrunk image is not resized again.
    """

    max_pixels: int
    multiple: int = 1

    @classmethod
    def of(cls, processor: Mapping[str, Any], max_pixels: int) -> Self:
        """Returns the lower of `max_pixels` and the limit in preprocessor_config.json."""
        size = processor.get("size")
        stated = processor.get("max_pixels")
        if stated is None and isinstance(size, Mapping):
            stated = size.get("longest_edge")
            if isinstance(stated, int) and stated < _MIN_PIXEL_COUNT:
                stated = stated * stated
        if type(stated) is not int or stated < 1:
            return cls(max_pixels)
        patch, merge = processor.get("patch_size"), processor.get("merge_size")
        multiple = 1
        if isinstance(patch, int) and isinstance(merge, int) and patch > 0 and merge > 0:
            multiple = patch * merge
        return cls(min(stated, max_pixels), multiple)

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Returns the size to which an image is shrunk: its own size if that is small enough,
        otherwise the largest allowed one with about the same aspect ratio."""
        if width * height <= self.max_pixels:
            return width, height
        scale = math.sqrt(self.max_pixels / (width * height))
        fitted = [
            max(1, int(side * scale / self.multiple)) * self.multiple for side in (width, height)
        ]
        if math.prod(fitted) > self.max_pixels:  # a strip whose short side cannot shrink further
            fitted = [max(1, int(side * scale)) for side in (width, height)]
            longer = fitted[0] < fitted[1]
            fitted[longer] = min(fitted[longer], max(1, self.max_pixels // fitted[not longer]))
        return fitted[0], fitted[1]


Admit = Callable[[int, int], None]
"""Called before an image is decoded with the numbers of pixels during decoding and after shrinking;
raises if there are too many."""

Decode = Callable[[bytes, str, int, PixelBound, Admit], Image]
"""Decodes an image as `decode_image` does."""


def decode_image(data: bytes, name: str, max_pixels: int, bound: PixelBound, admit: Admit) -> Image:
    """Returns a decoded image as uint8 [height, width, 3]. Raises InvalidField if the image has an
    unsupported format, is corrupt, or has more than `max_pixels`.

    Args:
        name: the request field with the image.
        bound: the size to which a larger image is shrunk.
    """
    encoded = EncodedImage(data, name, max_pixels=max_pixels, bound=bound)
    admit(encoded.num_pixels, encoded.num_kept)
    return encoded.decode()


def is_available() -> bool:
    """Returns whether Pillow, of the extra `vision`, is installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        return False
    return True


class EncodedImage:
    """An image whose header has been read. Raises InvalidField if the image has an unsupported
    format, more than `max_pixels` according to its header, or too many JPEG scans.

    Attributes:
        num_pixels: the number of pixels after decoding.
        num_kept: the number of pixels after shrinking.
    """

    def __init__(self, data: bytes, name: str, *, max_pixels: int, bound: PixelBound) -> None:
        """Args:
        name: the request field with the image.
        bound: the size to which a larger image is shrunk.
        """
        if not is_available():
            raise InvalidField(
                f"{name} cannot be decoded: the extra vision of this server is not installed",
                param=name,
            )
        from PIL import Image as pillow

        pillow.MAX_IMAGE_PIXELS = None  # our own limit is applied before anything is decoded
        self._name = name
        self._max_pixels = max_pixels
        try:
            self._image: Any = pillow.open(BytesIO(data), formats=FORMATS)
        except Exception as error:  # decoders may raise any exception for a malformed file
            raise InvalidField(
                f"{name} must be an image in one of the formats {', '.join(FORMATS)}", param=name
            ) from error
        self.num_pixels = self._check_size()
        self._target = bound.fit(*self._image.size)
        self.num_kept = math.prod(self._target)
        if self._image.format in _JPEGS:
            if has_too_many_scans(data):
                raise InvalidField(f"{name} must have at most {MAX_SCANS} scans", param=name)
            # Lets the decoder scale by a half, a quarter or an eighth if that is large enough.
            with suppress(Exception):
                self._image.draft(None, self._target)

    def decode(self, *, is_mask: bool = False) -> Image:
        """Returns the decoded and shrunk image, in time proportional to its pixels; Pillow releases
        the GIL most of that time. Call this method only once. Raises InvalidField if the file is
        corrupt or needs too much memory."""
        try:
            size = self._image.size
            self._image.load()
            self._check_size()
            if self._image.size != size:
                raise ValueError("a frame of another size than the header's")
            image = _upright(self._image)
            is_turned = image.size != size
            if is_mask and image.has_transparency_data:
                image = _white_where_transparent(image)
            return _to_rgb(image, self._target[::-1] if is_turned else self._target)
        except InvalidField:
            raise
        except MemoryError as error:
            raise InvalidField(
                f"{self._name} could not be decoded: it takes too much memory", param=self._name
            ) from error
        except Exception as error:
            raise InvalidField(f"{self._name} is corrupt", param=self._name) from error

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
    """Returns an image rotated according to its EXIF data, if these are valid."""
    from PIL import ImageOps

    with suppress(Exception):
        return ImageOps.exif_transpose(image)
    return image


def _white_where_transparent(image: Any) -> Any:
    """Converts a mask in OpenAI's format, whose transparent pixels are to be repainted, to one in
    which those pixels are white and all others black."""
    from PIL import ImageOps

    return ImageOps.invert(image.convert("RGBA").getchannel("A"))


def _to_rgb(image: Any, size: tuple[int, int]) -> Image:
    """Returns the image in this size as uint8 [height, width, 3]. Transparent pixels become white,
    as in vLLM."""
    from PIL import Image as pillow

    if image.mode in _DEEP_GREY:
        grey = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        image = pillow.fromarray(grey)
    else:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.size != size:
        image = image.resize(size, pillow.Resampling.BICUBIC, reducing_gap=_REDUCING_GAP)
    if image.mode == "RGBA":
        white = pillow.new("RGBA", size, (255, 255, 255, 255))
        image = pillow.alpha_composite(white, image)
    return _pixels(image.convert("RGB"))


def _pixels(image: Any) -> Image:
    """Returns the pixels as an array. Copies them in strips, because copying holds the GIL."""
    width, height = image.size
    pixels: Image = np.empty((height, width, 3), np.uint8)
    rows = max(1, _STRIP // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, width, bottom)))
    return pixels
