"""Loads an encoder from its directory: its tokenizer, its graph, and what runs it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fastovms.backends.encoder.encoder_backend import ThreadedEncoder
from fastovms.backends.encoder.encoder_graph import read_encoder
from fastovms.backends.encoder.encoder_model import EncoderModel
from fastovms.backends.engine_thread.compute_turn import ComputeTurn
from fastovms.backends.model_files.model_task import find_pooling, find_task
from fastovms.backends.model_files.required_files import graph_file
from fastovms.config.encoder_config import EncoderConfig
from fastovms.config.engine_config import EngineConfig
from fastovms.encoding import Pooling, Task
from fastovms.errors import ConfigurationError
from fastovms.params import ModelInfo
from fastovms.text.tokens.text_encoder import TextEncoder

logger = logging.getLogger(__name__)


class LoadedEncoder(NamedTuple):
    """An encoder with its tokenizer."""

    backend: ThreadedEncoder
    texts: TextEncoder


def load_encoder(
    model_dir: Path,
    info: ModelInfo,
    engine: EngineConfig,
    config: EncoderConfig,
    turn: ComputeTurn,
) -> LoadedEncoder:
    """Loads an encoder, which takes seconds: call it off the loop.

    Raises:
        ConfigurationError: a file is missing or broken, or the device cannot run it.
    """
    start = time.perf_counter()
    texts = TextEncoder.load(model_dir)
    task = find_task(model_dir, config.task)
    pooling = find_pooling(model_dir, config.pooling, info.config)
    vocabulary = partial(_vocabulary, texts, model_dir)
    graph = read_encoder(graph_file(model_dir), task, pooling, vocabulary)
    pad = info.config.get("pad_token_id")
    model = EncoderModel(
        graph,
        device=engine.device,
        properties=engine.plugin_config,
        pad_token_id=pad if isinstance(pad, int) else texts.pad_token_id,
        max_length=info.max_model_len,
    )
    model.warm_up()
    what = "reranker" if task is Task.RERANK else f"vectors of {graph.info.width}, {_of(pooling)}"
    logger.info(
        "%s: %s, in %d segments, %.1f s",
        info.name,
        what,
        model.num_segments,
        time.perf_counter() - start,
    )
    backend = ThreadedEncoder(
        model,
        info,
        max_batch_tokens=config.max_batch_tokens,
        max_num_queued=engine.max_num_queued_requests,
        turn=turn,
    )
    return LoadedEncoder(backend, texts)


def _vocabulary(texts: TextEncoder, model_dir: Path) -> Mapping[bytes, int]:
    """Returns the ids of the tokens that a decoder scores by."""
    if not texts.has_detokenizer:
        raise ConfigurationError(
            f"{model_dir} cannot be served as a reranker: it scores by the words that it would "
            "write, which nothing tells without an openvino_detokenizer.xml"
        )
    return texts.vocabulary()


def _of(pooling: Pooling | None) -> str:
    return "pooled by its graph" if pooling is None else f"pooling {pooling.value}"
