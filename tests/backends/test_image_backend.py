"""Tests of `fastovms/parts/images/image_backend.py`, over the process of a tiny model."""

from __future__ import annotations

import asyncio
import signal
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import openvino_genai as genai
import pytest

from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.config import EngineConfig
from fastovms.errors import BackendUnavailable, ConfigurationError, EngineFailed, InvalidField
from fastovms.parts.images.image_backend import ImageBackend, load_images
from fastovms.parts.images.picture import (
    Edited,
    ImageParams,
    Made,
    MadeImages,
    StaticShape,
    Step,
    partial_steps,
)
from fastovms.parts.images.served import read_info
from tests.image_models import diffusion_dir, picture_of, pixels

PARAMS = ImageParams("a cat", 64, 64, num_steps=3, seed=7)


def load(directory: Path | None = None, shape: StaticShape | None = None) -> ImageBackend:
    directory = directory or diffusion_dir()
    info = read_info(directory, name="images")
    return load_images(
        directory, info, EngineConfig(device="CPU"), shape, ComputeTurn(ActiveEngines())
    )


@pytest.fixture
async def backend() -> AsyncIterator[ImageBackend]:
    backend = await asyncio.to_thread(load)
    backend.start()
    yield backend
    await backend.close()
    assert backend._peer._process.returncode is not None


async def make(
    backend: ImageBackend,
    params: ImageParams = PARAMS,
    edited: Edited | None = None,
    num_images: int = 1,
    **options: object,
) -> MadeImages:
    given = {"client": "a", "request_id": "r", "on_step": lambda step: None} | options
    return await backend.make(params, edited, num_images, **given)


def array(made: Made) -> np.ndarray:
    return np.asarray(picture_of(b64decode(made.file)))


async def test_image_equals_that_of_the_pipeline_alone(backend: ImageBackend) -> None:
    pipeline = genai.Text2ImagePipeline(diffusion_dir(), "CPU")
    steps: list[Step] = []
    found = await make(backend, num_images=2, on_step=steps.append)
    for number, made in enumerate(found.images):
        assert made.seed == 7 + number
        wanted = pipeline.generate(
            "a cat", width=64, height=64, num_inference_steps=3, rng_seed=7 + number
        )
        assert np.array_equal(array(made), wanted.data[0])
    # OpenVINO GenAI omits steps that it has no time to report.
    numbers = [step.num_done for step in steps]
    assert numbers == sorted(set(numbers))
    assert {3, 6} <= set(numbers) <= set(range(1, 7))
    assert {(step.num_all, step.image) for step in steps} == {(6, 0), (6, 1)}
    assert found.compute_time > 0


async def test_parameters_change_the_image(backend: ImageBackend) -> None:
    plain = array((await make(backend)).images[0])
    changes = (
        {"prompt": "a dog"},
        {"further": {"negative_prompt": "a cat"}},
        {"guidance_scale": 2.0},
        {"num_steps": 4},
        {"seed": 8},
    )
    for change in changes:
        params = ImageParams(**{"prompt": "a cat", "width": 64, "height": 64} | _given() | change)
        assert not np.array_equal(array((await make(backend, params)).images[0]), plain), change
    wide = ImageParams("a cat", 96, 32, num_steps=2, output_format="webp")
    assert array((await make(backend, wide)).images[0]).shape == (32, 96, 3)


def _given() -> dict[str, object]:
    return {"num_steps": 3, "seed": 7}


async def test_an_edited_picture_keeps_what_the_mask_leaves(backend: ImageBackend) -> None:
    picture = pixels(80, 64)
    params = ImageParams("a cat", 80, 64, num_steps=4, strength=0.5)
    steps: list[Step] = []
    plain = await make(backend, params, Edited(picture), on_step=steps.append)
    assert array(plain.images[0]).shape == (64, 80, 3)
    assert [step.num_all for step in steps] == [2, 2]
    mask = np.zeros_like(picture)
    mask[:, :40] = 255
    found = array((await make(backend, params, Edited(picture, mask))).images[0])
    none = array((await make(backend, params, Edited(picture, np.zeros_like(mask)))).images[0])
    # The decoder also uses the neighbours of a latent pixel, which has 8 x 8 pixels.
    assert np.array_equal(found[:, 56:], none[:, 56:])
    assert not np.array_equal(found[:, :40], none[:, :40])


