"""Which models the operator means, where they are, and how each is to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastovms.config import ChatConfig, EngineConfig, ModelConfig, RepositoryConfig
from fastovms.errors import ConfigurationError
from fastovms.hub import Repository, is_model_id


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the operator names it.

    Attributes:
        location: its directory, or its id on the hub, "ORG/NAME".
        names: by which clients may call it; none = the directory's, or the id.
        engine, chat: fields of `EngineConfig` and `ChatConfig` that the operator has set.
    """

    location: str
    names: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    chat: Mapping[str, Any] = field(default_factory=dict)


def parse_model(text: str) -> ModelSource:
    """A model as `--model` gives it: "MODEL" or "NAME=MODEL". A directory may have a "=" itself."""
    name, separator, location = text.partition("=")
    if not separator or Path(text).exists():
        return ModelSource(text)
    if not name or not location:
        raise ConfigurationError(f"--model must be MODEL or NAME=MODEL, not {text!r}")
    return ModelSource(location, (name,))


def with_names(sources: Sequence[ModelSource], names: Sequence[str]) -> list[ModelSource]:
    """Gives the only model the names that were given apart from it."""
    if not names:
        return list(sources)
    if len(sources) > 1:
        raise ConfigurationError(
            f"--served-model-name is for one model, not {len(sources)}: name each with "
            "--model NAME=MODEL"
        )
    return [replace(source, names=tuple(dict.fromkeys(names))) for source in sources]


class ModelFinder:
    """Finds models in directories and in the repository, which pulls what it lacks."""

    def __init__(self, repository: Repository, config: RepositoryConfig) -> None:
        self._repository = repository
        self._config = config

    def needs_network(self, source: ModelSource) -> bool:
        """Whether `find` has something to pull."""
        return any(self._is_missing(location) for location in _locations(source))

    def find(self, source: ModelSource) -> ModelConfig:
        """Raises ConfigurationError: it cannot be pulled. Whether what is there is a model is not
        looked at."""
        path = self.locate(source.location)
        engine = dict(source.engine)
        if "draft_model" in engine:
            engine["draft_model"] = self.locate(str(engine["draft_model"]))
        is_id = not Path(source.location).exists() and is_model_id(source.location)
        names = source.names or (source.location if is_id else _name_of(path),)
        return ModelConfig(path, names, EngineConfig(**engine), ChatConfig(**source.chat))

    def locate(self, location: str) -> Path:
        """A directory, if need be after pulling it. One that does not exist is returned as it is,
        unless it may be an id."""
        path = Path(location)
        if path.exists() or not is_model_id(location):
            return path
        config = self._config
        try:
            return self._repository.pull(
                location, revision=config.revision, overwrite=config.overwrite
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"{location} is no directory here: {error}") from None

    def _is_missing(self, location: str) -> bool:
        if Path(location).exists() or not is_model_id(location):
            return False
        return self._config.overwrite or self._repository.find(location) is None


def _name_of(path: Path) -> str:
    path = path.resolve()
    return path.stem if path.suffix == ".gguf" else path.name


def _locations(source: ModelSource) -> list[str]:
    draft = source.engine.get("draft_model")
    return [source.location, *([] if draft is None else [str(draft)])]
