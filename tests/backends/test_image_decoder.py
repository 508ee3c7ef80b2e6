"""Images decoded by real processes."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fastovms.backends.processes import ChildProcess
from fastovms.errors import BackendUnavailable, InvalidField, Overloaded
from fastovms.params import Image
from fastovms.parts.media.decode import PixelBound
from fastovms.parts.media.image_decoder import ImageDecoder
from tests.backends.conftest import Processes
from tests.media.pictures import corners, encode, png

MAX_PIXELS = 1000
BOUND = PixelBound(MAX_PIXELS)
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


def admit_all(num_pixels: int, num_kept: int) -> None:
    assert 0 < num_kept <= num_pixels <= MAX_PIXELS


def num_shared() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:image")


def test_image_that_is_not_admitted_is_not_decoded(decoder: ImageDecoder) -> None:
    def refuse(num_pixels: int, num_kept: int) -> None:
        raise Overloaded(f"{num_pixels} pixels")

    for _ in range(3):
        with pytest.raises(Overloaded, match="12 pixels"):
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, refuse)
    decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_costs_one_image(processes: Processes, number: signal.Signals) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=20)
    try:

        def crash(num_pixels: int, num_kept: int) -> None:
            os.kill(processes.started[-1]._process.pid, number)

        with pytest.raises(InvalidField, match="part could not be decoded: it takes too much"):
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, crash)
        decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
    finally:
        decoder.close()


def test_a_process_that_does_not_answer_is_ended(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=0.2)
    try:
        os.kill(processes.started[-1]._process.pid, signal.SIGSTOP)
        with pytest.raises(InvalidField, match="could not be decoded within"):
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
    finally:
        decoder.close()


def test_process_with_a_mismatched_answer_is_killed_and_replaced(processes: Processes) -> None:
    class Desynchronised(ImageDecoder):
        def _ask(self, *arguments: Any) -> Image:
            super()._ask(*arguments)
            raise AssertionError("an answer of another image")

    decoder = Desynchronised(processes.start, max_processes=1, timeout=20)
    try:
        first = processes.started[-1]
        with pytest.raises(AssertionError):
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
        assert first._process.returncode == -signal.SIGKILL
        with pytest.raises(AssertionError):
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
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
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
        with pytest.raises(BackendUnavailable, match="no image can be decoded now: Resource"):
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
        decoder._start = processes.start
        decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
    finally:
        decoder.close()


def test_closing_ends_what_is_decoded_at_once(processes: Processes) -> None:
    decoder = ImageDecoder(processes.start, max_processes=1, timeout=60)
    os.kill(processes.started[-1]._process.pid, signal.SIGSTOP)  # takes for ever
    failures: list[BaseException] = []

    def decode() -> None:
        try:
            decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)
        except BackendUnavailable as error:
            failures.append(error)

    first = threading.Thread(target=decode)
    first.start()
    while not decoder._idle.empty():
        time.sleep(0.01)
    start = time.monotonic()
    decoder.close()
    first.join()
    assert time.monotonic() - start < 30
    assert len(failures) == 1
    assert processes.started[-1]._process.returncode == -signal.SIGKILL
    with pytest.raises(BackendUnavailable, match="shutting down"):
        decoder.decode(png(), "part", MAX_PIXELS, BOUND, admit_all)


def test_many_at_once(decoder: ImageDecoder) -> None:
    shapes = []

    def decode(width: int) -> None:
        image = decoder.decode(png(width, 2), "part", MAX_PIXELS, BOUND, admit_all)
        shapes.append(image.shape)

    threads = [threading.Thread(target=decode, args=(width,)) for width in range(1, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(shapes) == [(2, width, 3) for width in range(1, 30)]
