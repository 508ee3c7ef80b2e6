"""Images decoded by real processes."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastovms.backends.images.image_decoder import ImageDecoder
from fastovms.backends.processes.process import ChildProcess
from fastovms.errors import BackendUnavailable, InvalidField, Overloaded
from fastovms.media.decode import decode_image
from fastovms.params import Image
from tests.media.pictures import corners, encode, png

MAX_PIXELS = 1000
PICTURES = {
    "png": png(),
    "jpeg": encode(corners(), "JPEG", quality=95),
    "turned": encode(
        corners(),
        "JPEG",
        exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
    ),
    "grey": encode(corners().convert("L"), "PNG"),
}


class Processes:
    """Starts processes and remembers them."""

    def __init__(self) -> None:
        self.started: list[ChildProcess] = []

    def start(self) -> ChildProcess:
        self.started.append(ChildProcess("fastovms.backends.images.image_process"))
        return self.started[-1]

    def kill(self, number: signal.Signals) -> None:
        for process in self.started:
            os.kill(process._process.pid, number)


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes()


@pytest.fixture(scope="module")
def decoder(processes: Processes) -> Iterator[ImageDecoder]:
    decoder = ImageDecoder(processes.start, max_processes=2, timeout=20)
    yield decoder
    decoder.close()
    assert all(process._process.returncode is not None for process in processes.started)


def admit_all(num_pixels: int) -> None:
    assert 0 < num_pixels <= MAX_PIXELS


def num_shared() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:image")


@pytest.mark.parametrize("name", PICTURES)
def test_the_pixels_are_those_of_the_server_itself(decoder: ImageDecoder, name: str) -> None:
    image = decoder.decode(PICTURES[name], "part", MAX_PIXELS, admit_all)
    expected = decode_image(PICTURES[name], "part", MAX_PIXELS, admit_all)
    assert image.dtype == expected.dtype
    np.testing.assert_array_equal(image, expected)
    assert num_shared() == 1
    del image
    assert num_shared() == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be an image in one of the formats"),
        (b"nonsense", "must be an image in one of the formats"),
        (png(1000, 2), "must have at most 1000 pixels, not 2000"),
        (encode(corners(), "JPEG")[:-20], "is damaged"),
    ],
)
def test_what_is_at_fault(decoder: ImageDecoder, data: bytes, message: str) -> None:
    with pytest.raises(InvalidField, match=message) as caught:
        decoder.decode(data, "part[3]", MAX_PIXELS, admit_all)
    assert caught.value.param == "part[3]"
    decoder.decode(png(), "part", MAX_PIXELS, admit_all)
    assert num_shared() == 0


def test_what_is_not_admitted_is_not_decoded(decoder: ImageDecoder) -> None:
    def refuse(num_pixels: int) -> None:
        raise Overloaded(f"{num_pixels} pixels")

    for _ in range(3):
        with pytest.raises(Overloaded, match="12 pixels"):
            decoder.decode(png(), "part", MAX_PIXELS, refuse)
    decoder.decode(png(), "part", MAX_PIXELS, admit_all)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_costs_one_image(processes: Processes, number: signal.Signals) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=20)
    try:

        def crash(num_pixels: int) -> None:
            os.kill(processes.started[-1]._process.pid, number)

        with pytest.raises(InvalidField, match="part could not be decoded: it takes too much"):
            decoder.decode(png(), "part", MAX_PIXELS, crash)
        decoder.decode(png(), "part", MAX_PIXELS, admit_all)
    finally:
        decoder.close()


def test_a_process_that_does_not_answer_is_ended(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=0.2)
    try:
        os.kill(processes.started[-1]._process.pid, signal.SIGSTOP)
        with pytest.raises(InvalidField, match="could not be decoded within"):
            decoder.decode(png(), "part", MAX_PIXELS, admit_all)
    finally:
        decoder.close()


def test_a_process_that_answers_something_else_is_ended(processes: Processes) -> None:
    class Desynchronised(ImageDecoder):
        def _ask(self, *arguments: Any) -> Image:
            super()._ask(*arguments)
            raise AssertionError("an answer of another image")

    decoder = Desynchronised(processes.start, max_processes=1, timeout=20)
    try:
        first = processes.started[-1]
        with pytest.raises(AssertionError):
            decoder.decode(png(), "part", MAX_PIXELS, admit_all)
        assert first._process.returncode == -signal.SIGKILL
        with pytest.raises(AssertionError):
            decoder.decode(png(), "part", MAX_PIXELS, admit_all)
        assert processes.started[-1] is not first
    finally:
        decoder.close()


def test_a_process_that_cannot_be_started_is_no_fault_of_the_image(processes: Processes) -> None:
    def fail() -> ChildProcess:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    decoder = ImageDecoder(processes.start, max_processes=1, timeout=20)
    try:
        decoder._start = fail
        os.kill(processes.started[-1]._process.pid, signal.SIGKILL)
        with pytest.raises(InvalidField):
            decoder.decode(png(), "part", MAX_PIXELS, admit_all)
        with pytest.raises(Overloaded, match="no image can be decoded now: Resource"):
            decoder.decode(png(), "part", MAX_PIXELS, admit_all)
        decoder._start = processes.start
        decoder.decode(png(), "part", MAX_PIXELS, admit_all)
    finally:
        decoder.close()


def test_closing_ends_what_is_decoded_at_once(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=60)
    os.kill(processes.started[-1]._process.pid, signal.SIGSTOP)  # takes for ever
    failures: list[BaseException] = []

    def decode() -> None:
        try:
            decoder.decode(png(), "part", MAX_PIXELS, admit_all)
        except BackendUnavailable as error:
            failures.append(error)

    first = threading.Thread(target=decode)
    first.start()
    while not decoder._idle.empty():
        time.sleep(0.01)
    start = time.monotonic()
    decoder.close()
    first.join()
    assert time.monotonic() - start < 1.5
    assert len(failures) == 1
    assert processes.started[-1]._process.returncode == -signal.SIGKILL
    with pytest.raises(BackendUnavailable, match="shutting down"):
        decoder.decode(png(), "part", MAX_PIXELS, admit_all)


def test_the_limits_of_whoever_has_started_the_server_stay(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=20)
    try:
        pid = processes.started[-1]._process.pid
        resource.prlimit(pid, resource.RLIMIT_CPU, (10, 10))
        decoder.decode(png(), "part", MAX_PIXELS, admit_all)
        assert resource.prlimit(pid, resource.RLIMIT_CPU) == (10, 10)
    finally:
        decoder.close()


def test_many_at_once(decoder: ImageDecoder) -> None:
    shapes = []

    def decode(width: int) -> None:
        image = decoder.decode(png(width, 2), "part", MAX_PIXELS, admit_all)
        shapes.append(image.shape)

    threads = [threading.Thread(target=decode, args=(width,)) for width in range(1, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(shapes) == [(2, width, 3) for width in range(1, 30)]
