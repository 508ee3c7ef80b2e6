"""Declares models: where their files are, what they are called, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fastovms.config.api_config import ChatConfig
from fastovms.config.encoder_config import EncoderConfig
from fastovms.config.engine_config import EngineConfig

DEMO_MODEL: Final = Path(__file__).parents[1] / "demo_model"
"""The directory of the model that comes with the package."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the operator of an OVMS graph may limit for each model.

    Attributes:
        max_tokens_limit: new tokens per sample, also when the request names no number.
        best_of_limit: how many candidates per prompt are too many: there must be fewer.
    """

    max_tokens_limit: int | None = None
    best_of_limit: int = 20


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Which files of a model are read.

    Attributes:
        path: directory of an exported model, or a GGUF file; None = where the model was found.
        generation_config: a file in place of the directory's generation_config.json, or the
            directory of one; "auto" = the model's own, "vllm" = none.
    """

    path: Path | None = None
    generation_config: Path = Path("auto")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        path: directory of an exported model.
        names: what clients may call it; the first one is the one that answers carry.
        generation_config: file in place of the directory's generation_config.json.
        has_defaults: whether that file's values are defaults of requests.
    """

    path: Path
    names: tuple[str, ...]
    engine: EngineConfig = field(default_factory=EngineConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    limits: ModelLimits = field(default_factory=ModelLimits)
    generation_config: Path | None = None
    has_defaults: bool = True

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """Where models of a hub are kept, and what of them is taken.

    Attributes:
        path: ORG/NAME is below it; None = the user's cache directory.
        revision: branch, tag or commit; None = the main branch.
        overwrite: pull a model again that is there.
    """

    path: Path | None = None
    revision: str | None = None
    overwrite: bool = False
