"""Tests of `fastovms/parts/speech/audio.py`."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fastovms.errors import InvalidField, Overloaded
from fastovms.parts.speech.audio import decode_audio
from fastovms.parts.speech.transcript import SAMPLE_RATE
from tests.speech_models import encoded, sound, wav

SOUND = sound(2.0)
LIMIT = 100


def decode(data: bytes, max_seconds: int = LIMIT) -> np.ndarray:
    target = io.BytesIO()
    pieces: list[int] = []
    num_samples = decode_audio(io.BytesIO(data), target, max_seconds, pieces.append)
    samples = np.frombuffer(target.getvalue(), np.int16)
    assert num_samples == len(samples) == sum(pieces) // 2
    return samples


def test_samples_at_the_rate_of_the_model_are_unchanged() -> None:
    np.testing.assert_array_equal(decode(wav(SOUND)), SOUND)
    stereo = decode(wav(SOUND, channels=2))
    np.testing.assert_allclose(stereo, SOUND, atol=2)


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp3", "mp3"),
        ("mp4", "aac"),
        ("ipod", "aac"),
        ("mov", "alac"),
        ("adts", "aac"),
        ("flac", "flac"),
        ("ogg", "libopus"),
        ("webm", "libopus"),
        ("matroska", "aac"),
        ("aiff", "pcm_s16be"),
        ("caf", "pcm_s16le"),
    ],
)
def test_every_container_is_decoded_to_the_same_sound(container: str, codec: str) -> None:
    found = decode(encoded(container, codec, SOUND))
    assert abs(len(found) - len(SOUND)) < SAMPLE_RATE / 5
    spectra = [np.abs(np.fft.rfft(each[: SAMPLE_RATE * 3 // 2])) for each in (found, SOUND)]
    smooth = [np.convolve(each, np.ones(40), "same") for each in spectra]
    assert np.corrcoef(*smooth)[0, 1] > 0.9


def test_wav_of_unknown_length_is_read_to_its_end() -> None:
    data = bytearray(wav(SOUND))
    for claimed in (0xFFFF_FFFF, 0x7FFF_FFFF):
        data[4:8] = data[40:44] = struct.pack("<I", claimed)
        np.testing.assert_array_equal(decode(bytes(data)), SOUND)


def _rf64(claimed: int) -> bytes:
    data = wav(SOUND)
    sizes = struct.pack("<IQQQI", 28, claimed + 72, claimed, claimed // 2, 0)
    unknown = struct.pack("<I", 0xFFFF_FFFF)
    return b"RF64" + unknown + b"WAVEds64" + sizes + data[12:40] + unknown + data[44:]


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.wav", bytes(10**7))
    return file.getvalue()


def _cut(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]


SILENCE = np.zeros(SAMPLE_RATE * (LIMIT + 20), np.int16)
NOT_READ = "corrupt, or not in one of the formats WAV, MP3"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", NOT_READ),
        (b"RIFF", "truncated|corrupt"),
        (b"\0" * 5000, NOT_READ),
        (b"hello " * 1000, NOT_READ),
        (_zip(), NOT_READ),
        (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n", NOT_READ),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", NOT_READ),
        (b'<?xml version="1.0"?><MPD><BaseURL>http://localhost/</BaseURL></MPD>', NOT_READ),
        (_cut(wav(SOUND), 0.5), "truncated: its header claims 64044 bytes, and it has 32022"),
        (lambda: _cut(encoded("ipod", "aac", SOUND), 0.5), NOT_READ),
        (lambda: _cut(encoded("flac", "flac", SOUND), 0.5), "truncated|corrupt"),
        (lambda: _cut(encoded("webm", "libopus", SOUND), 0.3), "truncated"),
        (_rf64(8 * 2**30), "at most 100 seconds of audio, not 268435"),
        (
            lambda: encoded("flac", "flac", SILENCE, rate=16_000),
            "at most 100 seconds of audio, not 120",
        ),
        (lambda: encoded("ogg", "libopus", SILENCE), "at most 100 seconds of audio$"),
        (lambda: encoded("adts", "aac", SILENCE), "at most 100 seconds of audio$"),
        (wav(SOUND[:0]), "no audio"),
        (wav(SOUND, channels=9), "1 to 8 channels, not 9"),
        (wav(SOUND, rate=100), "4000 to 384000 samples a second, not 100"),
    ],
)
def test_unusable_audio_is_refused(data: bytes | Callable[[], bytes], message: str) -> None:
    file = data if isinstance(data, bytes) else data()
    with pytest.raises(InvalidField, match=message) as caught:
        decode(file)
    assert caught.value.param == "file"


@pytest.mark.parametrize("seed", range(20))
def test_damaged_audio_is_decoded_or_refused(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for container, codec in (("mp3", "mp3"), ("ipod", "aac"), ("ogg", "libopus")):
        data = bytearray(encoded(container, codec, SOUND[: SAMPLE_RATE // 2]))
        for position in rng.integers(0, len(data), 20):
            data[position] = rng.integers(256)
        with suppress(InvalidField):
            assert len(decode(bytes(data)))


def test_corrupt_audio_is_refused_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, path = encoded("caf", "pcm_s16le", SOUND[: SAMPLE_RATE // 10]), tmp_path / "sound.caf"
    num_refused = 0
    for position in range(8, 80):
        path.write_bytes(whole[:position] + b"\x80" + whole[position + 1 :])
        with path.open("rb") as source:  # unlike a BytesIO, it raises OSError
            try:
                decode_audio(source, io.BytesIO(), LIMIT, lambda _: None)
            except InvalidField:
                num_refused += 1
    assert num_refused
    assert "Traceback" not in capfd.readouterr().err


def test_decoding_ends_when_there_is_no_room() -> None:
    def refuse(num_bytes: int) -> None:
        raise Overloaded("no room")

    with pytest.raises(Overloaded):
        decode_audio(
            io.BytesIO(encoded("flac", "flac", SILENCE, rate=16_000)), io.BytesIO(), 1000, refuse
        )
