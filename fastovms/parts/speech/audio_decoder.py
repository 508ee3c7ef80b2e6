"""Decodes audio files in other processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.reduction import send_handle
from typing import NamedTuple

import numpy as np

from fastovms.backends.media_processes import TIMEOUT, MediaProcesses
from fastovms.backends.processes import ChildProcess
from fastovms.parts.speech.audio import AUDIO, OnPiece
from fastovms.parts.speech.transcript import Samples
from fastovms.system.disk import UnnamedFile


class AudioFiles(NamedTuple):
    """Announces the descriptors of an audio file and of an empty file for its samples."""

    max_seconds: int


class PieceWritten(NamedTuple):
    """Reports how many bytes were written since the last report. The parent answers whether to
    continue."""

    num_bytes: int


class AudioWritten(NamedTuple):
    """Reports the end of the audio, and its length."""

    num_samples: int


class DecodedAudio:
    """Implements `Audio`: samples in an unnamed temporary file."""

    def __init__(self, file: UnnamedFile, num_samples: int) -> None:
        self._file = file
        self.num_samples = num_samples

    def read(self, start: int, count: int) -> Samples:
        data = os.pread(self._file.descriptor, 2 * min(count, self.num_samples - start), 2 * start)
        return np.frombuffer(data, np.int16)


class AudioDecoder(MediaProcesses):
    """Decodes audio files in a pool of processes; see `MediaProcesses`."""

    def __init__(self, start: Callable[[], ChildProcess], *, timeout: float = TIMEOUT) -> None:
        super().__init__("audio", start, max_processes=1, timeout=timeout)

    def decode(self, source: UnnamedFile, max_seconds: int, on_piece: OnPiece) -> DecodedAudio:
        """Decodes the audio in a file as `audio.decode_audio` does. Raises as `run` does, or
        what `on_piece` raises."""
        return self.run(AUDIO, lambda peer: self._ask(peer, source, max_seconds, on_piece))

    def _ask(
        self, peer: ChildProcess, source: UnnamedFile, max_seconds: int, on_piece: OnPiece
    ) -> DecodedAudio:
        target = UnnamedFile()
        peer.connection.send(AudioFiles(max_seconds))
        for file in (source, target):
            send_handle(peer.connection, file.descriptor, None)
        while isinstance(answer := self.answer(peer, AUDIO), PieceWritten):
            goes_on = False
            try:
                on_piece(answer.num_bytes)
                goes_on = True
            finally:
                peer.connection.send(goes_on)
        assert isinstance(answer, AudioWritten)
        return DecodedAudio(target, answer.num_samples)
