"""Tests of `fastovms/parts/speech_out/backend.py` and `served.py`, over the processes of tiny
models."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.backends.model_task import find_task
from fastovms.config import EngineConfig, SpeakingConfig
from fastovms.errors import (
    BackendUnavailable,
    ConfigurationError,
    EngineFailed,
    InvalidField,
    Overloaded,
)
from fastovms.params import Task
from fastovms.parts.speech_out.backend import SpeakingBackend
from fastovms.parts.speech_out.encode import Samples
from fastovms.parts.speech_out.served import ServedSpeaker, load, read_info
from fastovms.parts.speech_out.worker import SpeakText
from fastovms.server_config import ModelConfig
from tests.speech_models import kokoro_dir, speecht5_dir

HELLO = SpeakText("hello world", "default")


def serve(
    directory: Path, voices: dict[str, Path] | None = None, **config: object
) -> ServedSpeaker:
    speaking = SpeakingConfig(voices or {})
    model = ModelConfig(directory, ("spoken",), engine=EngineConfig(**config), speaking=speaking)
    info = read_info(directory, name="spoken")
    return load(model, info, ComputeTurn(ActiveEngines()), [])


@pytest.fixture
async def backend() -> AsyncIterator[SpeakingBackend]:
    backend = (await asyncio.to_thread(serve, speecht5_dir())).backend
    backend.start()
    yield backend
    await backend.close()
    assert backend._peer._process.returncode is not None
    assert backend._places.used == 0
    assert not backend._jobs


def raw(samples: Samples, is_last: bool) -> bytes:
    return samples.tobytes()


async def ask(backend: SpeakingBackend, *sentences: SpeakText, client: str = "a") -> list[Samples]:
    async with aclosing(backend.speak(sentences, raw, client)) as pieces:
        return [np.frombuffer(piece.data, np.int16) async for piece in pieces]


async def test_speech_is_that_of_the_pipeline_alone(backend: SpeakingBackend) -> None:
    pipeline = genai.Text2SpeechPipeline(speecht5_dir(), "CPU")
    embedding = ov.Tensor(np.full((1, 512), 0.5, np.float32))
    low = SpeakText("hello again", "low")
    # The pipeline writes each speech into the same memory.
    wanted = [
        np.array(pipeline.generate(*given).speeches[0].data).ravel()
        for given in ((HELLO.text,), (low.text, embedding))
    ]
    found = await ask(backend, HELLO, low)
    assert backend.speaker.rate == 16_000
    assert not backend.speaker.languages
    for samples, expected in zip(found, wanted, strict=True):
        assert len(samples) > 1000
        assert np.abs(samples - expected * (2**15 - 1)).max() <= 0.51


@pytest.fixture
async def kokoro(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedSpeaker]:
    monkeypatch.setenv("MISAKI_DATA_DIR", str(kokoro_dir() / "data"))
    served = await asyncio.to_thread(serve, kokoro_dir())
    served.backend.start()
    yield served
    await served.backend.close()


async def test_kokoro_speaks_faster_and_with_other_voices(kokoro: ServedSpeaker) -> None:
    backend = kokoro.backend
    assert kokoro.voices == {"af_one": "en-us", "am_two": "en-us", "zf_three": "zh"}
    assert backend.speaker.rate == 24_000
    assert backend.speaker.languages == ("en-us",)
    asked = SpeakText("hello world", "af_one", 1.0, "en-us")
    plain, fast, other = await ask(
        backend, asked, asked._replace(speed=2.0), asked._replace(voice="am_two")
    )
    assert len(fast) == len(plain) / 2
    assert len(other) == len(plain)
    assert (other != plain).any()


async def test_text_that_the_pipeline_cannot_speak_is_refused(kokoro: ServedSpeaker) -> None:
    first = kokoro.backend._peer
    asked = SpeakText("hello world", "af_one", 1.0, "en-us")
    for number in ("5", "2,000,000,000,000", "9223372036854775807"):  # not in the dictionary
        with pytest.raises(InvalidField, match="cannot speak: Unmapped English") as fault:
            await ask(kokoro.backend, asked, asked._replace(text=f"It is {number}."))
        assert fault.value.param == "input"
    assert await ask(kokoro.backend, asked)
    assert kokoro.backend._peer is first


async def test_voices_of_the_operator_are_those_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "anna.bin"
    np.full(512, -0.5, "<f4").tofile(path)
    given = {"anna": path, "low": path}
    served = await asyncio.to_thread(serve, speecht5_dir(), given)
    served.backend.start()
    try:
        assert list(served.voices) == ["default", "anna", "low"]
        asked = [HELLO._replace(voice=voice) for voice in served.voices]
        default, anna, low = await ask(served.backend, *asked)
        assert (anna[: len(low)] == low[: len(anna)]).all()
        assert len(default) != len(anna) or (default != anna).any()
    finally:
        await served.backend.close()


async def test_clients_take_turns_with_their_sentences(backend: SpeakingBackend) -> None:
    order: list[str] = []

    async def speak(client: str, count: int) -> None:
        await ask(backend, *[HELLO] * count, client=client)
        order.append(client)

    await asyncio.gather(speak("long", 30), speak("short", 1))
    assert order == ["short", "long"]


async def test_sentences_after_the_caller_has_left_are_not_spoken(backend: SpeakingBackend) -> None:
    async with aclosing(backend.speak([HELLO] * 50, raw, "a")) as pieces:
        await anext(pieces)
    before = backend.stats().counters.num_steps
    await ask(backend, HELLO)
    await ask(backend, HELLO)
    assert backend.stats().counters.num_steps - before < 10
    assert backend.stats().num_waiting == backend.stats().num_running == 0


async def test_a_cancelled_request_is_given_up(backend: SpeakingBackend) -> None:
    task = asyncio.create_task(ask(backend, *[HELLO] * 1000))
    await ask(backend, HELLO)  # one sentence of each, in turn
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend._places.used == 0
    assert await ask(backend, HELLO)


async def test_a_process_that_dies_fails_one_request_and_is_replaced(
    backend: SpeakingBackend,
) -> None:
    first = backend._peer
    async with aclosing(backend.speak([HELLO] * 9, raw, "a")) as pieces:
        await anext(pieces)
        first.send_signal(signal.SIGSEGV)
        with pytest.raises(EngineFailed, match="the process that speaks was ended by SIGSEGV"):
            async for _ in pieces:
                pass
    assert backend.failure is None
    assert await ask(backend, HELLO)
    assert backend._peer is not first


@pytest.mark.parametrize("error", [EOFError, ValueError])
async def test_audio_that_cannot_be_encoded_fails_one_request(
    backend: SpeakingBackend, error: type[Exception]
) -> None:
    def fail(samples: Samples, is_last: bool) -> bytes:
        raise error("no such codec")

    first = backend._peer
    with pytest.raises(EngineFailed, match="the audio cannot be encoded: no such codec"):
        async for _ in backend.speak([HELLO], fail, "a"):
            pass
    assert await ask(backend, HELLO)
    assert backend._peer is first


async def test_too_many_requests_are_refused() -> None:
    backend = (await asyncio.to_thread(serve, speecht5_dir(), max_num_queued_requests=2)).backend
    with pytest.raises(BackendUnavailable):
        await ask(backend, HELLO)
    backend.start()
    tasks = [asyncio.create_task(ask(backend, *[HELLO] * 1000)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await ask(backend, HELLO)
    await backend.close()
    for task in tasks:
        with pytest.raises(BackendUnavailable):
            await task


def test_the_task_is_found_by_the_files() -> None:
    for directory in (speecht5_dir(), kokoro_dir()):
        assert find_task(directory) is find_task(directory, "text2speech") is Task.SPEECH_OUT
        with pytest.raises(ConfigurationError, match="its graph is for text2speech"):
            find_task(directory, "embeddings")


@pytest.mark.nightly(but=("voices/low", "model_type", "voices-None"))
@pytest.mark.parametrize(
    ("model", "name", "content", "message"),
    [
        (speecht5_dir, "openvino_postnet.xml", None, r"it has no openvino_postnet\.xml"),
        (speecht5_dir, "openvino_vocoder.bin", b"", "cannot be loaded"),
        (speecht5_dir, "voices/low.bin", bytes(8), r"low\.bin must have 512 numbers, not 2"),
        (speecht5_dir, "config.json", b'{"model_type": "bert"}', "does not speak"),
        (kokoro_dir, "voices", None, r"has no voices: files such as af_heart\.bin"),
    ],
)
def test_a_corrupt_model_is_refused(
    tmp_path: Path, model: object, name: str, content: bytes | None, message: str
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(model(), directory)
    path = directory / name
    if content is not None:
        path.write_bytes(content)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(ConfigurationError, match=message):
        serve(directory)
