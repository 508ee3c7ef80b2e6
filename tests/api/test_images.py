"""Tests of `fastovms/parts/images/endpoints.py` and `request.py`: real requests over real
connections to a fake model and a shared image decoder."""

from __future__ import annotations

import asyncio
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from fastovms.api.body import BodyReader, FairThread
from fastovms.api.context import ApiContext
from fastovms.api.dialect import render_error
from fastovms.api.served import ServedModels
from fastovms.app.parts import FORMS
from fastovms.backend_stats import BackendStats
from fastovms.config import ApiConfig, HttpConfig, ImageConfig
from fastovms.errors import EngineFailed, Overloaded
from fastovms.http.gates import JsonOnly
from fastovms.http.routing import Dispatcher, Router
from fastovms.http.server import HttpServer
from fastovms.parts.images import endpoints as images
from fastovms.parts.images.picture import (
    Edited,
    ImageInfo,
    ImageParams,
    Made,
    MadeImages,
    Step,
)
from fastovms.parts.images.prompts import PromptReader
from fastovms.parts.images.served import ServedImages
from fastovms.parts.media.image_decoder import ImageDecoder
from fastovms.server_config import MediaConfig
from fastovms.telemetry.metrics import GenerationMetrics
from tests.fakes import model_info
from tests.image_models import diffusion_dir, file_of, pixels

PICTURE = pixels(80, 50)
FILE = b64encode(b"a file").decode()


class FakeImages:
    """A backend that returns the same file for all images.

    Attributes:
        error: the exception that it raises, or None.
        asked: the arguments of each call.
        is_held: whether the next call waits for `go_on` after its first step.
    """

    def __init__(self, **abilities: object) -> None:
        given = {
            "class_name": "StableDiffusionPipeline",
            "width": 64,
            "height": 32,
            "multiple": 8,
            "num_steps": 4,
            "guidance_scale": 7.5,
            "strength": 0.8,
            **dict.fromkeys(("generates", "edits", "inpaints"), True),
        }
        self.abilities = ImageInfo(**given | abilities)
        self.model = model_info(name="painter")
        self.failure = None
        self.last_step: tuple[int, int, float] | None = None
        self.error: Exception | None = None
        self.asked: list[tuple[ImageParams, Edited | None, int, int]] = []
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()
        self.is_held = False
        self.cancelled = asyncio.Event()

    async def make(
        self,
        params: ImageParams,
        edited: Edited | None,
        num_images: int,
        *,
        num_partials: int,
        client: str,
        request_id: str,
        on_step: Callable[[Step], None],
        on_made: Callable[[int, Made], None],
    ) -> MadeImages:
        self.asked.append((params, edited, num_images, num_partials))
        if self.error is not None:
            raise self.error
        found = MadeImages()
        for number in range(num_images):
            partial = b64encode(b"a part") if num_partials else None
            on_step(Step(2 * number + 1, 2 * num_images, number, partial))
            self.begun.set()
            if self.is_held:
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            on_step(Step(2 * number + 2, 2 * num_images, number, None))
            found.images.append(Made(FILE.encode(), params.seed + number))
            on_made(number, found.images[-1])
        return found

    def stats(self) -> BackendStats:
        return BackendStats()


