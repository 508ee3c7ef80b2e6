"""A model of speech, in a simulated process of its own.

A second of audio has few samples here, and a file of audio says of which samples it is.
"""

from __future__ import annotations

import os
import signal
import zlib
from collections import deque
from typing import Any, Final, cast

import numpy as np

from fastovms.api.body import FairThread
from fastovms.backends import sliced_process
from fastovms.backends.processes import ChildProcess, WorkerFailed
from fastovms.errors import InvalidField
from fastovms.parts.speech import endpoints as audio
from fastovms.parts.speech import speech_backend
from fastovms.parts.speech.audio import OnPiece
from fastovms.parts.speech.audio_decoder import AudioDecoder, DecodedAudio
from fastovms.parts.speech.served import ServedSpeech
from fastovms.parts.speech.speech_backend import SpeechBackend
from fastovms.parts.speech.speech_worker import ReadWindow, WindowText
from fastovms.parts.speech.transcript import (
    WINDOW_SECONDS,
    Samples,
    Segment,
    SpeechInfo,
    SpeechParams,
)
from fastovms.system.disk import UnnamedFile
from fastovms.telemetry.metrics import GenerationMetrics
from tests.simulation.encoders import jobs_kept
from tests.simulation.model import STALL_SECONDS, Pace, model_info
from tests.simulation.world import SimThread, World, current, running

SPEECH: Final = "whisper"
"""The name of the model."""

RATE: Final = 16
WINDOW: Final = WINDOW_SECONDS * RATE
LEAST: Final = RATE // 5
LANGUAGES: Final = ("en", "de")
_LETTERS: Final = "abcdefghijklmnop"

# What a file may begin with in place of "audio", to make the model or the decoder fail.
SLOW, BAD, DEADLY, BROKEN_FILE = "slow", "bad", "deadly", "broken"

_MARKS: Final = {SLOW: 11111, BAD: 11112, DEADLY: 11113}
"""The first sample of an audio that makes the model fail."""

_KINDS: Final = {mark: kind for kind, mark in _MARKS.items()}


def install_speech() -> None:
    """Has the product take the simulation's audio, and hand it to simulated processes."""
    speech_backend.SAMPLE_RATE = audio.SAMPLE_RATE = RATE  # type: ignore[misc]
    speech_backend._WINDOW, speech_backend._FOLLOWING = WINDOW, RATE  # type: ignore[misc]
    speech_backend._LEAST = LEAST  # type: ignore[misc]
    sliced_process.send = lambda connection, message: cast(Any, connection).put(message)
    sliced_process.receive = lambda connection: cast(Any, connection).take()


def samples_of(file: str) -> Samples:
    """Returns the samples of a file: noise, so that each part is as loud as the others."""
    seconds = float(file.split()[1])
    generator = np.random.default_rng(zlib.crc32(file.encode()))
    samples = generator.integers(-9999, 9999, int(seconds * RATE), np.int16)
    samples[:1] = _MARKS.get(file.split()[0], samples[0])
    return samples


def read_window(
    weights: str, samples: Samples, params: SpeechParams, has_times: bool
) -> WindowText:
    """Returns what the model hears in a window. All of it is heard, or a part at its end is left
    for the next window."""
    data = samples[:WINDOW].tobytes()
    language = params.language or LANGUAGES[zlib.crc32(data) % 2]
    said = (weights, language, params.translates, params.prompt, params.temperature, params.seed)
    checksum = zlib.crc32(data, zlib.crc32(repr(said).encode()))
    letters = "".join(_LETTERS[checksum >> shift & 15] for shift in range(0, 32, 4))
    texts = [f" {letters[:3]}", f" {letters[3:]}"]
    seconds = min(len(samples), WINDOW) / RATE
    middle, end = seconds / 2, seconds * (1.0 if checksum % 3 else 0.75)
    segments = [Segment(0.0, middle, texts[0]), Segment(middle, end, texts[1])]
    return WindowText("".join(texts), language, segments if has_times else [], [], 8)


