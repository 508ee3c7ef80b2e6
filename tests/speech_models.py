"""Tiny models of speech, made once in a process, and audio for them."""

from __future__ import annotations

import io
import json
import wave
from functools import cache
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from bench.speech_models import write_tiny, write_tiny_qwen3_asr
from bench.tts_models import write_kokoro, write_speecht5
from fastovms.parts.speech.transcript import SAMPLE_RATE
from tests.conftest import SCRATCH


@cache
def whisper_dir(*, is_multilingual: bool = True) -> Path:
    """A Whisper model with random weights."""
    directory = SCRATCH / f"whisper-{is_multilingual}"
    write_tiny(directory, is_multilingual=is_multilingual)
    return directory


@cache
def qwen3_asr_dir() -> Path:
    """A model of the form of Qwen3-ASR with random weights."""
    directory = SCRATCH / "qwen3-asr"
    write_tiny_qwen3_asr(directory)
    return directory


@cache
def speecht5_dir() -> Path:
    """A SpeechT5 model with random weights and the voice `low`."""
    directory = SCRATCH / "speecht5"
    write_speecht5(directory)
    (directory / "voices").mkdir()
    np.full(512, 0.5, "<f4").tofile(directory / "voices" / "low.bin")
    return directory


@cache
def kokoro_dir() -> Path:
    """A Kokoro model with random weights, and with an English dictionary of a few words."""
    directory = SCRATCH / "kokoro"
    write_kokoro(directory, {"af_one": 1, "am_two": 2, "zf_three": 3})
    dictionary = json.dumps(dict.fromkeys(("hello", "world", "Fastovms", "fastovms"), "fast"))
    (directory / "data").mkdir()
    for name in ("us_gold", "us_silver", "gb_gold", "gb_silver"):
        (directory / "data" / f"{name}.json").write_text(dictionary)
    return directory


def sound(seconds: float, *, seed: int = 0, rate: int = SAMPLE_RATE) -> NDArray[np.int16]:
    """A tone whose pitch wanders, int16 [N]."""
    rng = np.random.default_rng(seed)
    num = round(seconds * rate)
    pitch = np.interp(
        np.arange(num),
        np.arange(0, num + rate, rate // 4),
        rng.uniform(200, 2000, len(np.arange(0, num + rate, rate // 4))),
    )
    return (np.sin(2 * np.pi * np.cumsum(pitch) / rate) * 12_000).astype(np.int16)


def wav(samples: NDArray[np.int16], *, rate: int = SAMPLE_RATE, channels: int = 1) -> bytes:
    """A WAV file with the same samples in each channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(np.repeat(samples[:, None], channels, axis=1).tobytes())
    return file.getvalue()


def encoded(container: str, codec: str, samples: NDArray[np.int16], *, rate: int = 48_000) -> bytes:
    """A file in another container, written by FFmpeg's libraries.

    Args:
        rate: samples a second of the file; those given have `SAMPLE_RATE`.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        resampler = av.AudioResampler(stream.format.name, "mono", rate)
        fifo = av.AudioFifo()
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            part.pts = None
            fifo.write(part)
        size = stream.codec_context.frame_size or 1024
        while (part := fifo.read(size, partial=True)) is not None:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return file.getvalue()
