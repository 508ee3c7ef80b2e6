"""Directories of tiny encoders, made once per process."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from bench.encoder_models import write_encoder
from bench.random_models.encoder_graph import ENCODER_SHAPES
from bench.random_models.nodes import index, parameter
from bench.random_models.weights import Node
from tests.conftest import SCRATCH
from tests.paths import TINY_VLM


@cache
def encoder_dir(num_labels: int = 0, pooling: str = "") -> Path:
    """Returns the directory of an embedding model, or of a classifier if labels are given."""
    directory = SCRATCH / f"tiny-{num_labels}{pooling}"
    write_encoder(replace(ENCODER_SHAPES["tiny"], num_labels=num_labels), directory, 0, pooling)
    return directory


@cache
def picture_encoder_dir() -> Path:
    """Returns the directory of a model with the files of Qwen3-VL-Embedding: the tiny vision model
    (Qwen2-VL) without its last matrix, with positions of patches and with the inputs of
    `deepstack`."""
    directory = SCRATCH / "pictures"
    shutil.copytree(TINY_VLM, directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "qwen3_vl", "architectures": ["Qwen3VLModel"]}
    config["vision_config"] |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    (directory / "config.json").write_text(json.dumps(config))
    language, merger = (
        ov.Core().read_model(TINY_VLM / f"openvino_{name}_model.xml")
        for name in ("language", "vision_embeddings_merger")
    )
    rng = np.random.default_rng(0)
    [state] = [result.input_value(0) for result in merger.results]
    size = state.get_partial_shape()[1].get_length()
    features = ops.unsqueeze(ops.matmul(state, _random(rng, size, size), False, False), index(0))
    merger.add_results([_named(ops.result(features), "deepstack_feature_lists")])
    _use_features(language, size)
    [result] = language.results
    result.input(0).replace_source_output(result.input_value(0).get_node().input_value(0))
    language.validate_nodes_and_infer_types()
    _named(result, "logits")
    patches = config["vision_config"]["embed_dim"]
    places = parameter("input", [4, -1], np.int64)
    table = ops.gather(_random(rng, 16, patches), places, index(0))
    positions = ov.Model([_named(ops.result(table), "last_hidden_state")], [places], "positions")
    for name, model in (
        ("language", language),
        ("vision_embeddings_merger", merger),
        ("vision_embeddings_pos", positions),
    ):
        path = directory / f"openvino_{name}_model.xml"
        ov.save_model(model, path, compress_to_fp16=False)
    return directory


def _use_features(language: ov.Model, size: int) -> None:
    """Adds the features of the patches to the inputs at their positions."""
    [embeds] = [each for each in language.inputs if "inputs_embeds" in each.names]
    users = embeds.get_target_inputs()
    mask = parameter("visual_pos_masks", [-1, -1], np.bool_)
    features = parameter("deepstack_visual_embeds", [-1, -1, size], np.float32)
    numbers = ops.subtract(ops.cum_sum(ops.convert(mask, np.int64), index(1)), index(1))
    rows = ops.gather(
        ops.gather(features, index(0), index(0)), ops.maximum(numbers, index(0)), index(0)
    )
    seen = ops.unsqueeze(ops.convert(mask, np.float32), index(2))
    whole = ops.add(embeds, ops.multiply(rows, seen))
    for user in users:
        user.replace_source_output(whole.output(0))
    language.add_parameters([mask, features])


def _random(rng: np.random.Generator, *shape: int) -> Node:
    return ops.constant(rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32))


def _named(result: Node, name: str) -> Node:
    result.output(0).set_names({name})
    return result
