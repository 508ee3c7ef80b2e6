"""Processes that decode images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastovms.backends.processes import ChildProcess
from fastovms.parts.media.image_decoder import ImageDecoder


class Processes:
    """Starts processes and records them."""

    def __init__(self) -> None:
        self.started: list[ChildProcess] = []

    def start(self) -> ChildProcess:
        self.started.append(ChildProcess("fastovms.parts.media.image_decoder"))
        return self.started[-1]


@pytest.fixture(scope="module")
def processes() -> Processes:
    return Processes()


@pytest.fixture(scope="module")
def decoder(processes: Processes) -> Iterator[ImageDecoder]:
    decoder = ImageDecoder(processes.start, max_processes=2, timeout=60)
    yield decoder
    decoder.close()
    assert all(process._process.returncode is not None for process in processes.started)
