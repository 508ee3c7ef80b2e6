"""Measures transcription beside `openvino_genai.WhisperPipeline`: the word error rate of sentences
that `espeak-ng` speaks, the processor seconds per second of audio, and the gaps between the tokens
of chats meanwhile.

With `--speaker`, a speech synthesis model is measured instead: the word error rate of ten texts by
Whisper, the figures of `sox` about the audio, and the gaps between the tokens of chats.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai

from bench.common.report import machine, ratio, table
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
from fastovms.parts.speech_out.sentences import sentences
from fastovms.parts.speech_out.served import ServedSpeaker
from fastovms.parts.speech_out.served import load as load_speaker
from fastovms.parts.speech_out.served import read_info as read_speaker
from fastovms.parts.speech_out.worker import SpeakText
from fastovms.server_config import ModelConfig
from fastovms.setting import integer
from fastovms.system.disk import DiskCache

_WHO = ("The teacher", "My old friend", "A young doctor", "The river", "Nobody in the village")
_DOES = ("walked slowly", "was waiting", "had been sleeping")
_WHERE = ("near the station", "behind the large house", "along the quiet street", "under a tree")
SENTENCES = [f"{who} {does} {where}." for who, does, where in product(_WHO, _DOES, _WHERE)][:50]

TEXTS = (
    "The quick brown fox jumps over the lazy dog near the old station.",
    "Please open the window, because the air in this room is very warm.",
    "My sister has worked in a hospital for many years. She likes to help other people.",
    "We walked along the river until the sun went down behind the mountains.",
    "The train to the north leaves every morning, but today it was late again.",
    "He bought fresh bread, some cheese and a bottle of milk on his way home.",
    "Nobody knew who had written the letter. It was found on the kitchen table.",
    "If the weather is good tomorrow, the children will play in the garden.",
    "The teacher asked a simple question, and the whole class began to think.",
    "After dinner they sat by the fire and told each other stories of the sea.",
)


class KeptSamples:
    """Implements `Audio` for samples in memory."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    @property
    def num_samples(self) -> int:
        return len(self._samples)

    def read(self, start: int, count: int) -> Samples:
        return self._samples[start : start + count]


def speak(text: str, scratch: Path) -> Samples:
    """Returns the speech of `espeak-ng`, decoded as the server does."""
    path, decoded = scratch / "speech.wav", scratch / "samples"
    subprocess.run(["espeak-ng", "-s", "140", "-w", str(path), text], check=True)
    with path.open("rb") as source, decoded.open("wb") as target:
        decode_audio(source, target, 3600, lambda num_bytes: None)
    return np.fromfile(decoded, np.int16)


def word_errors(found: str, said: str) -> tuple[int, int]:
    """Returns the number of word errors (as for a word error rate) and of words spoken."""
    words, heard = (re.findall(r"[a-z']+", text.lower()) for text in (said, found))
    row = list(range(len(heard) + 1))
    for i, word in enumerate(words, start=1):
        corner, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (word != other))
    return row[-1], len(words)


def by_pipeline(pipeline: openvino_genai.WhisperPipeline, samples: Samples) -> tuple[str, float]:
    """Returns the pipeline's text and its processor seconds per second of audio."""
    start = time.perf_counter()
    given = samples.astype(np.float32) / np.float32(2**15)
    text = pipeline.generate(given).texts[0]
    return text.strip(), (time.perf_counter() - start) * SAMPLE_RATE / len(samples)


async def by_backend(backend: SpeechBackend, samples: Samples) -> tuple[str, float]:
    """Returns the same of the server's backend."""
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
        await beside_chats(options, partial(by_backend, backend, long), cores, scratch)
    await backend.close()


