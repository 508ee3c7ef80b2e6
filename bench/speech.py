"""Measures transcription against `openvino_genai.WhisperPipeline` alone: word errors of sentences
that `espeak-ng` speaks, seconds of computing for a second of audio, and the gaps between the tokens
of chats meanwhile."""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import openvino_genai

from bench.common.report import machine, ratio
from bench.embeddings import NUM_CHATS, Chats
from fastovms.app.paged import TunedCores, compile_paged
from fastovms.backends.model_files import read_model_info
from fastovms.config import EngineConfig
from fastovms.engine.model.devices import available_memory
from fastovms.gguf.model_directory import model_directory
from fastovms.parts.speech.audio import decode_audio
from fastovms.parts.speech.served import read_info
from fastovms.parts.speech.speech_backend import SpeechBackend, load_speech
from fastovms.parts.speech.transcript import SAMPLE_RATE, Samples, SpeechParams
from fastovms.setting import integer
from fastovms.system.disk import DiskCache

_WHO = ("The teacher", "My old friend", "A young doctor", "The river", "Nobody in the village")
_DOES = ("walked slowly", "was waiting", "had been sleeping")
_WHERE = ("near the station", "behind the large house", "along the quiet street", "under a tree")
SENTENCES = [f"{who} {does} {where}." for who, does, where in product(_WHO, _DOES, _WHERE)][:50]


class KeptSamples:
    """Implements `Audio`: samples in memory."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def read(self, start: int, count: int) -> Samples:
        return self._samples[start : start + count]


def speak(text: str, scratch: Path) -> Samples:
    """Returns what `espeak-ng` says, decoded as the server does."""
    path, decoded = scratch / "speech.wav", scratch / "samples"
    subprocess.run(["espeak-ng", "-s", "140", "-w", str(path), text], check=True)
    with path.open("rb") as source, decoded.open("wb") as target:
        decode_audio(source, target, 3600, lambda num_bytes: None)
    return np.fromfile(decoded, np.int16)


def word_errors(found: str, said: str) -> tuple[int, int]:
    """Returns the number of wrong, missing and further words, and of words that were said."""
    words, heard = (re.findall(r"[a-z']+", text.lower()) for text in (said, found))
    row = list(range(len(heard) + 1))
    for i, word in enumerate(words, start=1):
        corner, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (word != other))
    return row[-1], len(words)


def by_pipeline(pipeline: openvino_genai.WhisperPipeline, samples: Samples) -> tuple[str, float]:
    """Returns the text and the seconds of computing for a second of audio."""
    start = time.perf_counter()
    given = samples.astype(np.float32) / np.float32(2**15)
    text = pipeline.generate(given).texts[0]
    return text.strip(), (time.perf_counter() - start) * SAMPLE_RATE / len(samples)


async def by_backend(backend: SpeechBackend, samples: Samples) -> tuple[str, float]:
    """The same of the server's backend."""
    start = time.perf_counter()
    audio, params = KeptSamples(samples), SpeechParams()
    found = await backend.transcribe(audio, params, "bench", lambda text: None)
    return found.text, (time.perf_counter() - start) * SAMPLE_RATE / len(samples)


def rate(texts: Sequence[str], said: Sequence[str]) -> float:
    """Returns the word error rate of texts."""
    errors = [word_errors(*pair) for pair in zip(texts, said, strict=True)]
    return sum(wrong for wrong, _ in errors) / sum(total for _, total in errors)


async def measure(options: argparse.Namespace, scratch: Path) -> None:
    cores, info = TunedCores.share(), read_info(options.model, name="whisper")
    backend = load_speech(options.model, info, EngineConfig(), cores.turn)
    backend.start()
    pipeline = openvino_genai.WhisperPipeline(options.model, "CPU")
    spoken = [speak(text, scratch) for text in SENTENCES]
    long = np.concatenate(spoken)[: options.long * SAMPLE_RATE]
    print(machine())
    by_pipeline(pipeline, spoken[0])
    await by_backend(backend, spoken[0])
    pairs = [(by_pipeline(pipeline, each), await by_backend(backend, each)) for each in spoken]
    theirs, ours = zip(*pairs, strict=True)
    texts = [[text for text, _ in side] for side in (ours, theirs)]
    same = sum(a == b for a, b in zip(*texts, strict=True))
    print(
        f"{len(SENTENCES)} sentences: word error rate {rate(texts[0], SENTENCES):.4f}, pipeline "
        f"alone {rate(texts[1], SENTENCES):.4f}; {same} texts are the same; seconds for one of "
        f"audio {statistics.median(speed for _, speed in ours):.3f}, "
        f"{ratio([speed for _, speed in ours], [speed for _, speed in theirs])} x"
    )
    said = " ".join(SENTENCES)
    for name, (text, speed) in (
        ("pipeline alone", by_pipeline(pipeline, long)),
        ("backend", await by_backend(backend, long)),
    ):
        print(
            f"{len(long) / SAMPLE_RATE:.0f} s at once, {name}: word error rate "
            f"{rate([text], [said]):.4f}, seconds for one of audio {speed:.3f}"
        )
    del pipeline
    if options.chat is not None:
        await beside_chats(options, backend, long, cores, scratch)
    await backend.close()


async def beside_chats(
    options: argparse.Namespace,
    backend: SpeechBackend,
    samples: Samples,
    cores: TunedCores,
    scratch: Path,
) -> None:
    config = EngineConfig(cache_size=1, tune=False, enable_prompt_lookup=False)
    directory = model_directory(options.chat, DiskCache(None), scratch)
    model = read_model_info(directory)
    engine = compile_paged(directory, model, config)(available_memory(), cores=cores)
    engine.start()
    chats = Chats(engine)
    chats.start()
    await chats.begun.wait()
    await asyncio.sleep(options.seconds / 2)
    for _ in range(options.rounds):
        chats.gaps.clear()
        await asyncio.sleep(options.seconds)
        before = chats.take()
        work = asyncio.create_task(by_backend(backend, samples))
        await asyncio.sleep(options.seconds)
        median_then, worst_then = chats.take()
        print(
            f"beside {NUM_CHATS} chats{' (ended early)' if work.done() else ''}: gaps "
            f"{before[0]:.1f} ms -> {median_then:.1f}: {median_then / before[0]:.2f} x, p99 "
            f"{before[1]:.1f} -> {worst_then:.1f}: {worst_then / before[1]:.2f} x"
        )
        work.cancel()
        await asyncio.sleep(options.seconds / 2)
    chats.stop()
    await engine.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.speech", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a Whisper model")
    parser.add_argument("--chat", type=Path, help="a model that chats (default: none)")
    parser.add_argument("--long", type=integer(31), default=120, help="seconds of one audio")
    parser.add_argument("--seconds", type=float, default=6.0, help="of chats alone, and beside")
    parser.add_argument("--rounds", type=integer(1), default=3, help="of chats alone, and beside")
    options = parser.parse_args(arguments)
    sys.setswitchinterval(0.0005)  # as the server does
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(measure(options, Path(scratch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
