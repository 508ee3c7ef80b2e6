"""The messages between the genai backend and its process, other than commands and steps."""

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
        log_level: the level of the worker's log on stderr.
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
        model: the model, with the context length that fits into the KV cache.
        stats: the initial statistics, with the size of the KV cache.
    """

    model: ModelInfo
    stats: BackendStats


@dataclass(frozen=True, slots=True)
class EncodingImages:
    """Announces that the worker now encodes this number of images before the next step."""

    num_images: int