async def beside_chats(
    options: argparse.Namespace,
    work: Callable[[], Coroutine[Any, Any, object]],
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
    alone, together = [], []
    for _ in range(options.rounds):
        chats.gaps.clear()
        await asyncio.sleep(options.seconds)
        before = chats.take()
        task = asyncio.create_task(work())
        await asyncio.sleep(options.seconds)
        median_then, worst_then = chats.take()
        print(
            f"beside {NUM_CHATS} chats{' (ended early)' if task.done() else ''}: gaps "
            f"{before[0]:.1f} ms -> {median_then:.1f}: {median_then / before[0]:.2f} x, p99 "
            f"{before[1]:.1f} -> {worst_then:.1f}: {worst_then / before[1]:.2f} x"
        )
        alone.append(before[0])
        together.append(median_then)
        task.cancel()
        await asyncio.sleep(options.seconds / 2)
    print(f"gaps of all rounds: {ratio(together, alone)} x")
    chats.stop()
    await engine.close()


async def said_by(
    speaker: ServedSpeaker, text: str, voice: str, language: str
) -> tuple[Samples, float]:
    """Returns the speech of a text and the processor seconds per second of speech."""
    pieces = [SpeakText(piece, voice, 1.0, language) for piece in sentences(text)]
    encode = lambda samples, is_last: samples.tobytes()  # noqa: E731
    async with aclosing(speaker.backend.speak(pieces, encode, "bench")) as spoken:
        found = [piece async for piece in spoken]
    samples = np.frombuffer(b"".join(piece.data for piece in found), np.int16)
    seconds = sum(piece.seconds for piece in found)
    return samples, sum(piece.compute_time for piece in found) / seconds


def sox(samples: Samples, rate: int, *effects: str) -> tuple[Samples, dict[str, str]]:
    """Returns the samples after effects of `sox`, and the figures that `stats` prints."""
    form = ["-t", "raw", "-e", "signed", "-b", "16", "-c", "1", "-r", str(rate), "-"]
    done = subprocess.run(
        ["sox", "-D", *form, *form, *effects],
        input=samples.tobytes(),
        capture_output=True,
        check=True,
    )
    lines = [line.rsplit(maxsplit=1) for line in done.stderr.decode().splitlines()]
    figures = {line[0]: line[1] for line in lines if len(line) == 2}
    return np.frombuffer(done.stdout, np.int16), figures


def heard(samples: Samples, rate: int, text: str) -> list[object]:
    """Returns measurements of speech: seconds, characters per second, the peak and the loudness in
    dB, clipped samples, and seconds of silence before, in and after the speech."""
    _, figures = sox(samples, rate, "stats")
    quiet = ("silence", "1", "0.02", "-45d")
    without_start, _ = sox(samples, rate, *quiet)
    without_ends, _ = sox(without_start, rate, "reverse", *quiet, "reverse")
    without_gaps, _ = sox(without_ends, rate, *quiet, "-1", "0.3", "-45d")
    lengths = [len(each) / rate for each in (samples, without_start, without_ends, without_gaps)]
    before, after, within = (a - b for a, b in pairwise(lengths))
    full = int(np.count_nonzero(np.abs(samples.astype(np.int32)) >= 2**15 - 1))
    return [
        lengths[0],
        len(text) / lengths[0],
        figures["Pk lev dB"],
        figures["RMS lev dB"],
        full,
        before,
        within,
        after,
    ]


async def measure_speaker(options: argparse.Namespace, scratch: Path) -> None:
    cores = TunedCores.share()
    model = ModelConfig(options.speaker, ("speaker",))
    info = read_speaker(options.speaker, name="speaker")
    speaker = load_speaker(model, info, cores.turn, [])
    backend = speaker.backend
    backend.start()
    voice = options.voice or next(iter(speaker.voices))
    languages, language = backend.speaker.languages, speaker.voices[voice]
    if languages and language not in languages:
        language = languages[0]
    pipeline = openvino_genai.WhisperPipeline(options.model, "CPU")
    print(machine())
    texts, speeds, rows = [], [], []
    for text in TEXTS:
        samples, speed = await said_by(speaker, text, voice, language)
        rate_of_speaker = backend.speaker.rate
        given, _ = sox(samples, rate_of_speaker, "rate", str(SAMPLE_RATE))
        texts.append(by_pipeline(pipeline, given)[0])
        speeds.append(speed)
        wrong, total = word_errors(texts[-1], text)
        rows.append([f"{wrong} of {total}", *heard(samples, rate_of_speaker, text)])
    header = ("word errors", "seconds", "characters/s", "peak dB", "RMS dB", "clipped")
    print(table((*header, "silence before", "within", "after"), rows))
    for text, found in zip(TEXTS, texts, strict=True):
        if word_errors(found, text)[0]:
            print(f"said: {text}\nheard: {found}")
    print(
        f"{len(TEXTS)} texts: word error rate {rate(texts, TEXTS):.4f}; seconds for one of audio "
        f"{statistics.median(speeds):.3f}"
    )
    del pipeline
    if options.chat is not None:
        long = " ".join(SENTENCES)
        await beside_chats(
            options, partial(said_by, speaker, long, voice, language), cores, scratch
        )
    await backend.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench.speech", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a Whisper model")
    parser.add_argument("--speaker", type=Path, help="directory of a model that speaks")
    parser.add_argument("--voice", help="its voice (default: the default one)")
    parser.add_argument("--chat", type=Path, help="a model that chats (default: none)")
    parser.add_argument("--long", type=integer(31), default=120, help="seconds of one audio")
    parser.add_argument("--seconds", type=float, default=6.0, help="of chats alone, and beside")
    parser.add_argument("--rounds", type=integer(1), default=3, help="of chats alone, and beside")
    options = parser.parse_args(arguments)
    sys.setswitchinterval(0.0005)  # as the server does
    with tempfile.TemporaryDirectory() as scratch:
        measured = measure if options.speaker is None else measure_speaker
        asyncio.run(measured(options, Path(scratch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
