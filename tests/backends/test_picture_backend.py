"""Tests of `fastovms/parts/embeddings/picture_backend.py`, over the process of a tiny model."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from fastovms.backends.engine_thread import ActiveEngines, ComputeTurn
from fastovms.backends.model_task import find_task
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError, EngineFailed, InvalidField
from fastovms.params import Image, Task
from fastovms.parts.embeddings.encoder import EncoderText
from fastovms.parts.embeddings.picture_backend import PictureEncoder, PictureSizes, load_pictures
from fastovms.parts.embeddings.served import read_info
from fastovms.text.text_encoder import TextEncoder
from tests.encoder_models import picture_encoder_dir
from tests.paths import TINY_VLM

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
IMAGE = np.random.default_rng(0).integers(0, 255, (90, 56, 3), np.uint8)


def test_task_of_a_vision_model_follows_the_width_of_its_output() -> None:
    assert find_task(picture_encoder_dir()) is Task.EMBEDDINGS
    assert find_task(TINY_VLM) is Task.TEXT_GENERATION
    with pytest.raises(ConfigurationError, match="its graph is for text_generation"):
        find_task(TINY_VLM, "embeddings")


def test_tokens_of_an_image_are_as_many_as_the_pipeline_makes() -> None:
    pipeline = genai.VLMPipeline(TINY_VLM, "CPU")
    sizes = PictureSizes.of(json.loads((TINY_VLM / "preprocessor_config.json").read_text()))

    def num_inputs(*images: Image) -> int:
        given = [ov.Tensor(image[np.newaxis]) for image in images]
        found = pipeline.generate("a", images=given, max_new_tokens=1)
        return int(found.perf_metrics.get_num_input_tokens())

    for height, width in ((16, 32), (56, 56), (90, 56), (300, 200), (28, 1000), (199, 1)):
        image = np.zeros((height, width, 3), np.uint8)
        around = 2
        assert sizes.num_tokens(image) + around == num_inputs(image) - num_inputs()
    assert sizes.num_tokens(np.zeros((1, 201, 3), np.uint8)) == 0


@pytest.fixture
async def backend() -> AsyncIterator[PictureEncoder]:
    directory, turn = picture_encoder_dir(), ComputeTurn(ActiveEngines())
    info, engine = read_info(directory, name="pictures"), EngineConfig(plugin_config=EXACT)
    backend = await asyncio.to_thread(load_pictures, directory, info, engine, "auto", turn)
    backend.start()
    yield backend
    await backend.close()


@pytest.fixture
def tokenizer() -> TextEncoder:
    return TextEncoder.load(picture_encoder_dir())


async def test_process_that_dies_fails_one_request_and_is_replaced(
    backend: PictureEncoder, tokenizer: TextEncoder
) -> None:
    words = "a<ov_genai_image_0>"
    [tokens] = tokenizer.encode([words])
    asked = EncoderText(tokens, images=[IMAGE])
    last = genai.TextEmbeddingPipeline.PoolingType.LAST_TOKEN
    pipeline = genai.EmbeddingPipeline(
        picture_encoder_dir(), "CPU", pooling_type=last, normalize=False, **EXACT
    )
    images = [ov.Tensor(IMAGE[np.newaxis])]
    wanted = pipeline.embed(words, images=images, embedding_prompt="Represent the user's input.")
    for _ in range(2):
        found = await backend.encode([asked, asked], "a")
        rows = np.repeat(wanted.embeddings.data, 2, axis=0)
        np.testing.assert_allclose(found.rows, rows, atol=1e-5)
        backend._peer.send_signal(signal.SIGKILL)
        with pytest.raises(EngineFailed, match="the process that makes vectors was ended"):
            await backend.encode([asked], "a")
    assert backend.stats().num_waiting == backend.stats().num_running == 0


async def test_images_that_the_pipeline_refuses_are_the_requests_fault(
    backend: PictureEncoder, tokenizer: TextEncoder
) -> None:
    [tokens] = tokenizer.encode(["<ov_genai_image_5>"])
    with pytest.raises(InvalidField, match="the model refuses the images"):
        await backend.encode([EncoderText(tokens, images=[IMAGE])], "a")