async def test_incomplete_images_come_between_the_steps(backend: ImageBackend) -> None:
    params = ImageParams("a cat", 256, 256, num_steps=60)
    for _ in range(9):  # OpenVINO GenAI omits steps that it has no time to report
        steps: list[Step] = []
        found = await make(backend, params, num_partials=2, on_step=steps.append)
        shown = {step.num_done: step.partial for step in steps if step.partial is not None}
        if shown:
            break
    assert shown
    assert set(shown) <= {20, 40}
    files = {*shown.values(), found.images[0].file}
    assert len(files) == 1 + len(shown)
    assert {picture_of(b64decode(file)).size for file in files} == {(256, 256)}


@pytest.mark.parametrize(
    ("num_steps", "num_partials", "steps"),
    [(50, 3, [12, 25, 38]), (4, 0, []), (1, 3, []), (2, 3, [1]), (3, 1, [2])],
)
def test_partial_steps_are_evenly_spaced(
    num_steps: int, num_partials: int, steps: list[int]
) -> None:
    assert partial_steps(num_steps, num_partials) == steps


async def test_a_cancelled_request_stops_at_the_next_step(backend: ImageBackend) -> None:
    steps: list[Step] = []
    begun = asyncio.Event()

    def on_step(step: Step) -> None:
        steps.append(step)
        begun.set()

    endless = ImageParams("a cat", 512, 512, num_steps=900)
    task = asyncio.create_task(make(backend, endless, on_step=on_step))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first = backend._peer
    assert (await make(backend)).images
    assert backend._peer is first, "the process goes on"
    assert backend.stats().num_waiting == backend.stats().num_running == 0


async def test_clients_take_turns_with_their_images(backend: ImageBackend) -> None:
    order: list[str] = []

    async def ask(client: str, num_images: int) -> None:
        await make(backend, num_images=num_images, client=client)
        order.append(client)

    await asyncio.gather(ask("many", 20), ask("one", 1))
    assert order == ["one", "many"]


async def test_a_process_that_dies_fails_one_request_and_is_replaced(
    backend: ImageBackend,
) -> None:
    first = backend._peer
    endless = ImageParams("a cat", 512, 512, num_steps=900)
    on_step = lambda step: first.send_signal(signal.SIGSEGV)  # noqa: E731
    with pytest.raises(EngineFailed, match="the process that makes images was ended by SIGSEGV"):
        await make(backend, endless, on_step=on_step)
    assert (await make(backend)).images
    assert backend._peer is not first


async def test_parameters_that_the_pipeline_refuses_are_an_error_of_the_request(
    backend: ImageBackend,
) -> None:
    params = ImageParams("a cat", 64, 64, further={"prompt_3": "a"}, num_steps=2)
    with pytest.raises(InvalidField, match="the model refuses the request: Prompt 3 is not used"):
        await make(backend, params)
    assert (await make(backend)).images


async def test_a_model_for_masks_alone_has_no_other_pipeline() -> None:
    backend = await asyncio.to_thread(load, diffusion_dir(inpaints_only=True))
    backend.start()
    try:
        abilities = backend.abilities
        assert (abilities.generates, abilities.edits, abilities.inpaints) == (False, False, True)
        edited = Edited(pixels(64, 64), np.full((64, 64, 3), 255, np.uint8))
        assert (await make(backend, edited=edited)).images
    finally:
        await backend.close()
    with pytest.raises(BackendUnavailable):
        await make(backend)


async def test_a_model_compiled_for_one_size_makes_it() -> None:
    backend = await asyncio.to_thread(load, None, StaticShape(96, 32))
    backend.start()
    try:
        assert (backend.abilities.width, backend.abilities.height) == (96, 32)
        params = ImageParams("a cat", 96, 32, num_steps=2)
        assert array((await make(backend, params)).images[0]).shape == (32, 96, 3)
    finally:
        await backend.close()


def test_an_unsupported_pipeline_is_a_configuration_error(tmp_path: Path) -> None:
    for path in diffusion_dir().iterdir():
        if path.name != "model_index.json":
            (tmp_path / path.name).symlink_to(path)
    text = (diffusion_dir() / "model_index.json").read_text()
    index = tmp_path / "model_index.json"
    index.write_text(text.replace("StableDiffusionPipeline", "NoPipeline"))
    with pytest.raises(ConfigurationError, match="Unsupported inpainting pipeline 'NoPipeline'"):
        load(tmp_path)
    index.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"model_index\.json lacks _class_name"):
        load(tmp_path)
    index.write_text(text)
    (tmp_path / "unet").unlink()
    with pytest.raises(ConfigurationError, match=r"has no unet/openvino_model\.xml"):
        load(tmp_path)
