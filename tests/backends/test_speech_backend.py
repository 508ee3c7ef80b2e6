"""Tests of `fastovms/parts/speech/speech_backend.py`, over the process of a tiny model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import openvino_genai as genai
import pytest

from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.config import EngineConfig
from fastovms.errors import (
    BackendUnavailable,
    ConfigurationError,
    EngineFailed,
    Overloaded,
)
from fastovms.parts.speech.served import read_info
from fastovms.parts.speech.speech_backend import SpeechBackend, load_speech, next_window
from fastovms.parts.speech.transcript import SAMPLE_RATE, Samples, Segment, SpeechParams, Transcript
from tests.speech_models import qwen3_asr_dir, sound, whisper_dir

SHORT = sound(3.0)
LONG = sound(70.0, seed=1)


class Sound:
    """Implements `Audio`."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples
        self.starts: list[int] = []
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def read(self, start: int, count: int) -> Samples:
        self.starts.append(start)
        self._loop.call_soon_threadsafe(self.begun.set)
        return self.samples[start : start + count]


def load(
    engines: ActiveEngines | None = None, directory: Path | None = None, **config: object
) -> SpeechBackend:
    directory = directory or whisper_dir()
    info = read_info(directory, name="whisper")
    turn = ComputeTurn(engines or ActiveEngines())
    return load_speech(directory, info, EngineConfig(**config), turn)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[SpeechBackend]:
    backend = await asyncio.to_thread(load, directory=directory)
    backend.start()
    yield backend
    await backend.close()
    assert backend._peer._process.returncode is not None


@pytest.fixture
async def backend() -> AsyncIterator[SpeechBackend]:
    async with running(whisper_dir()) as backend:
        yield backend


@pytest.fixture
async def qwen() -> AsyncIterator[SpeechBackend]:
    async with running(qwen3_asr_dir()) as backend:
        yield backend


async def ask(
    backend: SpeechBackend, samples: Samples, client: str = "a", **params: object
) -> tuple[Transcript, list[str]]:
    pieces: list[str] = []
    found = await backend.transcribe(Sound(samples), SpeechParams(**params), client, pieces.append)
    return found, pieces


# The start of the next window.


LOUD = sound(30.0)
HALF = np.concatenate([LOUD[: 15 * SAMPLE_RATE], np.zeros(15 * SAMPLE_RATE, np.int16)])


@pytest.mark.parametrize(
    ("ends", "samples", "seconds"),
    [
        ([], LOUD, 30.0),
        ([12.0, 25.5], LOUD, 25.5),
        ([12.0, 15.0], HALF, 30.0),  # no further speech
        ([12.0, -1.0], LOUD, 30.0),  # the last segment has no end
        ([0.0], LOUD, 30.0),
        ([29.9], LOUD, 30.0),
        ([31.0], LOUD, 30.0),
    ],
)
def test_the_next_window_begins_after_the_last_whole_segment(
    ends: list[float], samples: Samples, seconds: float
) -> None:
    segments = [Segment(0.0, end, "a") for end in ends]
    assert next_window(segments, samples) == seconds * SAMPLE_RATE


# Transcription.


async def test_texts_are_those_of_the_pipeline_alone(backend: SpeechBackend) -> None:
    pipeline = genai.WhisperPipeline(whisper_dir(), "CPU", word_timestamps=True)
    given = SHORT.astype(np.float32) / 2**15
    for language in (None, "de"):
        told = {} if language is None else {"language": f"<|{language}|>"}
        wanted = pipeline.generate(given, **told)
        found, pieces = await ask(backend, SHORT, language=language)
        assert found.text == wanted.texts[0].strip() != ""
        assert "".join(pieces) == found.text
        assert len(pieces) > 1
        assert found.language == wanted.language
        assert found.num_tokens > 0
    wanted = pipeline.generate(given, return_timestamps=True, word_timestamps=True)
    found, _ = await ask(backend, SHORT, has_segments=True, has_words=True)
    assert found.text == wanted.texts[0].strip()
    assert [word.text for word in found.words] == [word.word for word in wanted.words]
    assert "".join(segment.text for segment in found.segments) == wanted.texts[0]
    assert all(0 <= each.start <= each.end <= 3.0 for each in found.segments)
    assert all(segment.token_ids for segment in found.segments)


