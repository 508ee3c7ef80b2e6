"""Tests of `fastovms/parts/speech_out/endpoints.py`: real requests over real connections to a fake
model."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest

from fastovms.api.body import BodyReader
from fastovms.api.context import ApiContext
from fastovms.api.dialect import render_error
from fastovms.api.served import ServedModels
from fastovms.backend_stats import BackendStats
from fastovms.config import ApiConfig, HttpConfig, SpeakingConfig
from fastovms.errors import EngineFailed, InvalidField, Overloaded
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.parts.speech_out import endpoints as speech_out
from fastovms.parts.speech_out.backend import Encode, SpokenPiece
from fastovms.parts.speech_out.served import ServedSpeaker
from fastovms.parts.speech_out.worker import SpeakerInfo, SpeakText
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import model_info
from tests.speech_models import sound

KOKORO = {"af_heart": "en-us", "bf_emma": "en-gb", "jf_alpha": "ja"}
SPEECHT5 = {"default": "", "low": ""}
TWO = "The first sentence has some words. The second one has more of them."


class FakeSpeaker:
    """Speaks for one second per sentence.

    Attributes:
        spoken: the sentences so far.
        failing: the index of the sentence at which `error` is raised.
        left: set when a client has disconnected.
    """

    failure = None

    def __init__(self, languages: Sequence[str]) -> None:
        self.speaker = SpeakerInfo(24_000 if languages else 16_000, tuple(languages))
        self.model = model_info(name="tts")
        self.spoken: list[SpeakText] = []
        self.clients: list[str] = []
        self.error: Exception | None = None
        self.failing = 0
        self.pausing = asyncio.Event()
        self.pausing.set()
        self.left = asyncio.Event()

    async def speak(
        self, sentences: Sequence[SpeakText], encode: Encode, client: str
    ) -> AsyncGenerator[SpokenPiece, None]:
        self.clients.append(client)
        try:
            for number, asked in enumerate(sentences):
                if self.error is not None and number == self.failing:
                    raise self.error
                if number:
                    await self.pausing.wait()
                self.spoken.append(asked)
                samples = sound(1.0, seed=number, rate=self.speaker.rate)
                if asked.text == "1":
                    samples = samples[:0]
                yield SpokenPiece(encode(samples, number + 1 == len(sentences)), len(samples), 0, 0)
        finally:
            self.left.set()

    def stats(self) -> BackendStats:
        return BackendStats()


@dataclass
class Site:
    backend: FakeSpeaker
    url: str

    def client(self, prefix: str = "/v1") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + prefix, api_key="a", max_retries=0)

    async def post(self, path: str = "/v1/audio/speech", **body: object) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(self.url + path, json=body)

    async def get(self, path: str) -> Any:
        async with httpx.AsyncClient(timeout=60) as client:
            return (await client.get(self.url + path)).json()


@pytest.fixture
async def start() -> AsyncIterator:
    servers = []

    async def begin(voices: dict[str, str] = KOKORO, **config: float) -> Site:
        languages = ("en-us", "en-gb", "hi") if voices is KOKORO else ()
        backend = FakeSpeaker(languages)
        model = ServedSpeaker(
            backend, GenerationMetrics("tts", backend.stats), voices, SpeakingConfig(**config)
        )
        context = ApiContext(
            ServedModels([model]),
            ApiConfig(),
            new_id=lambda: "x",
            unix_time=lambda: 0.0,
            bodies=BodyReader(),
        )
        router = Router()
        for route in speech_out.endpoints(context):
            router.add(route.method, route.path, route.handler)
        server = HttpServer(
            HttpConfig(port=0, linger_timeout=0.1, close_timeout=0.1),
            Dispatcher(router, render_error),
        )
        await server.start()
        servers.append(server)
        return Site(backend, f"http://127.0.0.1:{server.addresses[0].rpartition(':')[2]}")

    yield begin
    for server in servers:
        await server.close()


def seconds_of(data: bytes) -> float:
    """Decodes an audio file and returns its duration in seconds."""
    with av.open(io.BytesIO(data)) as file:
        frames = list(file.decode(audio=0))
        return sum(frame.samples for frame in frames) / frames[0].sample_rate


@pytest.mark.parametrize(
    ("format", "media_type"),
    [("mp3", "audio/mpeg"), ("opus", "audio/ogg"), ("aac", "audio/aac"), ("flac", "audio/flac")],
)
@pytest.mark.parametrize("voices", [KOKORO, SPEECHT5], ids=["kokoro", "speecht5"])
async def test_each_format_has_the_audio_of_all_sentences(
    start, format: str, media_type: str, voices: dict[str, str]
) -> None:
    site = await start(voices)
    answer = await site.post(model="tts", input=TWO, response_format=format)
    assert answer.headers["content-type"] == media_type
    assert seconds_of(answer.content) == pytest.approx(2, abs=0.2)
    assert len(site.backend.spoken) == 2


async def test_wav_has_its_length_unless_it_is_streamed(start) -> None:
    site = await start()
    whole = await site.post(model="tts", input=TWO, response_format="wav")
    with wave.open(io.BytesIO(whole.content)) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, 48_000)
    assert "content-length" in whole.headers
    streamed = await site.post(model="tts", input=TWO, response_format="wav", stream_format="audio")
    assert streamed.headers["content-type"] == "audio/wav"
    assert streamed.content[:4] + streamed.content[40:44] == b"RIFF" + b"\xff" * 4
    assert streamed.content[44:] == whole.content[44:]
    assert seconds_of(streamed.content) == 2


async def test_pcm_has_24000_samples_a_second(start) -> None:
    site = await start(SPEECHT5)
    answer = await site.post(model="tts", input=TWO, response_format="pcm")
    assert np.frombuffer(answer.content, "<i2").shape == (48_000,)


@pytest.mark.parametrize("prefix", ["/v1", "/v3", "/v3/v1"])
async def test_openais_client_streams_to_a_file(start, tmp_path, prefix: str) -> None:
    site = await start()
    async with site.client(prefix) as client:
        create = client.audio.speech.with_streaming_response.create
        async with create(
            model="tts", voice="bf_emma", input=TWO, speed=1.5, response_format="flac"
        ) as response:
            await response.stream_to_file(tmp_path / "a.flac")
    assert seconds_of((tmp_path / "a.flac").read_bytes()) == 2
    assert site.backend.spoken == [
        SpeakText(text, "bf_emma", 1.5, "en-gb")
        for text in ("The first sentence has some words.", "The second one has more of them.")
    ]
    assert site.backend.clients == ["127.0.0.1"]


async def test_openais_client_gets_audio_in_events(start) -> None:
    site = await start()
    async with site.client() as client:
        create = client.audio.speech.with_streaming_response.create
        given = {"model": "tts", "voice": "af_heart", "input": TWO, "response_format": "pcm"}
        async with create(**given, stream_format="sse") as response:
            lines = [line async for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert len(audio) == 96_000
    usage = {"input_tokens": len(TWO), "output_tokens": 0, "total_tokens": len(TWO)}
    assert done == {"type": "speech.audio.done", "usage": usage}


async def test_first_sentence_comes_before_the_second_is_spoken(start) -> None:
    site = await start()
    site.backend.pausing.clear()
    body = {"model": "tts", "input": TWO, "response_format": "pcm"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", site.url + "/v1/audio/speech", json=body) as response,
    ):
        pieces = response.aiter_raw()
        received = 0
        while received < 48_000:
            received += len(await anext(pieces))
        assert len(site.backend.spoken) == 1
        site.backend.pausing.set()
        assert received + sum([len(piece) async for piece in pieces]) == 96_000


async def test_client_that_leaves_stops_the_work_between_sentences(start) -> None:
    site = await start()
    site.backend.pausing.clear()
    body = {"model": "tts", "input": TWO, "response_format": "pcm"}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", site.url + "/v1/audio/speech", json=body) as response,
    ):
        await anext(response.aiter_raw())
    async with asyncio.timeout(60):
        await site.backend.left.wait()
    assert len(site.backend.spoken) == 1


async def test_open_webui_is_served_as_it_asks(start) -> None:
    # Its calls with the engine OpenAI, as its routers/audio.py makes them: the lists of models and
    # voices, then speech with its default voice. It reads `id` and `name`.
    site = await start()
    models = await site.get("/v1/audio/models")
    assert [model["id"] for model in models["models"]] == ["tts"]
    voices = await site.get("/v1/audio/voices")
    assert {voice["id"]: voice["name"] for voice in voices["voices"]} == {
        "af_heart": "af_heart",
        "bf_emma": "bf_emma",
    }
    answer = await site.post(model="tts", input="Hello.", voice="alloy")
    assert answer.headers["content-type"] == "audio/mpeg"
    assert "has no voice alloy: af_heart speaks" in answer.headers["warning"]
    assert seconds_of(answer.content) == pytest.approx(1, abs=0.1)
    assert site.backend.spoken == [SpeakText("Hello.", "af_heart", 1.0, "en-us")]


@pytest.mark.parametrize(
    ("body", "spoken"),
    [
        ({}, ("af_heart", 1.0, "en-us")),
        ({"voice": "unused"}, ("af_heart", 1.0, "en-us")),  # as in OVMS's demos
        ({"voice": {"id": "bf_emma"}, "speed": 0.25}, ("bf_emma", 0.25, "en-gb")),
        ({"voice": "bf_emma", "language": "EN-US"}, ("bf_emma", 1.0, "en-us")),
        ({"voice": "jf_alpha", "language": "en-us"}, ("jf_alpha", 1.0, "en-us")),
        ({"instructions": "", "speed": 4}, ("af_heart", 4.0, "en-us")),
        ({"language": "hi", "input": "नमस्ते world"}, ("af_heart", 1.0, "hi")),
        ({"input": "Café, naïve ① ﬁn"}, ("af_heart", 1.0, "en-us")),
    ],
)
async def test_fields_that_are_taken(start, body: dict, spoken: tuple) -> None:
    site = await start()
    given = {"model": "tts", "input": "Hello.", "response_format": "wav", **body}
    answer = await site.post(**given)
    assert answer.status_code == 200, answer.text
    assert site.backend.spoken == [SpeakText(given["input"], *spoken)]


async def test_ovms_dialect_answers_with_wav(start) -> None:
    site = await start()
    answer = await site.post("/v3/audio/speech", model="tts", input="Hello.", language="en-gb")
    assert answer.headers["content-type"] == "audio/wav"
    assert site.backend.spoken == [SpeakText("Hello.", "af_heart", 1.0, "en-gb")]


@pytest.mark.parametrize(
    ("voices", "body", "param", "message"),
    [
        (KOKORO, {"input": None}, "input", "input is required"),
        (KOKORO, {"input": ""}, "input", "input must be a text with letters or digits, not"),
        (KOKORO, {"input": " ... "}, "input", "input must be a text with letters or digits, not"),
        (KOKORO, {"input": "a" * 4097}, "input", "must have at most 4096 characters, not 4097"),
        (KOKORO, {"input": ["a"]}, "input", "input must be a string"),
        (KOKORO, {"input": "Привет"}, "input", "a letter of another script (cyrillic)"),
        (KOKORO, {"voice": "x"}, "voice", 'must be one of af_heart, bf_emma, jf_alpha, not "x"'),
        (KOKORO, {"voice": "jf_alpha"}, "voice", "speaks ja, which the model tts cannot speak"),
        (KOKORO, {"voice": 5}, "voice", "voice must be a string or an object, not 5"),
        (KOKORO, {"language": "ja"}, "language", "language must be one of en-us, en-gb, hi, not"),
        (KOKORO, {"speed": 0.2}, "speed", "speed must be a number from 0.25 to 4, not 0.2"),
        (KOKORO, {"speed": 4.01}, "speed", "speed must be a number from 0.25 to 4, not 4.01"),
        (KOKORO, {"response_format": "ogg"}, "response_format",
         'must be one of mp3, opus, aac, flac, wav, pcm, not "ogg"'),
        (KOKORO, {"stream_format": "x"}, "stream_format", "must be one of audio, sse, not"),
        (KOKORO, {"instructions": "Shout."}, "instructions", "the model tts does not support them"),
        (SPEECHT5, {"speed": 2}, "speed", "speed must be 1: the model tts supports only"),
        (SPEECHT5, {"language": "en-us"}, "language", "language must be absent"),
        (SPEECHT5, {"voice": "high"}, "voice", "voice must be one of default, low"),
    ],
)  # fmt: skip
async def test_fields_that_are_refused(
    start, voices: dict[str, str], body: dict, param: str, message: str
) -> None:
    site = await start(voices)
    for more in ({}, {"stream_format": "sse"}):
        answer = await site.post(**{"model": "tts", "input": "Hello.", **more, **body})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == param
        assert message in error["message"]
    assert site.backend.spoken == []


async def test_speeds_that_the_operator_does_not_allow_are_refused(start) -> None:
    site = await start(min_speed=0.5, max_speed=2.0)
    answer = await site.post(model="tts", input="Hello.", speed=2.5)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == "speed must be a number from 0.5 to 2, not 2.5"
    assert site.backend.spoken == []


async def test_formats_that_need_the_extra_are_refused_without_it(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_out, "encodes", lambda name: name in ("wav", "pcm"))
    site = await start()
    answer = await site.post(model="tts", input="Hello.")
    assert answer.status_code == 400
    assert "must be wav or pcm, not mp3" in answer.json()["error"]["message"]
    answer = await site.post(model="tts", input="Hello.", response_format="pcm")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("too many"), 429),
        (EngineFailed("it died"), 500),
        (InvalidField("input has a part that the model cannot speak: x", param="input"), 400),
    ],
)
@pytest.mark.parametrize("format", ["wav", "mp3"])
async def test_errors_before_any_audio_have_their_status(
    start, error: Exception, status: int, format: str
) -> None:
    site = await start()
    site.backend.error = error
    answer = await site.post(model="tts", input=TWO, response_format=format)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, str(error))


async def test_text_without_sounds_is_refused(start) -> None:
    site = await start()
    for format in ("wav", "pcm", "mp3", "opus", "aac", "flac"):
        answer = await site.post(
            model="tts", input="1", response_format=format, stream_format="audio"
        )
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "input"
        assert error["message"] == "input has nothing that the model tts can speak"


async def test_error_between_sentences_cuts_the_audio(start) -> None:
    site = await start()
    site.backend.error, site.backend.failing = EngineFailed("it died"), 1
    with pytest.raises(httpx.RemoteProtocolError):
        await site.post(model="tts", input=TWO, response_format="pcm")
    answer = await site.post(model="tts", input=TWO, response_format="pcm", stream_format="sse")
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    assert json.loads(frames[0].removeprefix("data: "))["type"] == "speech.audio.delta"
    assert json.loads(frames[-2].removeprefix("data: "))["error"]["message"] == "it died"
