"""Which models the operator means, and how each is to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastovms.config import EngineConfig, ModelConfig
from fastovms.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the operator names it.

    Attributes:
        location: its directory.
        names: by which clients may call it; none = the directory's.
        engine: fields of `EngineConfig` that the operator has set.
    """

    location: str
    names: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)


def parse_model(text: str) -> ModelSource:
    """A model as `--model` gives it: "DIR" or "NAME=DIR". A directory may have a "=" itself."""
    name, separator, location = text.partition("=")
    if not separator or Path(text).exists():
        return ModelSource(text)
    if not name or not location:
        raise ConfigurationError(f"--model must be DIR or NAME=DIR, not {text!r}")
    return ModelSource(location, (name,))


def with_names(sources: Sequence[ModelSource], names: Sequence[str]) -> list[ModelSource]:
    """Gives the only model the names that were given apart from it."""
    if not names:
        return list(sources)
    if len(sources) > 1:
        raise ConfigurationError(
            f"--served-model-name is for one model, not {len(sources)}: name each with "
            "--model NAME=DIR"
        )
    return [replace(source, names=tuple(dict.fromkeys(names))) for source in sources]


def find_model(source: ModelSource) -> ModelConfig:
    """Where a model is and how it runs."""
    path = Path(source.location)
    names = source.names or (path.resolve().name,)
    return ModelConfig(path, names, EngineConfig(**source.engine))