class SimPeer:
    """The process of the model. It computes in the world's time while it is not stopped.

    Attributes:
        is_dead: whether it has ended.
    """

    def __init__(self, world: World, weights: str, pace: Pace) -> None:
        self._world, self._weights, self._pace = world, weights, pace
        self._work: deque[tuple[float, object]] = deque()  # seconds, then a message; None = its end
        self._answers: deque[object] = deque()
        self._is_stopped = self.is_dead = False
        self._since = world.now
        self._reader: SimThread | None = None

    @property
    def runs(self) -> bool:
        """Whether it computes."""
        self._advance()
        return bool(self._work) and not self._is_stopped and not self.is_dead

    # As a process

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        self._advance()
        if number == signal.SIGKILL:
            self.is_dead = True
        self._is_stopped = number == signal.SIGSTOP
        if self._reader is not None:
            self._world.wake(self._reader)

    def close(self) -> str:
        self.is_dead = True
        return "was ended by SIGKILL"

    def end(self) -> None:
        self.is_dead = True

    # As a connection

    @property
    def connection(self) -> SimPeer:
        return self

    def put(self, window: ReadWindow) -> None:
        if self.is_dead:
            raise BrokenPipeError
        self._advance()
        samples, seconds = window.samples, self._pace.step * 4
        kind = _KINDS.get(int(samples[0]))
        seconds += STALL_SECONDS * (kind == SLOW)
        found = read_window(self._weights, samples, window.params, window.has_times)
        if kind == DEADLY:
            self._work.append((seconds, None))
        elif kind == BAD:
            self._work.append((seconds, WorkerFailed("the model hears nothing")))
        else:
            if not window.has_times:
                words = found.text[:4], found.text[4:]
                self._work += [(seconds, word) for word in words]
            self._work.append((seconds, found))

    def poll(self, seconds: float) -> bool:
        end = self._world.now + seconds
        while not self.is_dead:
            self._advance()
            if self._answers or self._world.now >= end:
                break
            due = self._since + self._work[0][0] if self._work and not self._is_stopped else end
            self._reader = current()
            self._world.block(min(end, due))
            self._reader = None
        return self.is_dead or bool(self._answers)

    def take(self) -> object:
        if not self._answers:
            raise EOFError
        return self._answers.popleft()

    def _advance(self) -> None:
        """Computes what it has had time for."""
        passed, self._since = self._world.now - self._since, self._world.now
        while self._work and not self._is_stopped and not self.is_dead:
            seconds, message = self._work[0]
            if seconds > passed + 1e-9:
                self._work[0] = (seconds - passed, message)
                break
            passed = max(0.0, passed - seconds)
            self._work.popleft()
            if message is None:
                self.is_dead = True
            else:
                self._answers.append(message)


class _Decoder:
    """Stands for `AudioDecoder`."""

    def decode(self, source: UnnamedFile, max_seconds: int, on_piece: OnPiece) -> DecodedAudio:
        thread = running()
        thread.world.sleep(0.01)
        file = os.pread(source.descriptor, 1000, 0).decode()
        if file.startswith(BROKEN_FILE):
            raise InvalidField("file is no audio", param="file")
        samples = samples_of(file)
        on_piece(2 * len(samples))
        return cast(DecodedAudio, _Audio(samples))

    def close(self) -> None:
        pass


class _Audio:
    """Implements `Audio`."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self.num_samples = len(samples)

    def read(self, start: int, count: int) -> Samples:
        return self._samples[start : start + count]


class SimSpeechBackend(SpeechBackend):
    @property
    def is_live(self) -> bool:
        return self.failure is None and not self._closing

    def kept(self) -> str:
        return jobs_kept(self, len(self._waiting))


def served_speech(server: Any, weights: str) -> ServedSpeech:
    """Returns the model of speech of a `SimServer`."""

    def start() -> tuple[ChildProcess, SpeechInfo]:
        server.world.sleep(0.01)
        peer = SimPeer(server.world, weights, server.settings.pace)
        server.peers.append(peer)
        info = SpeechInfo(frozenset(LANGUAGES), translates=True, finds_words=False)
        return cast(ChildProcess, peer), info

    backend = SimSpeechBackend(
        model_info(SPEECH, 448),
        start,
        max_num_queued=server.settings.engine.max_num_queued_requests,
        turn=server.turn,
    )
    metrics = GenerationMetrics(SPEECH, backend.stats, has_kv_cache=False)
    decoding: FairThread[DecodedAudio] = FairThread("audio files", per_client=64, total=256)
    return ServedSpeech(backend, metrics, cast(AudioDecoder, _Decoder()), decoding)
