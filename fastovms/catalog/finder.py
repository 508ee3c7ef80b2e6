"""Finds the models that the operator means: where they are, and how each is to be run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from fastovms.catalog.hub import Repository, is_model_id, repository_of
from fastovms.config.api_config import ChatConfig
from fastovms.config.encoder_config import EncoderConfig
from fastovms.config.engine_config import EngineConfig
from fastovms.config.model_config import ModelConfig, ModelFiles, ModelLimits, RepositoryConfig
from fastovms.config.settings import ModelSource, Settings
from fastovms.errors import ConfigurationError
from fastovms.ovms.graph import GRAPH_FILE, read_graph
from fastovms.ovms.plugin_config import read_plugin_config

logger = logging.getLogger(__name__)

_OWN_DEFAULTS: Final = ModelFiles().generation_config
_NO_DEFAULTS: Final = Path("vllm")
"""What `--generation-config` may be beside a path, in vLLM's words."""


def parse_model(text: str) -> ModelSource:
    """Reads a model as `--model` gives it: "MODEL" or "NAME=MODEL". A directory may have a "="
    itself."""
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
    """Runs a look at the file system. A place where the server may not even look is no failure of
    the server."""
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
        """Returns whether `find` has something to pull. Raises ConfigurationError as that does."""
        return any(self._is_missing(location) for location in _locations(source))

    @_looking()
    def find(self, source: ModelSource) -> ModelConfig:
        """Returns a model to serve. Whether what is there is a model is not looked at.

        Raises:
            ConfigurationError: it cannot be pulled, or its graph is wrong.
        """
        path = self.locate(source.location)
        is_id = not Path(source.location).exists() and is_model_id(source.location)
        graph = path / GRAPH_FILE if path.is_dir() else path
        settings = Settings()
        if graph.suffix == Path(GRAPH_FILE).suffix and graph.is_file():
            settings, path = _graph_settings(graph), graph.parent
        name = repository_of(source.location) if is_id else _name_of(path)
        settings |= source.settings
        files = settings.section(ModelFiles)
        return ModelConfig(
            files.path or path,
            source.names or (name,),
            self._engine(settings.section(EngineConfig)),
            settings.section(ChatConfig),
            settings.section(EncoderConfig),
            settings.section(ModelLimits),
            _generation_config(files.generation_config),
            has_defaults=files.generation_config != _NO_DEFAULTS,
        )

    def _engine(self, engine: EngineConfig) -> EngineConfig:
        """Parts what `plugin_config` says for others than the device, and finds the draft model."""
        config = read_plugin_config(engine.plugin_config)
        for line in config.unused:
            logger.warning("%s", line)
        if engine.enable_prompt_lookup is None:
            engine = replace(engine, enable_prompt_lookup=config.prompt_lookup)
        if engine.draft_model is not None:
            engine = replace(engine, draft_model=self.locate(str(engine.draft_model)))
        return replace(engine, plugin_config=config.properties)

    def locate(self, location: str) -> Path:
        """Returns a directory, if need be after pulling it. One that does not exist is returned as
        it is, unless it may be an id."""
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
    draft = source.settings.section(EngineConfig).draft_model
    return [source.location, *([] if draft is None else [str(draft)])]


def _generation_config(whence: Path) -> Path | None:
    """Returns the file, if it is not the model's own."""
    if whence in (_OWN_DEFAULTS, _NO_DEFAULTS):
        return None
    path = whence / "generation_config.json" if whence.is_dir() else whence
    if not path.is_file():
        raise ConfigurationError(f"--generation-config: there is no file {path}")
    return path


def _graph_settings(graph: Path) -> Settings:
    node = read_graph(graph)
    for line in node.unused:
        logger.warning("%s: %s", graph, line)
    return node.settings
