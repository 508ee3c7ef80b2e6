"""The process that decodes images: pixels, faults and limits."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from fastovms.errors import InvalidField
from fastovms.parts.media.decode import PixelBound, decode_image
from fastovms.parts.media.image_decoder import ImageDecoder
from tests.backends.test_image_decoder import (
    BOUND,
    MAX_PIXELS,
    PICTURES,
    Processes,
    admit_all,
    num_shared,
)
from tests.media.pictures import corners, encode, png


@pytest.mark.parametrize("name", PICTURES)
def test_the_pixels_are_those_of_the_server_itself(decoder: ImageDecoder, name: str) -> None:
    image = decoder.decode(PICTURES[name], "part", MAX_PIXELS, BOUND, admit_all)
    expected = decode_image(PICTURES[name], "part", MAX_PIXELS, BOUND, admit_all)
    assert image.dtype == expected.dtype
    np.testing.assert_array_equal(image, expected)
    assert num_shared() == 1
    del image
    assert num_shared() == 0


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_only_the_pixels_that_a_model_uses_come_back(decoder: ImageDecoder, kind: str) -> None:
    admitted: list[tuple[int, int]] = []
    data = encode(corners().resize((900, 300)), kind)
    image = decoder.decode(
        data, "part", 10**6, PixelBound(30_000, 10), lambda *n: admitted.append(n)
    )
    assert (image.shape, admitted) == ((100, 300, 3), [(270_000, 30_000)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be an image in one of the formats"),
        (b"nonsense", "must be an image in one of the formats"),
        (png(1000, 2), "must have at most 1000 pixels, not 2000"),
        (encode(corners(), "JPEG")[:-20], "is damaged"),
    ],
)
def test_invalid_image_is_refused_with_its_field(
    decoder: ImageDecoder, data: bytes, message: str
) -> None:
    with pytest.raises(InvalidField, match=message) as caught:
        decoder.decode(data, "part[3]", MAX_PIXELS, BOUND, admit_all)
    assert caught.value.param == "part[3]"
    decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
    assert num_shared() == 0


def test_the_limits_of_whoever_has_started_the_server_stay(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=20)
    try:
        pid = processes.started[-1]._process.pid
        resource.prlimit(pid, resource.RLIMIT_CPU, (10, 10))
        decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
        assert resource.prlimit(pid, resource.RLIMIT_CPU) == (10, 10)
    finally:
        decoder.close()
