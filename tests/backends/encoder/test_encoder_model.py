from __future__ import annotations

import numpy as np
import pytest

from fastovms.backends.encoder.encoder_graph import read_encoder
from fastovms.backends.encoder.encoder_model import EncoderModel
from fastovms.encoding import EncoderText, Pooling, Task
from fastovms.errors import ConfigurationError
from tests.encoder_models import encoder_dir


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


def test_types_and_padding():
    model = load(pad_token_id=7, max_length=3)
    pair = EncoderText(np.array([5, 6]), np.array([0, 1]))
    batch = model.batch([pair, EncoderText(np.array([5, 6, 8]))])
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7], [5, 6, 8]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert batch.num_tokens == 6


def test_a_device_that_cannot():
    with pytest.raises(ConfigurationError, match="CPU cannot run the model"):
        load(properties={"NO_SUCH_PROPERTY": 1})