async def test_speech_parameters_change_the_text(backend: SpeechBackend) -> None:
    plain, _ = await ask(backend, SHORT)
    changes = ({"translates": True}, {"prompt": "Hello " * 500}, {"keywords": "a, b"})
    for change in (*changes, {"prompt": "x" * 999, "keywords": "y" * 999}):
        assert (await ask(backend, SHORT, **change))[0].text != plain.text
    sampled = [(await ask(backend, SHORT, temperature=1.0, seed=seed))[0] for seed in (1, 1, 2)]
    assert sampled[0].text == sampled[1].text != sampled[2].text


def by_asr_pipeline(samples: Samples, **config: object) -> genai.ASRDecodedResults:
    pipeline = genai.ASRPipeline(qwen3_asr_dir(), "CPU")
    return pipeline.generate(samples.astype(np.float32) / 2**15, max_new_tokens=512, **config)


@pytest.mark.parametrize(
    ("params", "config"),
    [
        ({}, {}),
        ({"language": "en"}, {"language": "English"}),
        ({"language": "yue"}, {"language": "Cantonese"}),
        ({"prompt": "a b"}, {"context": "a b"}),
        ({"keywords": "a, b", "prompt": "c"}, {"context": "a, b\nc"}),
        ({"temperature": 1.0, "seed": 3}, {"do_sample": True, "temperature": 1.0, "rng_seed": 3}),
    ],
)
async def test_texts_of_qwen3_asr_are_those_of_the_pipeline(
    qwen: SpeechBackend, params: dict[str, object], config: dict[str, object]
) -> None:
    wanted = by_asr_pipeline(SHORT, **config)
    found, pieces = await ask(qwen, SHORT, **params)
    assert found.text == "".join(pieces) == wanted.texts[0].strip() != ""
    assert found.language == (params.get("language") or "")
    assert (len(pieces) > 1) is ("language" in params)
    assert found.num_tokens == wanted.perf_metrics.get_num_generated_tokens()
    if params:
        assert found.text != by_asr_pipeline(SHORT).texts[0].strip()


async def test_long_audio_of_qwen3_asr_is_divided_at_pauses(qwen: SpeechBackend) -> None:
    samples = LONG.copy()
    samples[27 * SAMPLE_RATE : 28 * SAMPLE_RATE] = 0
    audio, pieces = Sound(samples), list[str]()
    params = SpeechParams(language="en", prompt="a b")
    found = await qwen.transcribe(audio, params, "a", pieces.append)
    ends = [*audio.starts[1:], len(samples)]
    assert audio.starts[0] == 0
    assert 27 * SAMPLE_RATE < audio.starts[1] < 28 * SAMPLE_RATE
    assert all(start < end <= start + 30 * SAMPLE_RATE for start, end in pairwise(ends))
    parts = [samples[start:end] for start, end in zip(audio.starts, ends, strict=True)]
    texts = [by_asr_pipeline(part, language="English", context="a b").texts[0] for part in parts]
    assert found.text == "".join(pieces) == " ".join(text.strip() for text in texts)
    assert len(pieces) == len(texts) == 3


@pytest.mark.nightly(but=("[200]",))
@pytest.mark.parametrize("num_samples", [1, 200, 201, 5000])
async def test_very_short_audio_is_padded(backend: SpeechBackend, num_samples: int) -> None:
    found, _ = await ask(backend, SHORT[:num_samples])
    assert isinstance(found.text, str)


async def test_long_audio_is_read_in_windows_to_its_end(backend: SpeechBackend) -> None:
    audio, pieces = Sound(LONG), list[str]()
    params = SpeechParams(has_segments=True)
    found = await backend.transcribe(audio, params, "a", pieces.append)
    assert audio.starts[0] == 0
    assert audio.starts == sorted(set(audio.starts))
    assert audio.starts[-1] >= len(LONG) - 30 * SAMPLE_RATE
    assert "".join(pieces).rstrip() == found.text
    starts = [segment.start for segment in found.segments]
    assert starts == sorted(starts)
    assert starts[-1] > 30
    assert {round(each.window * SAMPLE_RATE) for each in found.segments} <= set(audio.starts)


