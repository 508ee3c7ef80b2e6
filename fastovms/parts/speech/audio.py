"""Decodes audio files to samples for speech models."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import numpy as np

from fastovms.errors import InvalidField
from fastovms.parts.speech.transcript import SAMPLE_RATE

AUDIO: Final = "file"
"""The request field with the audio file."""

FORMATS: Final = {
    "wav": "WAV",
    "mp3": "MP3",
    "mov": "MP4 (m4a, mp4, mov)",
    "flac": "FLAC",
    "ogg": "Ogg (Opus, Vorbis, FLAC)",
    "matroska": "WebM and Matroska",
    "aac": "AAC (ADTS)",
    "aiff": "AIFF",
    "caf": "CAF",
}
"""The supported containers, by the names of FFmpeg's demuxers. None of them can refer to further
files or addresses, as playlists do."""

_CODECS: Final = (
    *("mp3", "mp3float", "mp2", "mp2float", "aac", "alac", "flac", "vorbis", "opus", "libopus"),
    *("pcm_alaw", "pcm_mulaw", "adpcm_ms", "adpcm_ima_wav", "adpcm_ima_qt", "pcm_u8", "pcm_s8"),
    *(f"pcm_{kind}{end}" for kind in ("s16", "s24", "s32", "f32", "f64") for end in ("le", "be")),
)
"""The codecs that are decoded. Video in the same file is ignored."""

_WITH_EXACT_LENGTH: Final = frozenset(("wav", "flac", "mov", "matroska", "aiff", "caf"))
"""The containers whose headers state the length; the length of others is estimated from a part."""

_MAX_CHANNELS: Final = 8
_RATES: Final = range(4_000, 384_001)
_PIECE: Final = 60 * SAMPLE_RATE
"""The number of samples after which the progress is reported."""

_MISSING_SHARE: Final = 0.1
_MISSING_SECONDS: Final = 0.5
"""The audio may be shorter than the length in the file's header by this share of it, plus these
seconds."""

_UNKNOWN_LENGTH: Final = 0x7FFF_0000
"""Lengths from this number on stand for an unknown length in the header of a WAV file."""

OnPiece = Callable[[int], None]
"""Called with the number of bytes of each further piece after it was written. May raise an
exception to end the decoding."""


def is_available() -> bool:
    """Returns whether PyAV, of the extra `speech`, is installed."""
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True


class _Source:
    """A file for FFmpeg. A seek to an invalid position, as in corrupt files, returns an error code,
    because PyAV prints exceptions."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read, self.tell = file.read, file.tell

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        try:
            return self._file.seek(offset, whence)
        except (OSError, ValueError):
            return -errno.EINVAL


def decode_audio(source: BinaryIO, target: BinaryIO, max_seconds: int, on_piece: OnPiece) -> int:
    """Decodes the first audio stream of a file, and returns the number of samples. Raises
    InvalidField if the file has an unsupported format, is corrupt, truncated or too long.

    Args:
        source: the encoded file.
        target: receives the samples: int16, one channel, `SAMPLE_RATE`.
        max_seconds: the maximum length of the audio.
    """
    import av

    _check_wav(source)
    options = {
        "format_whitelist": ",".join(FORMATS),
        "codec_whitelist": ",".join(_CODECS),
        "protocol_whitelist": "none",
    }
    try:
        # The file name is not used: FFmpeg detects the format from the content.
        container: Any = av.open(_Source(source), options=options)
    except MemoryError:
        raise
    except Exception:  # errors of FFmpeg, and of reads at invalid positions
        raise InvalidField(
            f"{AUDIO} is corrupt, or not in one of the formats {', '.join(FORMATS.values())}",
            param=AUDIO,
        ) from None
    with container:
        stream = _audio_stream(container)
        claimed = (container.duration or 0) / av.time_base
        is_honest = not _WITH_EXACT_LENGTH.isdisjoint(container.format.name.split(","))
        if is_honest and claimed > max_seconds:
            raise _too_long(max_seconds, claimed)
        num_samples = _write(container, stream, target, max_seconds * SAMPLE_RATE, on_piece)
    seconds = num_samples / SAMPLE_RATE
    if not num_samples:
        raise InvalidField(f"{AUDIO} has no audio", param=AUDIO)
    if is_honest and seconds < claimed * (1 - _MISSING_SHARE) - _MISSING_SECONDS:
        raise InvalidField(
            f"{AUDIO} is truncated: its header claims {claimed:.1f} seconds, and it has "
            f"{seconds:.1f}",
            param=AUDIO,
        )
    return num_samples


def _check_wav(source: BinaryIO) -> None:
    """Raises InvalidField if a WAV file is shorter than its header says."""
    head = source.read(8)
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    claimed = int.from_bytes(head[4:], "little")
    if head[:4] == b"RIFF" and size < claimed + 8 and claimed < _UNKNOWN_LENGTH:
        raise InvalidField(
            f"{AUDIO} is truncated: its header claims {claimed + 8} bytes, and it has {size}",
            param=AUDIO,
        )


def _audio_stream(container: Any) -> Any:
    """Returns the first audio stream. Raises InvalidField if there is none, or its codec, sample
    rate or number of channels is not supported."""
    if not container.streams.audio:
        raise InvalidField(f"{AUDIO} has no audio stream", param=AUDIO)
    stream = container.streams.audio[0]
    codec = stream.codec_context
    if codec is None or codec.name not in _CODECS:
        name = "of an unknown kind" if codec is None else codec.name
        raise InvalidField(f"{AUDIO} has audio that is not supported ({name})", param=AUDIO)
    if not 1 <= codec.channels <= _MAX_CHANNELS:
        raise InvalidField(
            f"{AUDIO} must have 1 to {_MAX_CHANNELS} channels, not {codec.channels}", param=AUDIO
        )
    if codec.sample_rate not in _RATES:
        raise InvalidField(
            f"{AUDIO} must have {_RATES[0]} to {_RATES[-1]} samples a second, not "
            f"{codec.sample_rate}",
            param=AUDIO,
        )
    codec.thread_count = 1
    return stream


def _write(
    container: Any, stream: Any, target: BinaryIO, max_samples: int, on_piece: OnPiece
) -> int:
    num_samples = num_reported = 0
    for samples in _resampled(container, stream):
        num_samples += len(samples)
        if num_samples > max_samples:
            raise _too_long(max_samples // SAMPLE_RATE)
        target.write(samples.tobytes())
        if num_samples - num_reported >= _PIECE:
            on_piece((num_samples - num_reported) * samples.itemsize)
            num_reported = num_samples
    target.flush()
    on_piece((num_samples - num_reported) * 2)
    return num_samples


def _resampled(container: Any, stream: Any) -> Iterator[np.ndarray[Any, np.dtype[np.int16]]]:
    """Yields the samples of a stream in pieces, int16 [N]. Raises InvalidField if the file is
    corrupt."""
    import av

    resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE)
    num_frames = 0
    try:
        for frame in container.decode(stream):
            num_frames += 1
            for part in resampler.resample(frame):
                yield part.to_ndarray()[0]
        for part in resampler.resample(None) if num_frames else ():
            yield part.to_ndarray()[0]
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, EOFError) and num_frames:
            return
        raise InvalidField(f"{AUDIO} is corrupt: {_reason(error)}", param=AUDIO) from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _too_long(max_seconds: int, claimed: float | None = None) -> InvalidField:
    found = "" if claimed is None else f", not {claimed:.0f}"
    return InvalidField(
        f"{AUDIO} must have at most {max_seconds} seconds of audio{found}", param=AUDIO
    )
