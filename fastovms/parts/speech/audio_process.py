"""The process that decodes audio files: `python -m fastovms.parts.speech.audio_process DESCRIPTOR`.

FFmpeg's libraries are native code that reads untrusted bytes. A crash loses only one file.
"""

from __future__ import annotations

import contextlib
import math
import resource
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, Final

from fastovms.backends.media_processes import Refused
from fastovms.backends.processes import run_media_process, set_soft_limit
from fastovms.errors import InvalidField
from fastovms.parts.speech.audio import decode_audio, is_available
from fastovms.parts.speech.audio_decoder import AudioFiles, AudioWritten, PieceWritten
from fastovms.system.memory import find_trim

_MAX_MEMORY: Final = 2 * 2**30
_MAX_SECONDS: Final = 20
"""CPU seconds that the head of a file and the first minute of its audio may take."""

_SECONDS_A_MINUTE: Final = 1.0
"""CPU seconds that each further minute may take: several times as many as it needs."""


class _Stopped(Exception):
    """The parent wants no more of this audio."""


def serve(connection: Connection[Any, Any]) -> None:
    """Answers files as `AudioDecoder` asks, until the connection ends."""
    trim = find_trim()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            asked: AudioFiles = connection.recv()
            source, target = recv_handle(connection), recv_handle(connection)
            with (
                contextlib.suppress(_Stopped),
                open(source, "rb") as file,
                open(target, "wb") as to,
            ):
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


if __name__ == "__main__":
    run_media_process(serve, prepare=is_available, max_memory=_MAX_MEMORY)
