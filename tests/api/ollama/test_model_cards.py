"""What is told of models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastovms.api.ollama.model_cards import full_card, list_card, running_card
from fastovms.api.serving.served import KnownModel, ServedModel
from fastovms.params import SamplingDefaults, WeightCount
from fastovms.telemetry.metrics import GenerationMetrics
from tests.api.chat_models import SOURCE, chat_model
from tests.fakes import ByteTokenizer, FakeBackend, model_info

WEIGHTS = WeightCount(751_632_384, "u4")
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "text_config": {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8},
}


def loaded(weights: WeightCount | None = WEIGHTS) -> KnownModel:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, repetition_penalty=1.1)
    info = replace(model_info(defaults=defaults), config=CONFIG, fingerprint="f", weights=weights)
    backend = FakeBackend(lambda request, index: b"a", info)
    metrics = GenerationMetrics("fake", backend.stats)
    return KnownModel.of(ServedModel(backend, ByteTokenizer(), metrics, chat=chat_model()))


def test_a_model_in_memory() -> None:
    model = loaded()
    model.size, model.file_size = 50, 5
    card = full_card(model, fills_in=True)
    assert card["capabilities"] == ["completion", "tools", "insert", "thinking"]
    assert card["model_info"] == {
        "general.architecture": "qwen3",
        "general.basename": "fake",
        "general.parameter_count": 751_632_384,
        "qwen3.context_length": 64,
        "qwen3.embedding_length": 1024,
        "qwen3.block_count": 28,
        "qwen3.attention.head_count": 16,
        "qwen3.attention.head_count_kv": 8,
    }
    assert card["template"] == SOURCE
    assert [line.split() for line in card["parameters"].splitlines()] == [
        ["temperature", "0.6"],
        ["top_k", "20"],
        ["repeat_penalty", "1.1"],
    ]
    listed = list_card(model, "other")
    assert (listed["name"], listed["model"], listed["size"]) == ("other", "other", 5)
    assert listed["details"]["families"] == ["qwen3"]
    assert len(listed["digest"]) == 64
    running = running_card(model, 0.0, None)
    assert running["size"] == 50
    assert running["context_length"] == 64
    assert running["expires_at"].startswith("2069-")
    assert running["digest"] == listed["digest"]


def test_a_model_is_told_of_alike_when_it_has_left_memory() -> None:
    model = loaded()
    before = list_card(model, "fake"), full_card(model, fills_in=True)["model_info"]
    model.served = None
    assert (list_card(model, "fake"), full_card(model, fills_in=True)["model_info"]) == before


def test_a_model_that_was_never_loaded() -> None:
    model = KnownModel("m", created=5)
    card = full_card(model, fills_in=False)
    assert card["capabilities"] == ["completion"]
    assert card["model_info"] == {"general.architecture": "openvino", "general.basename": "m"}
    assert card["details"]["families"] == []
    assert list_card(model, "m")["digest"] != list_card(loaded(), "fake")["digest"]
    assert "context_length" not in running_card(model, 0.0, None)


@pytest.mark.parametrize(
    ("weights", "size", "level"),
    [
        (WeightCount(7_615_616_512, "u4"), "7.6B", "INT4"),
        (WeightCount(134_515_008, "i8"), "134.52M", "INT8"),
        (WeightCount(1918, "f16"), "1.92K", "F16"),
        (WeightCount(7, "nf4"), "7", "NF4"),
        (None, "", ""),
    ],
)
def test_what_the_weights_are(weights: WeightCount | None, size: str, level: str) -> None:
    details = list_card(loaded(weights), "fake")["details"]
    assert (details["parameter_size"], details["quantization_level"]) == (size, level)


def test_a_model_that_leaves_when_nobody_asks() -> None:
    assert running_card(loaded(), 0.0, 90.0)["expires_at"] == "1970-01-01T00:01:30.000000Z"
