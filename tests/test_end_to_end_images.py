"""A real server with a model that generates images and one that chats, asked by real clients."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import threading
import time

import httpx
import numpy as np
import openvino_genai as genai
import pytest

from fastovms.server_config import DEMO_MODEL
from tests.conftest import NEEDS_CURL
from tests.image_models import diffusion_dir, file_of, picture_of, pixels
from tests.real_server import PROMPT, start_server, stop_server

PICTURE = file_of(pixels(64, 64))


@pytest.fixture(scope="module")
def server():
    server = start_server(
        "--model", str(DEMO_MODEL), "--model", f"painter={diffusion_dir()}", "--state-dir",
        ":memory:", "--no-tune",
    )  # fmt: skip
    yield server
    stop_server(server)


def decoded(b64_json: str) -> np.ndarray:
    return np.asarray(picture_of(base64.b64decode(b64_json)))


@pytest.mark.nightly(but=("/v1",))
@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_images_are_those_of_genai(server, prefix: str) -> None:
    pipeline = genai.Text2ImagePipeline(diffusion_dir(), "CPU")
    wanted = pipeline.generate("three cats", rng_seed=409, num_inference_steps=5)
    given = {"rng_seed": 409, "num_inference_steps": 5}
    with server.client(prefix) as client:
        found = client.images.generate(
            model="painter", prompt="three cats", size="64x64", extra_body=given
        )
        assert np.array_equal(decoded(found.data[0].b64_json), wanted.data[0])
        edited = client.images.edit(
            model="painter",
            image=io.BytesIO(PICTURE),
            mask=io.BytesIO(PICTURE),
            prompt="three zebras",
            extra_body={**given, "size": "64x64", "strength": 0.67},
        )
        assert decoded(edited.data[0].b64_json).shape == (64, 64, 3)
        stream = client.images.generate(
            model="painter", prompt="three cats", stream=True, extra_body=given
        )
        [event] = [event for event in stream if event.type == "image_generation.completed"]
        assert np.array_equal(decoded(event.b64_json), wanted.data[0])
        stream = client.images.edit(
            model="painter",
            image=[io.BytesIO(PICTURE)],
            prompt="three zebras",
            stream=True,
            partial_images=2,
            extra_body={**given, "size": "64x64", "strength": 1},
        )
        *partial, completed = stream  # a client that reads slowly gets fewer incomplete images
        assert {event.type for event in partial} <= {"image_edit.partial_image"}
        assert completed.type == "image_edit.completed"


@NEEDS_CURL
def test_commands_of_the_ovms_demo_return_images(server, tmp_path) -> None:
    picture = tmp_path / "three_cats.png"
    picture.write_bytes(PICTURE)
    url = f"{server.url}/v3/images"
    body = {
        "model": "painter",
        "prompt": "Three astronauts on the moon",
        "rng_seed": 409,
        "num_inference_steps": 5,
        "size": "128x64",
    }
    form = ("model=painter", f"image=@{picture}", "strength=0.7", "prompt=Three zebras", "n=2")
    for command, size, count in (
        ([f"{url}/generations", "-H", "Content-Type: application/json", "-d", json.dumps(body)],
         (128, 64), 1),
        ([f"{url}/edits", *(part for field in form for part in ("-F", field))], (64, 64), 2),
    ):  # fmt: skip
        done = subprocess.run(["curl", "-sS", *command], capture_output=True, check=True)
        data = json.loads(done.stdout)["data"]
        assert len(data) == count
        assert {picture_of(base64.b64decode(each["b64_json"])).size for each in data} == {size}


def test_model_is_listed_with_its_task_and_refuses_others(server) -> None:
    with server.client("/v1") as client:
        assert client.models.retrieve("painter").capabilities == ["image"]
        with pytest.raises(Exception, match="it generates images") as caught:
            client.completions.create(model="painter", prompt=PROMPT)
        assert caught.value.status_code == 400
        with pytest.raises(Exception, match="it generates text") as caught:
            client.images.generate(model="demo_model", prompt=PROMPT)
        assert caught.value.status_code == 400
        assert client.images.generate(prompt="a cat").data, "the first model of images"


def test_open_webui_generates_and_edits_images(server) -> None:
    # The calls of its routers/images.py with the engine OpenAI: of a form, aiohttp gives each field
    # a type, and a chat's pictures are a list.
    headers = {"X-OpenWebUI-User-Name": "A", "X-OpenWebUI-User-Role": "user"}
    url, asked = f"{server.url}/v1/images", "?api-version=2025-04-01"
    given = {"model": "painter", "prompt": "a cat " * 40, "n": 1, "size": "64x64"}
    given |= {"response_format": "b64_json", "num_inference_steps": 2}
    text = "text/plain; charset=utf-8"
    form = [(name, (None, str(value), text)) for name, value in given.items()]
    form += [("background", (None, "auto", text)), ("image[]", ("0.png", PICTURE, "image/png"))]
    with httpx.Client(headers=headers, timeout=60) as client:
        for answer in (
            client.post(f"{url}/generations{asked}", json=given),
            client.post(f"{url}/edits{asked}", files=form),
        ):
            assert answer.status_code == 200
            [image] = answer.json()["data"]
            assert "url" not in image
            assert decoded(image["b64_json"]).shape == (64, 64, 3)
            assert answer.headers["warning"] == ('299 - "prompt is cut: the model reads 77 tokens"')
        answer = client.post(f"{url}/edits", files=[*form, form[-1]])
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "the form must have one image, not several"


def test_an_operator_sees_the_progress_and_cancels(server) -> None:
    answers: list[httpx.Response | Exception] = []
    body = {"prompt": "a cat", "size": "1024x1024", "num_inference_steps": 100, "n": 10}

    def ask() -> None:
        try:
            answers.append(httpx.post(f"{server.url}/v1/images/generations", json=body, timeout=60))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    work = f"{server.url}/v1/work"
    end = time.monotonic() + 60
    found: list[dict] = []
    while not found and time.monotonic() < end:
        listed = httpx.get(work).json()["data"]
        found = [item for item in listed if "progress" in item]
    assert found[0]["progress"]["total"] == 1000
    assert 1 <= found[0]["progress"]["done"] < 1000
    assert httpx.post(f"{work}/{found[0]['id']}/cancel").status_code == 200
    thread.join(60)
    assert isinstance(answers[0], httpx.HTTPError)
    small = {"prompt": "a cat", "num_inference_steps": 2}
    answer = httpx.post(f"{server.url}/v1/images/generations", json=small, timeout=60)
    assert answer.status_code == 200


def test_chat_streams_while_an_image_is_made(server) -> None:
    with server.client("/v1") as client:
        stream = client.completions.create(
            model="demo_model", prompt=PROMPT, max_tokens=400, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(iter(stream))
        given = {"num_inference_steps": 40}
        found = client.images.generate(prompt="a cat", size="256x256", extra_body=given)
        assert found.data
        assert sum(1 for _ in stream) > 100
