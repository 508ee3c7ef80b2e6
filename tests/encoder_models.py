"""Directories of tiny encoders, made once in a process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import openvino as ov

from bench.encoder_models import write_encoder
from bench.random_models.encoder_graph import ENCODER_SHAPES
from tests.paths import TINY_VLM

_FOLDER = tempfile.TemporaryDirectory(prefix="fastovms-encoders-")
atexit.register(_FOLDER.cleanup)


@cache
def encoder_dir(num_labels: int = 0, pooling: str = "") -> Path:
    """An embedding model; with labels a classifier."""
    directory = Path(_FOLDER.name, f"tiny-{num_labels}{pooling}")
    write_encoder(replace(ENCODER_SHAPES["tiny"], num_labels=num_labels), directory, 0, pooling)
    return directory


@cache
def picture_encoder_dir() -> Path:
    """An embedding model of texts and images: the tiny vision model without its last matrix, in
    the form in which optimum-intel exports Qwen3-VL-Embedding."""
    directory = Path(_FOLDER.name, "pictures")
    shutil.copytree(TINY_VLM, directory)
    name = "openvino_language_model.xml"
    model = ov.Core().read_model(TINY_VLM / name)
    [result] = model.results
    logits = result.input_value(0).get_node()
    result.input(0).replace_source_output(logits.input_value(0))
    model.validate_nodes_and_infer_types()
    result.output(0).set_names({"logits"})
    ov.save_model(model, directory / name, compress_to_fp16=False)
    return directory
