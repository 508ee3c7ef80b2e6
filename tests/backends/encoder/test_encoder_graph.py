from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from fastovms.backends.encoder.encoder_graph import read_encoder
from fastovms.config.model_config import DEMO_MODEL
from fastovms.encoding import EncoderInfo, Pooling, Task
from fastovms.errors import ConfigurationError
from tests.encoder_models import encoder_dir

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
GRAPH = "openvino_model.xml"
IDS, MASK = np.array([[5, 6, 7, 8], [9, 10, 0, 0]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


def no_vocabulary():
    raise AssertionError("nobody needs it")


@pytest.mark.parametrize(
    ("num_labels", "task", "width"), [(0, Task.EMBEDDINGS, 32), (1, Task.RERANK, 1)]
)
def test_what_a_graph_makes_of_texts(num_labels, task, width):
    path = encoder_dir(num_labels) / GRAPH
    graph = read_encoder(path, task, Pooling.CLS, no_vocabulary)
    assert graph.info == EncoderInfo(task, width)
    assert graph.vocab_size == 256
    inputs = {value.get_any_name() for value in graph.model.inputs}
    assert inputs == {"input_ids", "attention_mask", "token_type_ids"}


def test_a_decoder_scores_by_the_logits_of_two_tokens():
    """They are those that the whole graph has behind the last token of each text."""
    core = ov.Core()
    path = DEMO_MODEL / GRAPH
    graph = read_encoder(path, Task.RERANK, None, lambda: {b"no": 11, b"yes": 12})
    assert graph.info == EncoderInfo(Task.RERANK, 2, joins_pairs=True)
    positions = np.arange(4)[None].repeat(2, 0)
    inputs = {
        "input_ids": IDS,
        "attention_mask": MASK,
        "position_ids": positions,
        "beam_idx": np.arange(2, dtype=np.int32),
    }
    found = core.compile_model(graph.model, "CPU", EXACT)(inputs)[0]
    request = core.compile_model(path, "CPU", EXACT).create_infer_request()
    logits = request.infer(inputs)["logits"]
    expected = [logits[0, 3, 11:13], logits[1, 1, 11:13]]
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("path", "task", "words"),
    [
        (encoder_dir(3) / GRAPH, Task.RERANK, "a classifier of 3 classes"),
        (DEMO_MODEL / GRAPH, Task.RERANK, "none of no and yes"),
        (DEMO_MODEL / "openvino_tokenizer.xml", Task.EMBEDDINGS, "its graph has the input"),
        (DEMO_MODEL / "missing.xml", Task.EMBEDDINGS, "cannot be read"),
    ],
)
def test_what_cannot_be_served(path, task, words):
    with pytest.raises(ConfigurationError, match=words):
        read_encoder(path, task, Pooling.CLS, dict)
