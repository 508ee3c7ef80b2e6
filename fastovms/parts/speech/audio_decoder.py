"""Decodes audio files in separate processes, which run `serve`."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Final, NamedTuple

import numpy as np

from fastovms.backends.processes import ChildProcess, set_soft_limit
from fastovms.errors import InvalidField
from fastovms.parts.media.decoders import TIMEOUT, DecoderPool, Refused, limit_decoder
from fastovms.parts.speech.audio import AUDIO, OnPiece, decode_audio, is_available
from fastovms.parts.speech.transcript import Samples
from fastovms.system.disk import UnnamedFile
from fastovms.system.memory import find_trim

_MAX_MEMORY: Final = 2 * 2**30
_MAX_SECONDS: Final = 20
"""The maximum CPU seconds for the header of a file and the first minute of its audio."""

_SECONDS_A_MINUTE: Final = 1.0
"""The maximum CPU seconds for each further minute, several times the usual ones."""


class AudioFiles(NamedTuple):
    """Announces the file descriptors of an audio file and of an empty file for the samples."""

    max_seconds: int


class PieceWritten(NamedTuple):
    """Reports the number of bytes written since the last report. The parent answers whether to
    continue."""

    num_bytes: int


class AudioWritten(NamedTuple):
    """Reports the end of the audio, and its number of samples."""

    num_samples: int


class DecodedAudio:
    """Implements `Audio` with samples in an unnamed temporary file."""

    def __init__(self, file: UnnamedFile, num_samples: int) -> None:
        self._file = file
        self.num_samples = num_samples

    def read(self, start: int, count: int) -> Samples:
        data = os.pread(self._file.descriptor, 2 * min(count, self.num_samples - start), 2 * start)
        return np.frombuffer(data, np.int16)


class AudioDecoder(DecoderPool):
    """Decodes audio files in a pool of processes."""

    def __init__(
        self,
        start: Callable[[], ChildProcess] | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(
            "audio", start or partial(ChildProcess, __name__), max_processes=1, timeout=timeout
        )

    def decode(self, source: UnnamedFile, max_seconds: int, on_piece: OnPiece) -> DecodedAudio:
        """Decodes the audio in a file as `audio.decode_audio` does. Raises as `run` does, and the
        exceptions of `on_piece`."""
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


class _Stopped(Exception):
    """Raised if the parent cancels the decoding."""


def serve(connection: Connection[Any, Any]) -> None:
    """Decodes the files that `AudioDecoder` sends, until the connection closes."""
    is_available()  # import the decoder now, so that the first file does not wait for it
    limit_decoder(_MAX_MEMORY)
    trim = find_trim()
    while True:
        asked: AudioFiles = connection.recv()
        source, target = recv_handle(connection), recv_handle(connection)
        with contextlib.suppress(_Stopped), open(source, "rb") as file, open(target, "wb") as to:
            try:
                connection.send(_decode(connection, asked, file, to))
            except InvalidField as error:
                connection.send(Refused(error.message))
            except MemoryError:
                connection.send(Refused("file could not be decoded: it takes too much memory"))
        trim()


def _decode(
    connection: Connection[Any, Any], asked: AudioFiles, source: Any, target: Any
) -> AudioWritten:
    left = time.process_time() + _MAX_SECONDS
    set_soft_limit(resource.RLIMIT_CPU, math.ceil(left))

    def on_piece(num_bytes: int) -> None:
        nonlocal left
        left += _SECONDS_A_MINUTE
        set_soft_limit(resource.RLIMIT_CPU, math.ceil(left))
        connection.send(PieceWritten(num_bytes))
        if not connection.recv():
            raise _Stopped

    source.seek(0)
    return AudioWritten(decode_audio(source, target, asked.max_seconds, on_piece))
