"""What is loaded makes what the pipelines of openvino_genai make of the same texts."""

from __future__ import annotations

import shutil

import numpy as np
import openvino_genai
import pytest

from fastovms.backends.encoder.encoder_loading import load_encoder
from fastovms.backends.engine_thread.compute_turn import ComputeTurn
from fastovms.backends.engine_thread.working_engines import WorkingEngines
from fastovms.backends.model_files.encoder_files import read_encoder_info
from fastovms.config.encoder_config import EncoderConfig
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import DEMO_MODEL
from fastovms.encoding import EncoderText
from fastovms.errors import ConfigurationError
from tests.encoder_models import encoder_dir

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
TEXTS = ["the model of the river", "a b", "open fast " * 20, "x", "first question of the day"]
POOLING = openvino_genai.TextEmbeddingPipeline.PoolingType


async def encode(directory, config: EncoderConfig, make_texts):
    info = read_encoder_info(directory, name="tiny")
    engine = EngineConfig(plugin_config=EXACT)
    backend, texts = load_encoder(directory, info, engine, config, ComputeTurn(WorkingEngines()))
    backend.start()
    try:
        return (await backend.encode(make_texts(texts), "me")).rows
    finally:
        await backend.close()


@pytest.mark.parametrize(
    ("pooling", "theirs"),
    [("auto", POOLING.CLS), ("mean", POOLING.MEAN), ("last", POOLING.LAST_TOKEN)],
)
async def test_vectors(pooling, theirs):
    def make_texts(texts):
        return [EncoderText(texts.enclosed(each)) for each in texts.encode(TEXTS)]

    rows = await encode(encoder_dir(), EncoderConfig(pooling=pooling), make_texts)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    config = openvino_genai.TextEmbeddingPipeline.Config(pooling_type=theirs)
    pipeline = openvino_genai.TextEmbeddingPipeline(encoder_dir(), "CPU", config, **EXACT)
    np.testing.assert_allclose(rows, pipeline.embed_documents(TEXTS), atol=1e-5)


@pytest.mark.parametrize("num_labels", [1, 2])
async def test_scores(num_labels):
    query = "the model"

    def make_texts(texts):
        [first] = texts.encode([query])
        return [EncoderText(*texts.pair.join(first, each)) for each in texts.encode(TEXTS)]

    rows = await encode(encoder_dir(num_labels), EncoderConfig(), make_texts)
    margin = rows[:, 0] if num_labels == 1 else rows[:, 1] - rows[:, 0]
    pipeline = openvino_genai.TextRerankPipeline(
        encoder_dir(num_labels), "CPU", top_n=len(TEXTS), **EXACT
    )
    theirs = [score for _, score in sorted(pipeline.rerank(query, TEXTS))]
    np.testing.assert_allclose(1 / (1 + np.exp(-margin)), theirs, atol=1e-5)


async def test_a_decoder_cannot_score_where_its_words_are_not_known(tmp_path):
    ignored = shutil.ignore_patterns("openvino_detokenizer.*")
    directory = shutil.copytree(DEMO_MODEL, tmp_path / "m", ignore=ignored)
    with pytest.raises(ConfigurationError, match=r"m cannot be served as a reranker: .*detokeni"):
        await encode(directory, EncoderConfig(task="rerank"), None)
