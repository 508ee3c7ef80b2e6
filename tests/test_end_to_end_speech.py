"""A real server with a model of speech and one that chats, asked by real clients."""

from __future__ import annotations

import subprocess

import av
import httpx
import numpy as np
import openvino_genai as genai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.conftest import NEEDS_CURL
from tests.real_server import PROMPT, start_server, stop_server
from tests.speech_models import encoded, qwen3_asr_dir, sound, speecht5_dir, wav, whisper_dir

SOUND = sound(4.0, seed=3)


@pytest.fixture(scope="module")
def server():
    server = start_server(
        "--model", str(DEMO_MODEL), "--model", f"speech={whisper_dir()}",
        "--model", f"tts={speecht5_dir()}", "--model", f"asr={qwen3_asr_dir()}",
        "--state-dir", ":memory:", "--no-tune",
    )  # fmt: skip
    yield server
    stop_server(server)


@pytest.fixture(scope="module")
def text() -> str:
    pipeline = genai.WhisperPipeline(whisper_dir(), "CPU")
    return pipeline.generate(SOUND.astype(np.float32) / 2**15).texts[0].strip()


@pytest.mark.nightly(but=("/v1",))
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_texts_are_those_of_genai(server, prefix: str, text: str) -> None:
    with server.client(prefix) as client:
        create = client.audio.transcriptions.create
        for file in (
            ("a.wav", wav(SOUND)),
            ("a.flac", encoded("flac", "flac", SOUND, rate=16_000)),
        ):
            assert create(model="speech", file=file).text == text
        verbose = create(
            model="speech",
            file=wav(SOUND),
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
        assert verbose.duration == 4.0
        assert verbose.text == "".join(each.text for each in verbose.segments).strip()
        assert "".join(word.word for word in verbose.words) == verbose.text.replace(" ", "")
        events = list(create(model="speech", file=wav(SOUND), stream=True))
        assert events[-1].text == "".join(event.delta for event in events[:-1]) == text
        assert create(model="speech", file=("a.mp3", encoded("mp3", "mp3", SOUND))).text


@NEEDS_CURL
def test_documented_curl_command_returns_a_transcript(server, tmp_path, text: str) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(wav(SOUND))
    command = ["curl", "-sS", f"{server.url}/v1/audio/transcriptions", "-F", f"file=@{path}"]
    done = subprocess.run(
        [*command, "-F", "response_format=text"], capture_output=True, text=True, check=True
    )
    assert done.stdout == text + "\n"


def test_qwen3_asr_answers_as_genai_does_and_refuses_times(server) -> None:
    pipeline = genai.ASRPipeline(qwen3_asr_dir(), "CPU")
    samples = SOUND.astype(np.float32) / 2**15
    found = pipeline.generate(samples, language="German", context="Anna", max_new_tokens=512)
    with server.client("/v1") as client:
        assert client.models.retrieve("asr").capabilities == ["transcription"]
        create = client.audio.transcriptions.create
        given = {"model": "asr", "file": wav(SOUND), "language": "de", "prompt": "Anna"}
        text = create(**given).text
        assert text == found.texts[0].strip() != ""
        events = list(create(**given, stream=True))
        assert events[-1].text == "".join(event.delta for event in events[:-1]) == text
        for refused in ({"response_format": "srt"}, {"language": "fr"}):
            with pytest.raises(Exception, match=r"reports no times|one of de, en, yue") as caught:
                create(**given | refused)
            assert caught.value.status_code == 400


def test_models_are_listed_with_what_they_do(server) -> None:
    with server.client("/v1") as client:
        card = client.models.retrieve("speech")
        assert card.capabilities == ["transcription"]
        with pytest.raises(Exception, match="it transcribes speech") as caught:
            client.completions.create(model="speech", prompt=PROMPT)
        assert caught.value.status_code == 400
        with pytest.raises(Exception, match="it generates text") as caught:
            client.audio.transcriptions.create(model="demo_model", file=wav(SOUND))
        assert caught.value.status_code == 400


def test_openais_client_streams_speech_of_a_text(server, tmp_path) -> None:
    text = "This sentence is long enough to be spoken alone. And so is the one after it."
    pipeline = genai.Text2SpeechPipeline(speecht5_dir(), "CPU")
    half = text.index("And")
    sizes = [
        pipeline.generate(piece.strip()).speeches[0].size for piece in (text[:half], text[half:])
    ]
    with server.client("/v1") as client:
        assert client.models.retrieve("tts").capabilities == ["speech"]
        create = client.audio.speech.with_streaming_response.create
        given = {"model": "tts", "voice": "default", "input": text}
        with create(**given, response_format="flac") as response:
            response.stream_to_file(tmp_path / "a.flac")
        with av.open(str(tmp_path / "a.flac")) as file:
            assert sum(frame.samples for frame in file.decode(audio=0)) == sum(sizes)
        with pytest.raises(Exception, match="it speaks texts: it takes audio/speech") as caught:
            client.completions.create(model="tts", prompt=PROMPT)
        assert caught.value.status_code == 400


def test_open_webui_transcribes_and_speaks(server, text: str) -> None:
    # The calls of its routers/audio.py with the engine OpenAI.
    headers = {"X-OpenWebUI-User-Name": "A", "Authorization": "Bearer none"}
    url = f"{server.url}/v1/audio"
    with httpx.Client(headers=headers, timeout=60) as client:
        for language in ({}, {"language": "en"}):
            answer = client.post(
                f"{url}/transcriptions",
                data={"model": "speech", **language},
                files={"file": ("0.wav", wav(SOUND))},
            )
            assert answer.json()["text"] == text
        assert client.get(f"{url}/models").json()["models"] == [{"id": "tts"}]
        voices = client.get(f"{url}/voices").json()["voices"]
        assert [(voice["id"], voice["name"]) for voice in voices] == [
            ("default", "default"),
            ("low", "low"),
        ]
        given = {"model": "tts", "input": "Hello.", "voice": "alloy"}
        answer = client.post(f"{url}/speech", json=given)
        assert answer.headers["content-type"] == "audio/mpeg"
        assert answer.content
        answer = client.post(f"{url}/speech", json={**given, "voice": "none"})
        assert answer.status_code == 400
        assert "voice must be one of default, low" in answer.json()["error"]["message"]


def test_chat_streams_while_speech_is_transcribed(server) -> None:
    with server.client("/v1") as client:
        stream = client.completions.create(
            model="demo_model", prompt=PROMPT, max_tokens=400, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        found = client.audio.transcriptions.create(model="speech", file=wav(sound(65.0)))
        assert found.text
        assert sum(1 for _ in stream) > 100
