"""Reads a model that makes vectors or scores of texts as a server would, and judges it on a
machine. It is not run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastovms.backends.model_files.encoder_files import read_encoder_info
from fastovms.backends.model_files.model_task import find_pooling, find_task
from fastovms.backends.model_files.required_files import weights_file
from fastovms.config.model_config import ModelConfig
from fastovms.doctor.finding import Finding, Level
from fastovms.doctor.machine_facts import MachineFacts
from fastovms.doctor.model_checks import MEMORY_SHARE, format_size
from fastovms.encoding import Task
from fastovms.engine.model.machine.devices import is_cpu


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """An encoder, as its files and the flags describe it.

    Attributes:
        task: "embeddings" or "rerank".
        pooling: how the states of tokens become a vector; None = of a model that scores.
        max_model_len: the longest text, in tokens.
        weights_size: of their file, in bytes.
        device: OpenVINO's name of it.
    """

    name: str
    path: Path
    task: str
    pooling: str | None
    max_model_len: int
    weights_size: int
    device: str


def read_encoder(model: ModelConfig, directory: Path) -> EncoderFacts | None:
    """Reads the files of an encoder.

    Args:
        directory: where the model lies.

    Returns:
        None: the model generates text.

    Raises:
        ConfigurationError: a file is missing or broken, or the model cannot do the task.
    """
    task = find_task(directory, model.encoder.task)
    if task is Task.TEXT_GENERATION:
        return None
    info = read_encoder_info(directory, name=model.name)
    pooling = None
    if task is Task.EMBEDDINGS:
        pooling = find_pooling(directory, model.encoder.pooling, info.config).value
    return EncoderFacts(
        name=model.name,
        path=model.path,
        task=task.value,
        pooling=pooling,
        max_model_len=info.max_model_len,
        weights_size=weights_file(directory).stat().st_size,
        device=model.engine.device,
    )


def check_encoder(encoder: EncoderFacts, machine: MachineFacts) -> Iterator[Finding]:
    """Says what the model does, and whether its weights fit into the memory."""
    text = f"{encoder.name}: {format_size(encoder.weights_size)} of weights, "
    text += f"texts of {encoder.max_model_len} tokens"
    free = machine.available_memory
    if is_cpu(encoder.device) and encoder.weights_size > MEMORY_SHARE * free:
        yield Finding(
            Level.PROBLEM,
            "model",
            f"{text}, but {format_size(free)} of memory are free",
            "weights in 8 bits, a smaller model, or more memory",
        )
    else:
        yield Finding(Level.OK, "model", text)
    pooling = f" with {encoder.pooling} pooling" if encoder.pooling is not None else ""
    yield Finding(Level.OK, "task", f"{encoder.task}{pooling}; the model was not run")
