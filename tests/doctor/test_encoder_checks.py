from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fastovms.config.encoder_config import EncoderConfig
from fastovms.config.model_config import DEMO_MODEL, ModelConfig
from fastovms.doctor.encoder_checks import EncoderFacts, check_encoder, read_encoder
from fastovms.doctor.finding import Level
from fastovms.doctor.machine_facts import read_machine
from fastovms.errors import ConfigurationError
from tests.encoder_models import encoder_dir

FACTS = EncoderFacts("bge", Path("bge"), "embeddings", "mean", 512, 4_000_000, "CPU")


def read(directory: Path, **encoder: str) -> EncoderFacts | None:
    config = ModelConfig(directory, ("m",), encoder=EncoderConfig(**encoder))  # type: ignore[arg-type]
    return read_encoder(config, directory)


@pytest.mark.parametrize(
    ("num_labels", "wanted", "task", "pooling"),
    [
        (0, "auto", "embeddings", "cls"),
        (0, "mean", "embeddings", "mean"),
        (1, "auto", "rerank", None),
    ],
)
def test_what_encoders_are(num_labels: int, wanted: str, task: str, pooling: str | None) -> None:
    directory = encoder_dir(num_labels)
    facts = read(directory, pooling=wanted)
    assert facts is not None
    assert (facts.name, facts.task, facts.pooling) == ("m", task, pooling)
    assert (facts.max_model_len, facts.device) == (128, "CPU")
    assert facts.weights_size == (directory / "openvino_model.bin").stat().st_size


def test_what_generates_is_no_encoder() -> None:
    assert read(DEMO_MODEL) is None


def test_a_task_that_the_graph_cannot_do() -> None:
    with pytest.raises(ConfigurationError, match="--task rerank"):
        read(encoder_dir(), task="rerank")


def test_a_file_is_missing(tmp_path: Path) -> None:
    directory = shutil.copytree(encoder_dir(), tmp_path / "m")
    (directory / "openvino_tokenizer.xml").unlink()
    with pytest.raises(ConfigurationError, match="openvino_tokenizer"):
        read(directory)


@pytest.mark.parametrize(
    ("memory", "device", "level"),
    [
        (10_000_000, "CPU", Level.OK),
        (4_100_000, "CPU", Level.PROBLEM),
        (4_100_000, "GPU", Level.OK),
    ],
)
def test_whether_it_fits(memory: int, device: str, level: Level) -> None:
    machine = replace(read_machine(), available_memory=memory)
    fit, task = check_encoder(replace(FACTS, device=device), machine)
    assert (fit.topic, fit.level) == ("model", level)
    assert fit.text.startswith("bge: 4 MB of weights, texts of 512 tokens")
    assert (task.level, task.text) == (
        Level.OK,
        "embeddings with mean pooling; the model was not run",
    )