async def test_clients_take_turns_with_their_windows(backend: SpeechBackend) -> None:
    order: list[str] = []

    async def transcribe(client: str, samples: Samples) -> None:
        await ask(backend, samples, client)
        order.append(client)

    await asyncio.gather(transcribe("long", sound(200.0)), transcribe("short", SHORT))
    assert order == ["short", "long"]


async def test_a_cancelled_request_is_given_up(backend: SpeechBackend) -> None:
    audio = Sound(sound(600.0))
    task = asyncio.create_task(backend.transcribe(audio, SpeechParams(), "a", lambda text: None))
    await audio.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ask(backend, SHORT)
    num_windows = len(audio.starts)
    await ask(backend, SHORT)
    assert len(audio.starts) == num_windows < 10
    assert backend.stats().num_waiting == backend.stats().num_running == 0


# Failures.


async def test_a_process_that_dies_fails_one_request_and_is_replaced(
    backend: SpeechBackend,
) -> None:
    audio = Sound(sound(600.0))
    task = asyncio.create_task(backend.transcribe(audio, SpeechParams(), "a", lambda text: None))
    await audio.begun.wait()
    other = asyncio.create_task(ask(backend, SHORT, "b"))
    first = backend._peer
    first.send_signal(signal.SIGSEGV)
    # It may be the turn of another window.
    done, _ = await asyncio.wait([task, other], return_when=asyncio.FIRST_EXCEPTION)
    with pytest.raises(EngineFailed, match="the process that transcribes was ended by SIGSEGV"):
        next(each for each in done if each.exception()).result()
    task.cancel()
    await asyncio.gather(task, other, return_exceptions=True)
    assert backend.failure is None
    assert (await ask(backend, SHORT))[0].text
    assert backend._peer is not first


async def test_too_many_requests_are_refused() -> None:
    backend = await asyncio.to_thread(load, max_num_queued_requests=2)
    with pytest.raises(BackendUnavailable):
        await ask(backend, SHORT)
    backend.start()
    tasks = [asyncio.create_task(ask(backend, LONG)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await ask(backend, SHORT)
    await backend.close()
    for task in tasks:
        with pytest.raises(BackendUnavailable):
            await task


async def test_a_failed_backend_ends_its_requests(backend: SpeechBackend) -> None:
    task = asyncio.create_task(ask(backend, LONG))
    await asyncio.sleep(0.1)
    backend.fail("a reason")
    with pytest.raises(EngineFailed, match="a reason"):
        await task
    with pytest.raises(EngineFailed, match="a reason"):
        await ask(backend, SHORT)
    assert backend.failure == "a reason"


def test_a_broken_model_is_refused(tmp_path) -> None:
    for path in whisper_dir().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "openvino_decoder_model.bin").write_bytes(b"")
    info = read_info(tmp_path, name="whisper")
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        load_speech(tmp_path, info, EngineConfig(), ComputeTurn(ActiveEngines()))
    (tmp_path / "openvino_decoder_model.bin").unlink()
    with pytest.raises(ConfigurationError, match=r"it has no openvino_decoder_model\.bin"):
        read_info(tmp_path, name="whisper")


# Sharing the cores with engines.


def state_of(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text.rpartition(")")[2].split()[0]


async def test_the_process_is_stopped_while_an_engine_makes_a_step() -> None:
    engines = ActiveEngines()
    backend = await asyncio.to_thread(load, engines)
    backend.start()
    turn = backend._turn
    engines.begin()
    task = asyncio.create_task(ask(backend, LONG))
    states = Counter[str]()

    def step() -> None:
        with turn.step():
            for _ in range(50):  # stopping it takes longer on a busy machine
                time.sleep(0.002)
                if (state := state_of(backend._peer._process.pid)) == "T":
                    break
            states[state] += 1

    while not task.done():
        await asyncio.to_thread(step)
    engines.end()
    assert (await task)[0].text
    # Before its first slice and after its last one, it waits for work.
    [(state, _)] = states.most_common(1)
    assert state == "T"
    await backend.close()


def test_a_stopped_process_ends_with_the_server() -> None:
    program = textwrap.dedent(
        """
        import os, signal
        from tests.backends.test_speech_backend import load
        process = load()._peer
        print(process._process.pid, flush=True)
        process.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=False
    )
    pid = int(ended.stdout)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _is_alive(pid):
        time.sleep(0.05)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return state_of(pid) != "Z"
