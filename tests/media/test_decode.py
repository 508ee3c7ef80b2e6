"""Tests of `fastovms/parts/media/decode.py`."""

from __future__ import annotations

import struct
import sys
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as pillow

from fastovms.errors import InvalidField
from fastovms.parts.media.decode import MAX_SCANS, EncodedImage, PixelBound, has_too_many_scans
from tests.media.pictures import BLUE, CORNERS, GREEN, RED, WHITE, corners, encode, png

# Files whose decoding costs more than their size suggests.


SOS, EOI = b"\xff\xda", b"\xff\xd9"
PROGRESSIVE = encode(corners(), "JPEG", progressive=True)
NUM_SCANS = PROGRESSIVE.count(SOS)
LAST = PROGRESSIVE[PROGRESSIVE.rindex(SOS) : -len(EOI)]


def with_scans(num_scans: int) -> bytes:
    return PROGRESSIVE[: -len(EOI)] + LAST * (num_scans - NUM_SCANS) + EOI


def comment(text: bytes) -> bytes:
    return b"\xff\xfe" + (len(text) + 2).to_bytes(2) + text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode(corners(), "JPEG"), False),
        (PROGRESSIVE, False),
        (with_scans(MAX_SCANS), False),
        (with_scans(MAX_SCANS + 1), True),
        (with_scans(MAX_SCANS + 1)[: -len(EOI)], True),
        (PROGRESSIVE[:2] + comment(SOS * 500) + PROGRESSIVE[2:], False),
        (PROGRESSIVE[:2] + comment(b"x") * 500 + PROGRESSIVE[2:], False),
        (PROGRESSIVE + SOS * 500, False),
        (PROGRESSIVE[:-2] + (b"\xff" * 9 + LAST) * MAX_SCANS + EOI, True),
        (b"", False),
        (b"\xff", False),
        (b"\xff" * 9, False),
        (b"\xff" * 9 + b"\x00" + LAST * (MAX_SCANS + 1), True),
        (SOS, False),
    ],
)
def test_scans_are_counted_as_a_decoder_finds_them(data, expected):
    assert has_too_many_scans(data) is expected


# Every format and mode becomes RGB; files that are no images, or too large, are refused.


NAME = "messages[0].content[1]"


def test_image_with_too_many_scans_is_refused_before_it_is_decoded(monkeypatch) -> None:
    assert decode(with_scans(MAX_SCANS)).shape == CORNERS.shape
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    with pytest.raises(InvalidField, match=f"must have at most {MAX_SCANS} scans") as error:
        decode(with_scans(MAX_SCANS + 1))
    assert error.value.param == NAME


def decode(
    data: bytes, max_pixels: int = 10_000, bound: PixelBound | None = None
) -> np.ndarray[Any, Any]:
    image = EncodedImage(data, NAME, max_pixels=max_pixels, bound=bound or PixelBound(max_pixels))
    pixels = image.decode()
    assert (pixels.dtype, pixels.shape[2], pixels.flags.c_contiguous) == (np.uint8, 3, True)
    assert image.num_kept == pixels.shape[0] * pixels.shape[1]
    assert bound or image.num_pixels == image.num_kept
    return pixels


def fields(pixels: np.ndarray[Any, Any]) -> list[list[int]]:
    """Returns the colours in the centres of the four fields, row by row."""
    height, width, _ = pixels.shape
    rows, columns = (height // 4, height * 3 // 4), (width // 4, width * 3 // 4)
    return [pixels[y, x].tolist() for y in rows for x in columns]


FORMATS = [
    ("PNG", {}),
    ("BMP", {}),
    ("GIF", {}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"quality": 100}),
    ("JPEG", {"quality": 100, "subsampling": 0}),
    ("JPEG", {"quality": 100, "subsampling": 0, "progressive": True}),
]


@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_image_of_each_format_is_decoded(kind, options):
    pixels = decode(encode(corners(), kind, **options))
    assert pixels.shape == CORNERS.shape
    np.testing.assert_allclose(fields(pixels), [RED, GREEN, BLUE, WHITE], atol=8)


def in_mode(mode: str) -> Any:
    return corners().convert(mode)


GREYS = [[value] * 3 for value in (76, 150, 29, 255)]


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (in_mode("RGBA"), "PNG", [RED, GREEN, BLUE, WHITE]),
        (in_mode("L"), "PNG", GREYS),
        (in_mode("LA"), "PNG", GREYS),
        (in_mode("L"), "JPEG", GREYS),
        (in_mode("L"), "BMP", GREYS),
        (in_mode("P"), "PNG", [RED, GREEN, BLUE, WHITE]),
        (in_mode("P"), "BMP", [RED, GREEN, BLUE, WHITE]),
        (in_mode("CMYK"), "JPEG", [RED, GREEN, BLUE, WHITE]),
        (in_mode("YCbCr"), "JPEG", [RED, GREEN, BLUE, WHITE]),
        (pillow.new("1", (32, 16), 1), "PNG", [WHITE] * 4),
    ],
    ids=lambda value: getattr(value, "mode", None),
)
def test_image_of_each_mode_is_decoded_as_rgb(image, kind, expected):
    options = {"quality": 100, "subsampling": 0} if kind == "JPEG" else {}
    np.testing.assert_allclose(fields(decode(encode(image, kind, **options))), expected, atol=8)


def test_sixteen_bits_keep_their_high_byte():
    grey = np.array([[0, 255, 256, 0x80FF, 0xFFFF]], np.uint16)
    pixels = decode(encode(pillow.fromarray(grey), "PNG"))
    assert pixels[0].tolist() == [[value] * 3 for value in (0, 0, 1, 128, 255)]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_transparent_pixels_become_white(kind):
    image = pillow.new("RGBA", (4, 4), (255, 0, 0, 255))
    image.putpixel((0, 0), (0, 0, 255, 0))
    image.putpixel((1, 0), (255, 0, 0, 128))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    pixels = decode(encode(image, kind, **options))
    assert pixels[0, 0].tolist() == list(WHITE)
    assert pixels[3, 3].tolist() == list(RED)
    assert pixels[0, 1].tolist() == ([255, 0, 0] if kind == "GIF" else [255, 127, 127])


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "MPO"])
def test_first_frame_of_an_animation_is_decoded(kind):
    frames = [pillow.new("RGB", (4, 4), color) for color in (GREEN, RED, BLUE)]
    options = {"WEBP": {"lossless": True}, "MPO": {"quality": 100}}.get(kind, {})
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_allclose(decode(data)[0, 0], GREEN, atol=2)


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [RED, GREEN, BLUE, WHITE]),
        (2, [GREEN, RED, WHITE, BLUE]),
        (3, [WHITE, BLUE, GREEN, RED]),
        (4, [BLUE, WHITE, RED, GREEN]),
        (5, [RED, BLUE, GREEN, WHITE]),
        (6, [BLUE, RED, WHITE, GREEN]),
        (7, [WHITE, GREEN, BLUE, RED]),
        (8, [GREEN, WHITE, RED, BLUE]),
        (99, [RED, GREEN, BLUE, WHITE]),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_turns_the_image(kind, orientation, expected):
    exif = pillow.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    pixels = decode(encode(corners(), kind, exif=exif, **options.get(kind, {})))
    assert pixels.shape[:2] == ((32, 16) if 5 <= orientation <= 8 else (16, 32))
    np.testing.assert_allclose(fields(pixels), expected, atol=8)


def test_broken_exif_does_not_rotate_an_image():
    data = encode(corners(), "JPEG", quality=100, subsampling=0, exif=b"Exif\0\0broken")
    assert decode(data).shape == CORNERS.shape


@pytest.mark.slow
def test_large_image_is_decoded_in_strips():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (700, 900, 3), dtype=np.uint8)
    found = decode(encode(pillow.fromarray(pixels), "PNG", compress_level=1), 10**6)
    np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
        b"%PDF-1.4",
        encode(corners(), "TIFF"),
        encode(corners(), "PPM"),
        encode(corners(), "ICO"),
    ],
)
def test_data_of_another_format_is_refused(data):
    with pytest.raises(InvalidField, match="must be an image in one of the formats PNG, JPEG") as e:
        EncodedImage(data, NAME, max_pixels=10_000, bound=PixelBound(10_000))
    assert e.value.param == NAME


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_truncated_image_is_refused(kind):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encode(pillow.fromarray(noise), kind)
    with pytest.raises(InvalidField, match=r"is corrupt|must be an image"):
        decode(data[: len(data) // 2])


def bomb(width: int, height: int) -> bytes:
    """Returns a PNG whose header claims more pixels than it has."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    "data", [bomb(100_000, 100_000), bomb(2**31 - 1, 1), png(101, 100), bomb(101, 100)]
)
def test_too_many_pixels_are_refused_by_the_header(data, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    with pytest.raises(InvalidField, match="must have at most 10000 pixels, not") as error:
        EncodedImage(data, NAME, max_pixels=10_000, bound=PixelBound(10_000))
    assert error.value.param == NAME


def test_frame_larger_than_the_header_is_refused():
    data = bytearray(encode(pillow.new("RGB", (200, 200), RED), "GIF"))
    data[6:10] = struct.pack("<HH", 10, 10)  # the screen that contains the frame
    with pytest.raises(InvalidField, match="must have at most 10000 pixels, not 40000"):
        decode(bytes(data))


QWEN = {"max_pixels": 50_176, "patch_size": 14, "merge_size": 2}


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        ({}, PixelBound(1000_000)),
        (QWEN, PixelBound(50_176, 28)),
        ({**QWEN, "max_pixels": 12_845_056}, PixelBound(1000_000, 28)),
        ({**QWEN, "max_pixels": None, "size": {"longest_edge": 50_176}}, PixelBound(50_176, 28)),
        ({"size": {"longest_edge": 512}}, PixelBound(512 * 512)),
        ({"size": {"longest_edge": 2048}}, PixelBound(1000_000)),
        ({"size": {"height": 384, "width": 384}, "patch_size": 14}, PixelBound(1000_000)),
        ({"size": 448, "max_pixels": "many"}, PixelBound(1000_000)),
        ({"max_pixels": True}, PixelBound(1000_000)),
        ({"max_pixels": -1}, PixelBound(1000_000)),
        ({"max_pixels": 100, "patch_size": [14], "merge_size": 0}, PixelBound(100)),
    ],
)
def test_pixel_bound_is_the_lower_of_option_and_processor(processor, expected):
    assert PixelBound.of(processor, 1000_000) == expected


@pytest.mark.parametrize(
    ("size", "bound", "expected"),
    [
        ((224, 224), PixelBound(50_176, 28), (224, 224)),
        ((5, 5), PixelBound(50_176, 28), (5, 5)),
        ((5792, 5792), PixelBound(50_176, 28), (224, 224)),
        ((5792, 5792), PixelBound(1_000_000), (1000, 1000)),
        ((4000, 1000), PixelBound(50_176, 28), (448, 112)),
        ((1000, 4000), PixelBound(50_176, 28), (112, 448)),
        ((30_000, 10), PixelBound(50_176, 28), (12268, 4)),
        ((33_000_000, 1), PixelBound(1000, 28), (1000, 1)),
        ((1, 33_000_000), PixelBound(1000), (1, 1000)),
        ((100, 100), PixelBound(1, 28), (1, 1)),
    ],
)
def test_large_image_is_fitted_to_the_bound(size, bound, expected):
    assert bound.fit(*size) == expected
    assert expected[0] * expected[1] <= max(bound.max_pixels, size[0] * size[1])


@pytest.mark.parametrize("turn", [1, 3, 6, 8])
@pytest.mark.parametrize(("kind", "options"), FORMATS)
def test_large_image_of_each_format_is_shrunk(kind, options, turn):
    exif = pillow.Exif()
    exif[0x0112] = turn
    large = corners().resize((640, 320), pillow.Resampling.NEAREST)
    if kind in ("JPEG", "PNG", "WEBP"):
        options = {**options, "exif": exif}
    data = encode(large, kind, **options)
    pixels = decode(data, 10**6, PixelBound(10_000))
    whole = decode(data, 10**6)
    tall = whole.shape[0] > whole.shape[1]
    assert pixels.shape[:2] == ((141, 70) if tall else (70, 141))
    np.testing.assert_allclose(fields(pixels), fields(whole), atol=8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_large_image_of_each_mode_is_shrunk(mode):
    data = encode(pillow.new("L", (200, 100), 255).convert(mode), "PNG")
    assert decode(data, 10**6, PixelBound(5000)).shape == (50, 100, 3)


def test_image_without_pillow_is_refused_by_the_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InvalidField, match="the extra vision of this server is not installed"):
        EncodedImage(png(), NAME, max_pixels=10, bound=PixelBound(10))


@pytest.mark.slow
@given(st.binary(max_size=200), st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]), st.data())
def test_damaged_image_is_decoded_or_refused(noise, kind, data):
    whole = encode(corners(), kind)
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    with suppress(InvalidField):
        decode(damaged)
