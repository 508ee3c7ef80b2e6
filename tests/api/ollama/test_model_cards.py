"""What is told of models."""

from __future__ import annotations

from dataclasses import replace

from fastovms.api.ollama.model_cards import full_card, list_card, running_card
from fastovms.api.serving.served import KnownModel, ServedModel
from fastovms.metrics import GenerationMetrics
from fastovms.params import SamplingDefaults
from tests.api.chat_models import SOURCE, chat_model
from tests.fakes import ByteTokenizer, FakeBackend, model_info

CONFIG = {"model_type": "qwen3", "hidden_size": 1024}


def loaded() -> KnownModel:
    defaults = SamplingDefaults(temperature=0.6, top_k=20, repetition_penalty=1.1)
    info = replace(model_info(defaults=defaults), config=CONFIG, fingerprint="f")
    backend = FakeBackend(lambda request, index: b"a", info)
    metrics = GenerationMetrics("fake", backend.stats)
    return KnownModel.of(ServedModel(backend, ByteTokenizer(), metrics, chat=chat_model()))


def test_a_model_in_memory() -> None:
    model = loaded()
    model.size = 5
    card = full_card(model, fills_in=True)
    assert card["capabilities"] == ["completion", "tools", "insert", "thinking"]
    assert card["model_info"] == {
        "general.architecture": "qwen3",
        "general.basename": "fake",
        "qwen3.context_length": 64,
        "qwen3.embedding_length": 1024,
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
    running = running_card(model, 0.0)
    assert running["context_length"] == 64
    assert running["expires_at"].startswith("2069-")
    assert running["digest"] == listed["digest"]


def test_a_model_that_was_never_loaded() -> None:
    model = KnownModel("m", created=5)
    card = full_card(model, fills_in=False)
    assert card["capabilities"] == ["completion"]
    assert card["model_info"] == {"general.architecture": "openvino", "general.basename": "m"}
    assert card["details"]["families"] == []
    assert list_card(model, "m")["digest"] != list_card(loaded(), "fake")["digest"]
    assert "context_length" not in running_card(model, 0.0)
