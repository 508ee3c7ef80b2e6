"""Encodes samples as audio, piece by piece."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastovms.errors import EngineFailed

Samples = NDArray[np.int16]
"""Samples of one channel, int16 [N]."""

PCM_RATE: Final = 24_000
"""The sample rate of `pcm` in Hz, as in OpenAI's API, whose clients cannot read the rate from the
data."""

_UNKNOWN: Final = 0xFFFF_FFFF
_HEAD: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")


class Encoder(Protocol):
    """Encodes the pieces of one audio in order."""

    def add(self, samples: Samples, *, is_last: bool) -> bytes:
        """Returns the encoded bytes of a further piece; they may be empty."""


class _Wav:
    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._has_head = False

    def add(self, samples: Samples, *, is_last: bool) -> bytes:
        data = samples.astype("<i2").tobytes()
        if self._has_head:
            return data
        self._has_head = True
        return _wav_head(self._rate, len(data) if is_last else None) + data


def _wav_head(rate: int, size: int | None) -> bytes:
    """Returns the header of a WAV file. `size` is the bytes of its samples; None = unknown."""
    whole, rest = (_UNKNOWN, _UNKNOWN) if size is None else (size, size + _HEAD.size - 8)
    return _HEAD.pack(
        *(b"RIFF", rest, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", whole)
    )


def with_size(wav: bytes) -> bytes:
    """Returns a WAV file of this encoder with its real size in the header."""
    rate = _HEAD.unpack_from(wav)[7]
    return _wav_head(rate, len(wav) - _HEAD.size) + wav[_HEAD.size :]


class _Pcm:
    def __init__(self, rate: int) -> None:
        self._rate = rate

    def add(self, samples: Samples, *, is_last: bool) -> bytes:
        return resampled(samples, self._rate, PCM_RATE).astype("<i2").tobytes()


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """Returns samples resampled from `rate` to `wanted` Hz in the frequency domain. The samples are
    treated as periodic, so they should begin and end quietly."""
    if rate == wanted or not len(samples):
        return samples
    length = round(len(samples) * wanted / rate)
    spectrum = np.fft.rfft(samples.astype(np.float32))
    found = np.fft.irfft(spectrum, length) * (length / len(samples))
    return np.clip(np.rint(found), -(2**15), 2**15 - 1).astype(np.int16)


class _Sink:
    """Collects FFmpeg's output. There is no `seek`, so that FFmpeg does not change earlier
    output."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        found, self._pieces = b"".join(self._pieces), []
        return found


class _FFmpeg:
    """Encodes with PyAV."""

    def __init__(self, form: Format, rate: int) -> None:
        import av

        self._sink = _Sink()
        self._frames = av.AudioFrame
        self._rate = rate
        self._position = 0
        options = {"write_xing": "0"} if form.container == "mp3" else {}
        self._file: Any = av.open(self._sink, "w", format=form.container, options=options)
        stream: Any = self._file.add_stream(form.codec, rate=rate)
        stream.layout = "mono"
        if form.bit_rate:
            stream.bit_rate = form.bit_rate
        self._stream = stream

    def add(self, samples: Samples, *, is_last: bool) -> bytes:
        if len(samples):
            frame = self._frames.from_ndarray(
                np.ascontiguousarray(samples)[None], format="s16", layout="mono"
            )
            frame.sample_rate, frame.pts = self._rate, self._position
            self._position += len(samples)
            self._file.mux(self._stream.encode(frame))
        if is_last:
            self._file.mux(self._stream.encode(None))
            self._file.close()
        return self._sink.take()


class Format(NamedTuple):
    """An audio format.

    Attributes:
        container, codec: FFmpeg's names; "" = encoded without FFmpeg.
        bit_rate: bits per second; 0 = the codec's default.
    """

    media_type: str
    container: str = ""
    codec: str = ""
    bit_rate: int = 0


FORMATS: Final[Mapping[str, Format]] = {
    "mp3": Format("audio/mpeg", "mp3", "libmp3lame", 64_000),
    "opus": Format("audio/ogg", "ogg", "libopus", 32_000),
    "aac": Format("audio/aac", "adts", "aac", 64_000),
    "flac": Format("audio/flac", "flac", "flac"),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm"),
}
PLAIN: Final = ("wav", "pcm")
"""The formats that do not need PyAV."""


def encoder_of(name: str, rate: int) -> Encoder:
    """Returns an encoder. Raises EngineFailed if FFmpeg does not support the format.

    Args:
        name: one of `FORMATS`; those not in `PLAIN` need PyAV.
        rate: the sample rate of the pieces in Hz.
    """
    if name == "wav":
        return _Wav(rate)
    if name == "pcm":
        return _Pcm(rate)
    try:
        return _FFmpeg(FORMATS[name], rate)
    except Exception as error:  # PyAV has an exception for each of FFmpeg's errors
        raise EngineFailed(f"{name} cannot be encoded here: {error}") from None


def encodes(name: str) -> bool:
    """Returns whether a format can be encoded. Imports PyAV for formats that need it."""
    if name in PLAIN:
        return True
    try:
        import av  # noqa: F401
    except ImportError:
        return False
    return True
