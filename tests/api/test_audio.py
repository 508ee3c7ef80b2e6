"""Tests of `fastovms/parts/speech/endpoints.py`: real forms over real connections to a fake model,
and the process that decodes audio."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import openai
import pytest
from openai.types.audio import TranscriptionVerbose

from fastovms.api.body import BodyReader, FairThread
from fastovms.api.context import ApiContext
from fastovms.api.dialect import render_error
from fastovms.api.served import ServedModels
from fastovms.app.parts import FORMS
from fastovms.backend_stats import BackendStats
from fastovms.config import ApiConfig, HttpConfig
from fastovms.errors import EngineFailed, Overloaded
from fastovms.http.gates import JsonOnly
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.parts.speech import endpoints as audio
from fastovms.parts.speech.audio_decoder import AudioDecoder
from fastovms.parts.speech.served import ServedSpeech
from fastovms.parts.speech.transcript import (
    Audio,
    OnText,
    Segment,
    SpeechInfo,
    SpeechParams,
    Transcript,
    Word,
)
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import model_info
from tests.speech_models import encoded, sound, wav

SOUND = wav(sound(2.5))
LANGUAGES = frozenset(("en", "de"))
ABLE = SpeechInfo(LANGUAGES, translates=True, finds_words=True)


class FakeSpeech:
    """Returns the duration of the audio as its text.

    Attributes:
        asked: the parameters of every call.
        error: raised by `transcribe` if it is set.
    """

    failure = None

    def __init__(self, info: SpeechInfo) -> None:
        self.speech = info
        self.model = model_info(name="whisper")
        self.asked: list[SpeechParams] = []
        self.clients: list[str] = []
        self.error: Exception | None = None

    async def transcribe(
        self, audio: Audio, params: SpeechParams, client: str, on_text: OnText
    ) -> Transcript:
        self.asked.append(params)
        self.clients.append(client)
        assert len(audio.read(0, 10**9)) == audio.num_samples
        for piece in ("It has", f" {audio.num_samples}", " samples --> ü."):
            on_text(piece)
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return Transcript(
            f"It has {audio.num_samples} samples --> ü.",
            params.language or "de",
            [
                Segment(0.0, 1.25, " It has"),
                Segment(3661.5, 3662.0, f" {audio.num_samples} --> ü."),
            ],
            [Word(0.0, 0.5, " It"), Word(0.5, 1.25, " has")],
            7,
        )

    def stats(self) -> BackendStats:
        return BackendStats()


@dataclass
class Site:
    server: HttpServer
    backend: FakeSpeech
    url: str
    speech: audio.Speech

    def client(self, prefix: str = "/v1") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + prefix, api_key="a", max_retries=0)

    async def post(
        self,
        data: Mapping[str, str | Sequence[str]] | None = None,
        file: bytes | None = SOUND,
        path: str = "/v1/audio/transcriptions",
    ) -> httpx.Response:
        files = None if file is None else {"file": ("a.wav", file)}
        async with httpx.AsyncClient(timeout=30) as client:
            return await client.post(self.url + path, data=data, files=files)


@pytest.fixture(scope="module")
def decoder():
    decoder = AudioDecoder()
    yield decoder
    decoder.close()


@pytest.fixture
async def start(decoder: AudioDecoder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator:
    sites = []
    made: list[audio.Speech] = []
    make = audio.Speech

    def remember(context: ApiContext) -> audio.Speech:
        made.append(make(context))
        return made[-1]

    monkeypatch.setattr(audio, "Speech", remember)

    async def begin(info: SpeechInfo = ABLE, *, decodes: bool = True, **limits) -> Site:
        backend = FakeSpeech(info)
        decoding = FairThread("files", per_client=9, total=9)
        metrics = GenerationMetrics("whisper", backend.stats)
        model = ServedSpeech(backend, metrics, decoder if decodes else None, decoding)
        context = ApiContext(
            ServedModels([model]),
            ApiConfig(**limits),
            new_id=lambda: "x",
            unix_time=lambda: 0.0,
            bodies=BodyReader(),
        )
        router = Router()
        for route in audio.endpoints(context):
            router.add(route.method, route.path, route.handler)
        server = HttpServer(
            HttpConfig(port=0, max_body=1024, linger_timeout=0.1, close_timeout=0.1),
            Dispatcher(router, render_error, checks=[JsonOnly(render_error, FORMS)]),
        )
        await server.start()
        port = server.addresses[0].rpartition(":")[2]
        sites.append(Site(server, backend, f"http://127.0.0.1:{port}", made[-1]))
        return sites[-1]

    yield begin
    for site in sites:
        await site.server.close()
        await site.speech._threads.close()
        for shares in (site.speech._uploaded, site.speech._decoded, site.speech._uploads._places):
            shares.check()
            assert shares.used == 0


TEXT = "It has 40000 samples --> ü."


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
async def test_openais_client_gets_every_format(start, prefix: str) -> None:
    site = await start()
    async with site.client(prefix) as client:
        create = client.audio.transcriptions.create
        given = {"model": "whisper", "file": ("a.wav", SOUND)}
        found = await create(**given)
        assert found.text == TEXT
        assert found.usage.type == "duration"
        assert found.usage.seconds == 3
        assert await create(**given, response_format="text") == TEXT + "\n"
        assert await create(**given, response_format="srt") == (
            "1\n00:00:00,000 --> 00:00:01,250\nIt has\n\n"
            "2\n01:01:01,500 --> 01:01:02,000\n40000 -> ü.\n\n"
        )
        assert await create(**given, response_format="vtt") == (
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nIt has\n\n"
            "01:01:01.500 --> 01:01:02.000\n40000 -> ü.\n\n"
        )
        verbose = await create(**given, response_format="verbose_json", language="en")
        assert isinstance(verbose, TranscriptionVerbose)
        assert (verbose.duration, verbose.language, verbose.words) == (2.5, "en", None)
        assert [(each.id, each.start, each.end) for each in verbose.segments] == [
            (0, 0.0, 1.25),
            (1, 3661.5, 3662.0),
        ]
        words = await create(
            **given, response_format="verbose_json", timestamp_granularities=["word", "segment"]
        )
        assert [(word.word, word.start, word.end) for word in words.words] == [
            ("It", 0.0, 0.5),
            ("has", 0.5, 1.25),
        ]
        assert len(words.segments) == 2
        stream = await create(**given, stream=True)
        events = [event async for event in stream]
        assert [event.type for event in events[-2:]] == [
            "transcript.text.delta",
            "transcript.text.done",
        ]
        assert "".join(event.delta for event in events[:-1]) == events[-1].text == TEXT
    assert site.backend.clients == ["127.0.0.1"] * len(site.backend.clients)


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
async def test_translation_request_sets_the_translating_mode(start, prefix: str) -> None:
    site = await start()
    data = {"model": "whisper", "response_format": "verbose_json", "prompt": "Hello"}
    answer = await site.post(data, path=f"{prefix}/audio/translations")
    found = answer.json()
    assert (found["text"], found["language"], found["task"]) == (TEXT, "en", "translate")
    params = SpeechParams(translates=True, prompt="Hello", has_segments=True)
    assert site.backend.asked == [params]


@pytest.mark.parametrize(
    ("data", "changed"),
    [
        ({}, {}),
        ({"model": ""}, {}),
        ({"model": "whisper", "unknown": "a", "user": "b"}, {}),
        ({"language": "DE", "temperature": "0.5", "seed": "7"},
         {"language": "de", "temperature": 0.5, "seed": 7}),
        ({"keywords[]": ["a", "b"]}, {"keywords": "a, b"}),
        ({"keywords": ["a", "b"]}, {"keywords": "a, b"}),
        ({"timestamp_granularities": ["word", "segment"], "response_format": "verbose_json"},
         {"has_words": True, "has_segments": True}),
        ({"language": "en-US"}, {"language": "en"}),
        ({"language": "German"}, {"language": "de"}),
        ({"language": "auto"}, {}),
        ({"prompt": "c" * 9000}, {"prompt": "c" * 9000}),
        ({"response_format": "srt", "stream": "false"}, {"has_segments": True}),
        ({"response_format": "verbose_json", "timestamp_granularities": "word"},
         {"has_words": True}),
        ({"language": "", "temperature": "", "response_format": "json"}, {}),
    ],
)  # fmt: skip
async def test_fields_that_are_taken(start, data: dict, changed: dict) -> None:
    site = await start()
    answer = await site.post(data)
    assert answer.status_code == 200, answer.text
    assert site.backend.asked == [SpeechParams(**changed)]


async def test_unknown_fields_of_a_form_are_named_in_a_warning(start) -> None:
    site = await start()
    data = {"timestamp_granularities[0]": "word", "mood": "good", "user": "", "prompt": "a"}
    answer = await site.post(data)
    expected = '299 - "unknown, and ignored: timestamp_granularities[0], mood"'
    assert (answer.status_code, answer.headers["warning"]) == (200, expected)
    assert "warning" not in (await site.post({"prompt": "a"})).headers


async def test_ovms_lists_times_without_a_format(start) -> None:
    site = await start()
    answer = await site.post(
        {"model": "whisper", "timestamp_granularities[]": "word"},
        path="/v3/audio/transcriptions",
    )
    assert len(answer.json()["words"]) == 2
    assert "segments" not in answer.json()


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        ({"model": "other"}, "model", "The model `other` does not exist."),
        ({"response_format": "diarized_json"}, "response_format",
         "response_format must be one of json, text, srt, verbose_json, vtt, not"),
        ({"temperature": "2"}, "temperature", 'temperature must be a number from 0 to 1, not "2"'),
        ({"temperature": "nan"}, "temperature", "a number from 0 to 1"),
        ({"temperature": "warm"}, "temperature", "a number from 0 to 1"),
        ({"seed": "-1"}, "seed", "a number from 0 to"),
        ({"stream": "maybe"}, "stream", 'stream must be true or false, not "maybe"'),
        ({"stream": "true", "response_format": "srt"}, "response_format",
         "json or text with stream"),
        ({"language": "klingon"}, "language", 'language must be one of de, en, not "klingon"'),
        ({"language": ["de", "en"]}, "language", "language must be given once"),
        ({"timestamp_granularities[]": ["word"]}, "timestamp_granularities",
         "timestamp_granularities needs response_format verbose_json, not json"),
        ({"timestamp_granularities[]": ["letter"], "response_format": "verbose_json"},
         "timestamp_granularities", "one of segment, word"),
        ({"include[]": ["logprobs"]}, "include", "the model gives no log probabilities"),
        ({"prompt": "a <|endoftext|>"}, "prompt", r"prompt must not contain <\|"),
        ({"prompt": "a" * 20_000}, "prompt", "prompt must have at most 16384 bytes"),
        ({f"field{i}": "a" for i in range(40)}, None, "a form must have at most 32 fields"),
    ],
)  # fmt: skip
async def test_fields_that_are_refused(start, data: dict, param: str, message: str) -> None:
    site = await start()
    answer = await site.post({"model": "whisper", **data})
    error = answer.json()["error"]
    assert answer.status_code == (404 if param == "model" else 400)
    assert error["param"] == param
    assert re.search(message, error["message"]), error
    assert site.backend.asked == []


async def test_unsupported_task_of_a_speech_model_is_refused(start) -> None:
    site = await start(SpeechInfo(LANGUAGES, translates=False, finds_words=False))
    words = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    for data, path, message in (
        ({}, "translations", "the model whisper does not translate"),
        (words, "transcriptions", "does not report times of words"),
    ):
        answer = await site.post(data, path=f"/v1/audio/{path}")
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    site = await start(replace(ABLE, finds_times=False))
    timed = {"timestamp_granularities[]": "segment"}
    for data, prefix in (({"response_format": "srt"}, "v1"), (timed, "v3"), (timed | words, "v1")):
        answer = await site.post(
            {"model": "whisper"} | data, path=f"/{prefix}/audio/transcriptions"
        )
        assert answer.status_code == 400
        assert "whisper reports no times: response_format must be json or text" in answer.text
    site = await start(decodes=False)
    answer = await site.post()
    assert answer.status_code == 400
    assert "without the extra speech" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("file", "status", "message"),
    [
        (None, 400, "multipart/form-data"),
        (b"", 400, "corrupt, or not in one of the formats"),
        (b"PK\3\4" + bytes(1000), 400, "corrupt, or not in one of the formats"),
        (SOUND[:-1000], 400, "truncated"),
        (wav(sound(12.0)), 400, "file must have at most 10 seconds of audio, not 12"),
        (lambda: encoded("ogg", "libopus", sound(12.0)), 400, "at most 10 seconds of audio"),
        (SOUND + bytes(400_000), 413, "the file is larger than 460000 bytes"),
        (bytes(10**6), 413, ""),
    ],
)
async def test_files_that_are_refused(start, file: Any, status: int, message: str) -> None:
    site = await start(max_audio_size=460_000, max_audio_seconds=10)
    answer = await site.post({"model": "whisper"}, file() if callable(file) else file)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert site.backend.asked == []
    assert (await site.post()).status_code == 200


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("too many"), 429), (EngineFailed("it died"), 500)]
)
async def test_error_of_the_model_has_its_status_and_message(
    start, error: Exception, status: int
) -> None:
    site = await start()
    site.backend.error = error
    answer = await site.post()
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, str(error))
    answer = await site.post({"stream": "true"})
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    assert json.loads(frames[-2].removeprefix("data: "))["error"]["message"] == str(error)


async def test_audio_together_has_a_limit(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "_ROOM", 1)
    site = await start(max_audio_seconds=10)
    room = site.speech._decoded
    room.hold("127.0.0.1", room.free)
    answer = await site.post()
    assert answer.status_code == 429
    assert "the storage for decoded audio is full" in answer.json()["error"]["message"]
    room.give_back("127.0.0.1", room.free)
    assert (await site.post()).status_code == 200


async def test_upload_of_a_disconnected_client_is_released(start) -> None:
    site = await start()
    begun, never = asyncio.Event(), asyncio.Event()

    async def wait(*args: object) -> Transcript:
        begun.set()
        await never.wait()
        raise AssertionError

    site.backend.transcribe = wait
    upload = asyncio.ensure_future(site.post())
    await asyncio.wait_for(begun.wait(), 60)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
