"""Tests of images decoded by real processes: pixels, errors and limits."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastovms.backends.processes import ChildProcess
from fastovms.errors import BackendUnavailable, InvalidField, Overloaded
from fastovms.params import Image
from fastovms.parts.media.decode import Admit, PixelBound, decode_image
from fastovms.parts.media.image_decoder import ImageDecoder
from tests.backends.conftest import Processes
from tests.media.pictures import corners, encode, png

MAX_PIXELS = 1000
BOUND = PixelBound(MAX_PIXELS)
TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
PICTURES = {
    "png": png(),
    "jpeg": encode(corners(), "JPEG", quality=95),
    "turned": encode(corners(), "JPEG", exif=TURNED),
    "grey": encode(corners().convert("L"), "PNG"),
}


def admit_all(num_pixels: int, num_kept: int) -> None:
    assert 0 < num_kept <= num_pixels <= MAX_PIXELS


def decode(decoder: ImageDecoder, data: bytes = PICTURES["png"], admit: Admit = admit_all) -> Image:
    return decoder.decode(data, "part[3]", MAX_PIXELS, BOUND, admit)


@contextmanager
def one_process(
    processes: Processes, timeout: float = 20, kind: type[ImageDecoder] = ImageDecoder
) -> Iterator[tuple[ImageDecoder, int]]:
    """Returns a decoder with one process, and the process's id."""
    decoder = kind(processes.start, max_processes=1, timeout=timeout)
    try:
        yield decoder, processes.started[-1]._process.pid
    finally:
        decoder.close()


def num_shared() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:image")


@pytest.mark.parametrize("name", PICTURES)
def test_pixels_are_those_that_the_server_decodes_itself(decoder: ImageDecoder, name: str) -> None:
    image = decode(decoder, PICTURES[name])
    expected = decode_image(PICTURES[name], "part", MAX_PIXELS, BOUND, admit_all)
    assert image.dtype == expected.dtype
    np.testing.assert_array_equal(image, expected)
    assert num_shared() == 1
    del image
    assert num_shared() == 0


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_only_the_pixels_that_a_model_uses_come_back(decoder: ImageDecoder, kind: str) -> None:
    admitted: list[tuple[int, int]] = []
    data, bound = encode(corners().resize((900, 300)), kind), PixelBound(30_000, 10)
    image = decoder.decode(data, "part", 10**6, bound, lambda *n: admitted.append(n))
    assert (image.shape, admitted) == ((100, 300, 3), [(270_000, 30_000)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be an image in one of the formats"),
        (b"nonsense", "must be an image in one of the formats"),
        (png(1000, 2), "must have at most 1000 pixels, not 2000"),
        (encode(corners(), "JPEG")[:-20], "is corrupt"),
    ],
)
def test_invalid_image_is_refused_with_its_field(
    decoder: ImageDecoder, data: bytes, message: str
) -> None:
    with pytest.raises(InvalidField, match=message) as caught:
        decode(decoder, data)
    assert caught.value.param == "part[3]"
    decode(decoder)
    assert num_shared() == 0


def test_image_that_is_not_admitted_is_not_decoded(decoder: ImageDecoder) -> None:
    def refuse(num_pixels: int, num_kept: int) -> None:
        raise Overloaded(f"{num_pixels} pixels")

    for _ in range(3):
        with pytest.raises(Overloaded, match="12 pixels"):
            decode(decoder, admit=refuse)
    decode(decoder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_costs_one_image(processes: Processes, number: signal.Signals) -> None:
    with one_process(processes) as (decoder, pid):
        with pytest.raises(InvalidField, match=r"part\[3\] could not be .*: it takes too much"):
            decode(decoder, admit=lambda *_: os.kill(pid, number))
        decode(decoder)


def test_limits_of_whoever_has_started_the_server_stay(processes: Processes) -> None:
    with one_process(processes) as (decoder, pid):
        resource.prlimit(pid, resource.RLIMIT_CPU, (10, 10))
        decode(decoder)
        assert resource.prlimit(pid, resource.RLIMIT_CPU) == (10, 10)


def test_a_process_that_does_not_answer_is_ended(processes: Processes) -> None:
    with one_process(processes, timeout=0.2) as (decoder, pid):
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(InvalidField, match="could not be decoded within"):
            decode(decoder)


def test_process_with_a_mismatched_answer_is_killed_and_replaced(processes: Processes) -> None:
    class Desynchronised(ImageDecoder):
        def _ask(self, *arguments: Any) -> Image:
            super()._ask(*arguments)
            raise AssertionError("an answer of another image")

    with one_process(processes, kind=Desynchronised) as (decoder, _):
        first = processes.started[-1]
        with pytest.raises(AssertionError):
            decode(decoder)
        assert first._process.returncode == -signal.SIGKILL
        with pytest.raises(AssertionError):
            decode(decoder)
        assert processes.started[-1] is not first


def test_a_process_that_cannot_be_started_is_no_fault_of_the_image(processes: Processes) -> None:
    def fail() -> ChildProcess:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with one_process(processes) as (decoder, pid):
        decoder._start = fail
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(InvalidField):
            decode(decoder)
        with pytest.raises(BackendUnavailable, match="no image can be decoded now: Resource"):
            decode(decoder)
        decoder._start = processes.start
        decode(decoder)


def test_closing_ends_what_is_decoded_at_once(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=60)
    os.kill(processes.started[-1]._process.pid, signal.SIGSTOP)  # takes forever
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            decode(decoder)
        except BackendUnavailable as error:
            failures.append(error)

    first = threading.Thread(target=ask)
    first.start()
    while not decoder._idle.empty():
        time.sleep(0.01)
    decoder.close()
    first.join(60)
    assert len(failures) == 1
    assert processes.started[-1]._process.returncode == -signal.SIGKILL
    with pytest.raises(BackendUnavailable, match="shutting down"):
        decode(decoder)


def test_images_of_many_threads_are_decoded_apart(decoder: ImageDecoder) -> None:
    with ThreadPoolExecutor(30) as executor:
        images = executor.map(lambda width: decode(decoder, png(width)), range(1, 30))
        assert [image.shape for image in images] == [(3, width, 3) for width in range(1, 30)]