@dataclass
class Site:
    server: HttpServer
    backend: FakeImages
    url: str
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    def client(self, prefix: str = "/v1") -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(base_url=self.url + prefix, api_key="a", max_retries=0)
        self.clients.append(client)
        return client

    async def post(self, path: str = "/v1/images/generations", **given: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(self.url + path, **given)

    async def edit(
        self,
        data: Mapping[str, str] | None = None,
        *,
        image: bytes | None = file_of(PICTURE),
        mask: bytes | None = None,
    ) -> httpx.Response:
        given = {"image": image, "mask": mask}
        files = {name: ("a.png", file) for name, file in given.items() if file is not None}
        data = {"prompt": "a cat"} if data is None else data
        return await self.post("/v1/images/edits", data=data, files=files or None)


@pytest.fixture(scope="module")
def decoder():
    decoder = ImageDecoder(max_processes=1)
    yield decoder
    decoder.close()


@pytest.fixture
async def start(decoder: ImageDecoder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator:
    sites: list[Site] = []
    made: list[images.Images] = []
    make = images.Images

    def remember(context: ApiContext, media: MediaConfig) -> images.Images:
        made.append(make(context, media))
        return made[-1]

    monkeypatch.setattr(images, "Images", remember)

    async def begin(
        config: ImageConfig | None = None,
        media: MediaConfig | None = None,
        model_dir: Path | None = None,
        **abilities: object,
    ) -> Site:
        backend = FakeImages(**abilities)
        model = ServedImages(
            backend,
            config or ImageConfig(),
            GenerationMetrics("painter", backend.stats),
            decoder,
            FairThread("pictures", per_client=9, total=9),
            PromptReader.load(model_dir or diffusion_dir()),
        )
        context = ApiContext(
            ServedModels([model]),
            ApiConfig(),
            new_id=lambda: "0000002a" + 24 * "0",
            unix_time=lambda: 5.0,
            bodies=BodyReader(),
        )
        router = Router()
        for route in images.endpoints(context, media or MediaConfig()):
            router.add(route.method, route.path, route.handler)
        server = HttpServer(
            HttpConfig(port=0, max_body=100_000, linger_timeout=0.1, close_timeout=0.1),
            Dispatcher(router, render_error, checks=[JsonOnly(render_error, FORMS)]),
        )
        await server.start()
        port = server.addresses[0].rpartition(":")[2]
        sites.append(Site(server, backend, f"http://127.0.0.1:{port}"))
        return sites[-1]

    yield begin
    for site in sites:
        for client in site.clients:
            await client.close()
        await site.server.close()
    for handlers in made:
        await handlers._threads.close()
        for shares in (handlers._uploaded, handlers._uploads._places):
            shares.check()
            assert shares.used == 0


# The accepted requests.


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
async def test_openai_client_generates_images(start, prefix: str) -> None:
    site = await start()
    found = await site.client(prefix).images.generate(
        model="painter",
        prompt="a cat",
        n=2,
        size="64x128",
        response_format="b64_json",
        output_format="jpeg",
        output_compression=40,
        extra_body={
            "negative_prompt": "a dog",
            "num_inference_steps": 9,
            "guidance_scale": 3,
            "seed": 11,
        },
    )
    assert [image.b64_json for image in found.data] == [FILE] * 2
    assert [image.seed for image in found.data] == [11, 12]
    assert (found.created, found.size, found.output_format) == (5, "64x128", "jpeg")
    [(params, edited, num_images, _)] = site.backend.asked
    assert params == ImageParams(
        "a cat",
        64,
        128,
        {"negative_prompt": "a dog"},
        num_steps=9,
        guidance_scale=3.0,
        seed=11,
        output_format="jpeg",
        quality=40,
    )
    assert (edited, num_images) == (None, 2)


async def test_defaults_are_those_of_the_model_and_the_operator(start) -> None:
    site = await start()
    await site.client().images.generate(prompt="a cat", size="auto")
    assert site.backend.asked[0][0] == ImageParams("a cat", 64, 32, num_steps=4, seed=42)
    site = await start(ImageConfig(max_num_inference_steps=3))
    await site.client().images.generate(prompt="a cat")
    assert site.backend.asked[0][0].num_steps == 3
    config = ImageConfig(default_resolution=(128, 256), default_num_inference_steps=7)
    site = await start(config)
    await site.client().images.generate(prompt="a cat")
    assert site.backend.asked[0][0] == ImageParams("a cat", 128, 256, num_steps=7, seed=42)


async def test_openai_client_edits_a_picture_with_a_mask(start) -> None:
    site = await start()
    hole = np.zeros((50, 80, 4), np.uint8)
    hole[:, :, :3], hole[:25, :, 3] = 200, 255  # the lower half is transparent
    found = await site.client().images.edit(
        prompt="a cat",
        image=("a.png", file_of(PICTURE)),
        mask=("b.png", file_of(hole)),
        n=2,
        extra_body={"strength": 0.5, "num_inference_steps": 8, "rng_seed": 3},
    )
    assert len(found.data) == 2
    [(params, edited, num_images, _)] = site.backend.asked
    expected = ImageParams("a cat", 80, 48, num_steps=8, strength=0.5, seed=3)
    assert (params, num_images) == (expected, 2)
    assert np.array_equal(edited.picture, PICTURE)
    assert np.array_equal(edited.mask[:25], np.zeros((25, 80, 3)))
    assert np.array_equal(edited.mask[25:], np.full((25, 80, 3), 255))


async def test_a_large_picture_is_edited_at_the_largest_size(start) -> None:
    site = await start(ImageConfig(max_resolution=(64, 64)))
    assert (await site.edit(image=file_of(pixels(200, 100)))).status_code == 200
    params, edited, *_ = site.backend.asked[0]
    assert (params.width, params.height) == (64, 32)
    assert edited.picture.size <= 64 * 64 * 3


async def test_images_stream_as_the_openai_client_reads_them(start) -> None:
    site = await start()
    create = site.client().images.generate
    stream = await create(prompt="a cat", stream=True, partial_images=1, n=2)
    events = [event async for event in stream]
    assert [event.type.split(".")[1] for event in events] == ["partial_image", "completed"] * 2
    assert b64decode(events[0].b64_json) == b"a part"
    assert {event.b64_json for event in events[1::2]} == {FILE}
    assert [(event.size, event.output_format) for event in events] == [("64x32", "png")] * 4
    image = ("a.png", file_of(PICTURE))
    stream = await site.client().images.edit(prompt="a cat", image=image, stream=True)
    assert [event.type async for event in stream] == ["image_edit.completed"]


async def test_progress_is_in_the_list_of_work_and_a_disconnect_cancels(start) -> None:
    site = await start()
    site.backend.is_held = True
    task = asyncio.create_task(site.client().images.generate(prompt="a cat", n=3))
    await site.backend.begun.wait()
    [request] = [one for one in site.server.requests() if one.received_at]
    assert request.progress == (1, 6)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(site.backend.cancelled.wait(), 60)


# The refused requests.


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "prompt is required"),
        ({"prompt": "a" * 32_001}, "prompt", "at most 32000 characters, not 32001"),
        ({"n": 0}, "n", "n must be at least 1"),
        ({"n": 11}, "n", r"n must be at most 10 \(--max-num-images-per-prompt\), not 11"),
        ({"n": 2, "num_images_per_prompt": 3}, "num_images_per_prompt", "must not differ"),
        ({"n": "2"}, "n", "n must be an integer"),
        ({"size": "64"}, "size", 'size must be "auto" or WIDTHxHEIGHT, not "64"'),
        ({"size": "0x64"}, "size", "WIDTHxHEIGHT"),
        ({"size": "2048x64"}, "size", r"at most 1024x1024 \(--max-resolution\), not \"2048x64\""),
        ({"size": "60x64"}, "size", "multiples of 8"),
        ({"width": 64}, "size", "either size or both width and height"),
        ({"num_inference_steps": 0}, "num_inference_steps", "from 1 to 100"),
        ({"num_inference_steps": 101}, "num_inference_steps", "--max-num-inference-steps"),
        ({"seed": -1}, "seed", "from 0 to"),
        ({"guidance_scale": 1e9}, "guidance_scale", "from 0 to 100"),
        ({"negative_prompt": "a", "guidance_scale": 1}, "negative_prompt", "more than 1"),
        ({"prompt_2": "a"}, "prompt_2", r"model painter \(StableDiffusionPipeline\)"),
        ({"max_sequence_length": 9}, "max_sequence_length", "is not supported by the model"),
        ({"response_format": "url"}, "response_format", 'one of b64_json, not "url"'),
        ({"output_format": "gif"}, "output_format", "one of png, jpeg, webp"),
        ({"output_compression": 9}, "output_compression", "needs the output_format jpeg or webp"),
        ({"background": "transparent"}, "background", "one of auto, opaque"),
        ({"partial_images": 1}, "partial_images", "requires stream"),
        ({"stream": True, "partial_images": 4}, "partial_images", "from 0 to 3"),
    ],
)
async def test_invalid_fields_are_refused_by_name(start, body, param, message) -> None:
    site = await start()
    answer = await site.post(json={"prompt": "a cat"} | body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert re.search(message, error["message"]), error["message"]
    assert not site.backend.asked


async def test_a_size_that_is_too_large_is_refused_with_the_time_of_a_step(start) -> None:
    site = await start()
    site.backend.last_step = (512, 512, 4.25)
    answer = await site.post(json={"prompt": "a cat", "size": "4096x4096"})
    assert answer.json()["error"]["message"].endswith("A step of 512x512 took 4.2 s here")


@pytest.mark.parametrize(
    ("data", "files", "message"),
    [
        ({}, {}, "prompt is required"),
        (None, {"image": None}, "Content-Type must be multipart/form-data"),
        (None, {"image": None, "mask": file_of(PICTURE)}, "image is required"),
        (None, {"image": b"no picture"}, "image must be an image in one of the formats"),
        (None, {"mask": b"no picture"}, "mask must be an image in one of the formats"),
        ({"prompt": "a", "strength": "2"}, {}, "strength must be from 0 to 1, not 2"),
        ({"prompt": "a", "strength": "0.1"}, {}, "leaves none of the 4 steps"),
        ({"prompt": "a", "n": "two"}, {}, 'n must be an integer, not "two"'),
    ],
)
async def test_invalid_forms_are_refused(start, data, files, message) -> None:
    site = await start()
    answer = await site.edit(data, **files)
    assert answer.status_code in (400, 415)
    assert message.lower() in answer.text.replace('\\"', '"').lower()
    assert not site.backend.asked


async def test_a_picture_beyond_the_limits_of_media_is_refused(start) -> None:
    site = await start(media=MediaConfig(max_image_pixels=1000))
    answer = await site.edit()
    assert "must have at most 1000 pixels, not 4000 (80 x 50)" in answer.json()["error"]["message"]
    site = await start(media=MediaConfig(max_image_bytes=100))
    assert (await site.edit()).status_code == 413


@pytest.mark.parametrize(
    ("abilities", "data", "mask", "message"),
    [
        ({"generates": False, "edits": False}, None, None, "edits pictures with a mask only"),
        ({"inpaints": False}, {"prompt": "a"}, file_of(PICTURE), "does not support a mask"),
        ({"edits": False}, {"prompt": "a"}, None, "needs a mask"),
    ],
)
async def test_use_that_a_model_lacks_is_refused(start, abilities, data, mask, message) -> None:
    site = await start(**abilities)
    if data is None:
        answer = await site.post(json={"prompt": "a cat"})
    else:
        answer = await site.edit(data, mask=mask)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


LONG = "a cat on a mat " * 20
CUT = "prompt is cut: the model reads {} tokens"


@pytest.mark.parametrize(
    ("encoders", "body", "warning"),
    [
        (1, {"prompt": "x" * 77}, None),
        (1, {"prompt": "x" * 78}, CUT.format(77)),
        (1, {"prompt": LONG, "stream": True}, CUT.format(77)),
        (1, {"negative_prompt": LONG}, f"negative_{CUT.format(77)}"),
        (2, {"prompt": LONG, "prompt_2": "a cat"}, CUT.format(77)),
        (2, {"prompt_2": LONG}, CUT.format(77).replace("prompt", "prompt_2")),
        # The third encoder reads as many tokens as the request says.
        (3, {"prompt": LONG}, None),
        (3, {"prompt": LONG, "max_sequence_length": 100}, CUT.format(100)),
        (3, {"prompt": LONG, "prompt_3": "a cat"}, CUT.format(77)),
        (3, {"prompt": LONG * 2}, CUT.format(512)),
    ],
)
async def test_prompt_beyond_the_text_encoders_is_a_warning(
    start, tmp_path: Path, encoders: int, body: dict, warning: str | None
) -> None:
    for number in range(encoders):
        place = f"_{number + 1}" if number else ""
        shutil.copytree(diffusion_dir() / "tokenizer", tmp_path / f"tokenizer{place}")
        (tmp_path / f"text_encoder{place}").mkdir()
        config = '{"max_position_embeddings": 77}' if number < 2 else "{}"
        (tmp_path / f"text_encoder{place}" / "config.json").write_text(config)
    name = ("StableDiffusionPipeline", "StableDiffusionXLPipeline", "StableDiffusion3Pipeline")
    length = 512 if encoders == 3 else None
    site = await start(
        model_dir=tmp_path, class_name=name[encoders - 1], max_sequence_length=length
    )
    answer = await site.post(json={"prompt": "a cat", **body})
    assert answer.status_code == 200
    assert answer.headers.get("warning") == (warning and f'299 - "{warning}"')


async def test_fields_without_a_use_are_a_warning(start) -> None:
    site = await start()
    answer = await site.post(json={"prompt": "a cat", "quality": "high", "mood": "blue"})
    assert answer.status_code == 200
    assert "unknown, and ignored: mood; ignored: quality" in answer.headers["warning"]


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded("too many"), 429), (EngineFailed("it has died"), 500)]
)
async def test_errors_of_the_backend_have_their_status(start, error, status) -> None:
    site = await start()
    site.backend.error = error
    assert (await site.post(json={"prompt": "a cat"})).status_code == status
    stream = await site.post(json={"prompt": "a cat", "stream": True})
    assert stream.status_code == status
    assert str(error) in stream.text


async def test_a_static_size_is_the_only_one(start) -> None:
    site = await start(ImageConfig(resolution=(512, 256)))
    assert (await site.post(json={"prompt": "a"})).json()["size"] == "512x256"
    for body, message in (
        ({"size": "64x64"}, "size must be 512x256, the only one"),
        ({"guidance_scale": 1}, "more than 1, as the model was compiled"),
    ):
        answer = await site.post(json={"prompt": "a"} | body)
        assert message in answer.json()["error"]["message"]
