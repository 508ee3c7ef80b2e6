"""Tests of `fastovms/parts/embeddings/encoder_model.py`."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.embeddings.encoder import EncoderInfo, EncoderText
from fastovms.parts.embeddings.encoder_model import (
    CARRIED,
    EncoderModel,
    cut,
    num_rows,
    padded_length,
    pooled,
    read_encoder,
)
from fastovms.parts.embeddings.pooling import Pooling
from fastovms.server_config import DEMO_MODEL
from tests.encoder_models import encoder_dir


@pytest.mark.parametrize(
    ("num_texts", "longest", "max_length", "length"),
    [
        (1, 1, None, 8),
        (1, 8, None, 8),
        (1, 9, None, 16),
        (3, 70, None, 72),
        (1, 130, None, 144),
        (1, 300, None, 320),
        (8, 130, None, 130),
        (1, 100, 101, 101),
        (1, 100, 500, 104),
        (1, 100, 90, 100),  # the text itself is longer than the model has positions
    ],
)
def test_rows_of_small_batches_have_one_of_few_lengths(num_texts, longest, max_length, length):
    assert padded_length(num_texts, longest, max_length) == length


def test_padded_lengths_are_few_and_add_little():
    lengths = range(64, 1024)
    assert all(padded_length(1, length) <= length * 1.13 for length in lengths)
    assert len({padded_length(1, length) for length in lengths}) < 40


@pytest.mark.parametrize(
    ("longest", "max_tokens", "num"),
    [(10, 1, 1), (10, 15, 1), (10, 127, 4), (10, 128, 8), (100, 700, 4), (100, 4096, 39)],
)
def test_small_batches_have_a_power_of_two_of_rows(longest, max_tokens, num):
    assert num_rows(longest, max_tokens) == num


STATES = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("pooling", "rows"),
    [
        (Pooling.CLS, [STATES[0, 0], STATES[1, 0]]),
        (Pooling.MEAN, [STATES[0].mean(0), STATES[1, :2].mean(0)]),
        (Pooling.LAST, [STATES[0, 3], STATES[1, 1]]),
    ],
)
def test_each_pooling_ignores_masked_positions(pooling, rows):
    states = ops.parameter([-1, -1, 3], np.float32, name="states")
    mask = ops.parameter([-1, -1], np.int64, name="mask")
    output = pooled(states.output(0), mask.output(0), pooling)
    compiled = ov.Core().compile_model(
        ov.Model([ops.result(output)], [states, mask], "pooling"),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32"},
    )
    np.testing.assert_allclose(compiled([STATES, MASK])[0], rows, rtol=1e-6)


EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.mark.parametrize(("max_segments", "num"), [(1, 1), (2, 2), (4, 4)])
def test_segments_compute_what_the_whole_does(max_segments, num):
    core = ov.Core()
    path = encoder_dir() / GRAPH
    rng = np.random.default_rng(0)
    inputs = {
        "input_ids": rng.integers(4, 200, (2, 7)),
        "attention_mask": np.array([[1] * 7, [1] * 4 + [0] * 3]),
        "token_type_ids": np.array([[0, 0, 0, 1, 1, 1, 1]] * 2),
    }
    whole = core.compile_model(core.read_model(path), "CPU", EXACT)(inputs)[0]
    segments = cut(core.read_model(path), max_segments)
    assert len(segments) == num
    carried = None
    for segment in segments:
        compiled = core.compile_model(segment, "CPU", EXACT)
        names = [value.get_any_name() for value in compiled.inputs]
        carried = compiled({n: carried if n == CARRIED else inputs[n] for n in names})[0].copy()
    np.testing.assert_allclose(carried, whole, atol=1e-5)


GRAPH = "openvino_model.xml"


@pytest.mark.parametrize(
    ("num_labels", "task", "width"), [(0, Task.EMBEDDINGS, 32), (1, Task.RERANK, 1)]
)
def test_encoder_graph_has_task_width_and_inputs(num_labels, task, width):
    graph = read_encoder(encoder_dir(num_labels) / GRAPH, task, Pooling.CLS, None)
    assert graph.info == EncoderInfo(task, width)
    assert graph.vocab_size == 256
    inputs = {value.get_any_name() for value in graph.model.inputs}
    assert inputs == {"input_ids", "attention_mask", "token_type_ids"}


def test_a_decoder_scores_by_the_logits_of_two_tokens():
    """They are the whole graph's logits after the last token of each text."""
    core = ov.Core()
    path = DEMO_MODEL / GRAPH
    graph = read_encoder(path, Task.RERANK, None, lambda: {b"no": 11, b"yes": 12})
    assert graph.info == EncoderInfo(Task.RERANK, 2, joins_pairs=True)
    inputs = {
        "input_ids": np.array([[5, 6, 7, 8], [9, 10, 0, 0]]),
        "attention_mask": MASK,
        "position_ids": np.arange(4)[None].repeat(2, 0),
        "beam_idx": np.arange(2, dtype=np.int32),
    }
    exact = {**EXACT, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    found = core.compile_model(graph.model, "CPU", exact)(inputs)[0]
    request = core.compile_model(path, "CPU", exact).create_infer_request()
    logits = request.infer(inputs)["logits"]
    expected = [logits[0, 3, 11:13], logits[1, 1, 11:13]]
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("path", "task", "words"),
    [
        (encoder_dir(3) / GRAPH, Task.RERANK, "a classifier of 3 classes"),
        (DEMO_MODEL / GRAPH, Task.RERANK, "its vocabulary has no token no and yes"),
        (DEMO_MODEL / "openvino_tokenizer.xml", Task.EMBEDDINGS, "its graph has the input"),
        (DEMO_MODEL / "missing.xml", Task.EMBEDDINGS, "cannot be read"),
    ],
)
def test_graph_that_is_no_encoder_is_refused(path, task, words):
    with pytest.raises(ConfigurationError, match=words):
        read_encoder(path, task, Pooling.CLS, dict)


def load(**options) -> EncoderModel:
    path = encoder_dir() / "openvino_model.xml"
    graph = read_encoder(path, Task.EMBEDDINGS, Pooling.MEAN, dict)
    properties = {"INFERENCE_PRECISION_HINT": "f32"}
    return EncoderModel(graph, **{"properties": properties, **options})


def test_texts_of_one_batch_do_not_change_each_other():
    model = load(pad_token_id=0)
    texts = [EncoderText(np.arange(5, 5 + n)) for n in (4, 9, 1)]

    def rows(texts):
        batch = model.batch(texts)
        for segment in range(model.num_segments):
            model.compute(batch, segment)
        return batch.rows.copy()

    alone = np.concatenate([rows([text]) for text in texts])
    np.testing.assert_allclose(rows(texts), alone, atol=1e-5)


def test_encoder_batch_has_token_types_and_padding():
    model = load(pad_token_id=7, max_length=3)
    pair = EncoderText(np.array([5, 6]), np.array([0, 1]))
    batch = model.batch([pair, EncoderText(np.array([5, 6, 8]))])
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7], [5, 6, 8]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert batch.num_tokens == 6


def test_encoder_on_an_unusable_device_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="CPU cannot run the model"):
        load(properties={"NO_SUCH_PROPERTY": 1})
