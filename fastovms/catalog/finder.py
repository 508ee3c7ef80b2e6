"""Which models the operator means, where they are, and how each is to be run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fastovms.catalog.hub import Repository, is_model_id, repository_of
from fastovms.config import (
    ChatConfig,
    EngineConfig,
    ModelConfig,
    ModelLimits,
    ModelSource,
    RepositoryConfig,
)
from fastovms.errors import ConfigurationError
from fastovms.ovms.graph import GRAPH_FILE, read_graph
from fastovms.ovms.plugin_config import parse_plugin_config, read_plugin_config

logger = logging.getLogger(__name__)

_OWN_DEFAULTS: Final = Path("auto")
_NO_DEFAULTS: Final = Path("vllm")
"""What `--generation-config` may be beside a path, in vLLM's words."""


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


@contextmanager
def _looking() -> Iterator[None]:
    """A place where the server may not even look is no failure of the server."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot look for the model: {error}") from None


class ModelFinder:
    """Finds models in directories and in the repository, which pulls what it lacks."""

    def __init__(self, repository: Repository, config: RepositoryConfig) -> None:
        self._repository = repository
        self._config = config

    @_looking()
    def needs_network(self, source: ModelSource) -> bool:
        """Whether `find` has something to pull. Raises ConfigurationError as that does."""
        return any(self._is_missing(location) for location in _locations(source))

    @_looking()
    def find(self, source: ModelSource) -> ModelConfig:
        """Raises ConfigurationError: it cannot be pulled, or its graph is wrong. Whether what is
        there is a model is not looked at."""
        path = self.locate(source.location)
        is_id = not Path(source.location).exists() and is_model_id(source.location)
        graph = path / GRAPH_FILE if path.is_dir() else path
        settings: dict[str, Any] = {}
        if graph.suffix == Path(GRAPH_FILE).suffix and graph.is_file():
            settings, path = _graph_settings(graph), graph.parent
        name = repository_of(source.location) if is_id else _name_of(path)
        path = settings.pop("model.path", path)
        settings = _merged(settings, source.settings)
        whence: Path = settings.get("model.generation_config", _OWN_DEFAULTS)
        if (draft := settings.get("engine.draft_model")) is not None:
            settings["engine.draft_model"] = self.locate(str(draft))
        return ModelConfig(
            path,
            source.names or (name,),
            EngineConfig(**_section(settings, "engine")),
            ChatConfig(**_section(settings, "chat")),
            ModelLimits(**_section(settings, "limits")),
            _generation_config(whence),
            has_defaults=whence != _NO_DEFAULTS,
        )

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
    draft = source.settings.get("engine.draft_model")
    return [source.location, *([] if draft is None else [str(draft)])]


def _generation_config(whence: Path) -> Path | None:
    """The file, if it is not the model's own."""
    if whence in (_OWN_DEFAULTS, _NO_DEFAULTS):
        return None
    path = whence / "generation_config.json" if whence.is_dir() else whence
    if not path.is_file():
        raise ConfigurationError(f"--generation-config: there is no file {path}")
    return path


def _graph_settings(graph: Path) -> dict[str, Any]:
    node = read_graph(graph)
    for line in node.unused:
        logger.warning("%s: %s", graph, line)
    try:
        config = parse_plugin_config(node.settings.pop("engine.plugin_config", ""))
    except ConfigurationError as error:
        raise ConfigurationError(f"{graph}: {error}") from None
    return {**node.settings, "engine.plugin_config": config}


def _merged(of_graph: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which the given ones win, each device property by itself."""
    settings = {**of_graph, **given}
    config = read_plugin_config(
        {
            **of_graph.get("engine.plugin_config", {}),
            **given.get("engine.plugin_config", {}),
            **_section(given, "plugin"),
        }
    )
    for line in config.unused:
        logger.warning("%s", line)
    settings["engine.plugin_config"] = config.properties
    if config.prompt_lookup is not None:
        settings.setdefault("engine.enable_prompt_lookup", config.prompt_lookup)
    return settings


def _section(settings: Mapping[str, Any], section: str) -> dict[str, Any]:
    prefix = f"{section}."
    return {
        name.removeprefix(prefix): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }
