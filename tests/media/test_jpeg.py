"""Files whose scans cost more than their bytes and pixels say."""

from __future__ import annotations

import time

import pytest
from PIL import Image as pillow

from fastovms.errors import InvalidField
from fastovms.media.decode import EncodedImage, PixelBound
from fastovms.media.jpeg import MAX_SCANS, has_too_many_scans
from tests.media.pictures import corners, encode

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


def test_a_run_of_fill_bytes_is_read_once():
    data = PROGRESSIVE[:2] + b"\xff" * 30_000
    started = time.thread_time()
    for end in (b"", b"\x00"):
        assert not has_too_many_scans(data + end)
    assert time.thread_time() - started < 1


def test_too_many_are_refused_before_they_are_decoded():
    decoded = EncodedImage(
        with_scans(MAX_SCANS), "part", max_pixels=10_000, bound=PixelBound(10_000)
    ).decode()
    assert decoded.shape == (16, 32, 3)
    with pytest.raises(InvalidField, match=f"part must have at most {MAX_SCANS} scans") as error:
        EncodedImage(with_scans(MAX_SCANS + 1), "part", max_pixels=10_000, bound=PixelBound(10_000))
    assert error.value.param == "part"


def test_several_images_in_one_file():
    several = encode(corners(), "MPO", save_all=True, append_images=[pillow.new("RGB", (8, 8))])
    assert EncodedImage(
        several, "part", max_pixels=10_000, bound=PixelBound(10_000)
    ).decode().shape == (16, 32, 3)
