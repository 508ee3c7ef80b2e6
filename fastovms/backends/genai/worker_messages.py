"""Declares the messages between the genai backend and its processes, beyond commands and steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastovms.backend_stats import BackendStats
from fastovms.config import EngineConfig
from fastovms.params import ModelInfo


@dataclass(frozen=True, slots=True)
class LoadPipeline:
    """The first message to the worker; see `load_pipeline`.

    Attributes:
        log_level: which of its log lines go to stderr.
        log_format: "text" or "json".
    """

    model_dir: Path
    model: ModelInfo
    config: EngineConfig
    available: int
    log_level: int
    log_format: str


@dataclass(frozen=True, slots=True)
class PipelineLoaded:
    """The answer to `LoadPipeline`.

    Attributes:
        model: with the context that its cache can hold.
        stats: those of a pipeline that has not begun, with the size of its cache.
    """

    model: ModelInfo
    stats: BackendStats


@dataclass(frozen=True, slots=True)
class EncodingImages:
    """Announces that the next step ends after this number of images is encoded."""

    num_images: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Asks the other process for a `Compared`; it is the only message that it takes."""

    model_dir: Path
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class Compared:
    """Says by how much log probabilities of the pipeline and of the exported graph differ."""

    difference: float


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The last message, where a process cannot go on."""

    reason: str
