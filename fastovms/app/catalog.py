"""Finds models: directories, GGUF files, OVMS graphs, models of a hub. The modules that read graphs
or download are imported only if needed."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fastovms.config import (
    OWN_HEAD,
    ChatConfig,
    EncoderConfig,
    EngineConfig,
    ImageConfig,
    ModelLimits,
    SpeakingConfig,
)
from fastovms.errors import ConfigurationError
from fastovms.gguf.parts import model_name
from fastovms.parts.ovms import GRAPH_FILE
from fastovms.server_config import ModelConfig, ModelFiles, ModelSource, RepositoryConfig, Settings
from fastovms.system.disk import NOWHERE, user_directory

logger = logging.getLogger(__name__)


_MODEL_ID: Final = re.compile(
    r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<file>[\w./ -]+\.gguf))?", re.ASCII
)
_FILE_SUFFIXES: Final = (".gguf", ".xml", ".bin", ".pbtxt")


def is_model_id(text: str) -> bool:
    """Returns whether a text may be the id of a hub's model, "ORG/NAME", or of one of its files,
    "ORG/NAME/FILE.gguf". "DIR/NAME.gguf" is a local path."""
    match = _MODEL_ID.fullmatch(text)
    if match is None or ".." in text.split("/"):
        return False
    return not match["repository"].endswith(_FILE_SUFFIXES)


def model_root(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Returns the directory of downloaded models: `path`, or by default in the user's cache
    directory."""
    return path or (user_directory("cache", environ) or NOWHERE) / "models"


_OWN_DEFAULTS: Final = ModelFiles().generation_config
_NO_DEFAULTS: Final = Path("vllm")
"""The values of `--generation-config` that are not paths, as in vLLM."""


def parse_model(text: str) -> ModelSource:
    """Parses a value of `--model`: "MODEL" or "NAME=MODEL". MODEL may contain "=", too."""
    name, separator, location = text.partition("=")
    if not separator or Path(text).exists():
        return ModelSource(text)
    if not name or not location:
        raise ConfigurationError(f"--model must be MODEL or NAME=MODEL, not {text!r}")
    return ModelSource(location, (name,))


def source_model(model_id: str, gguf_file: str | None) -> str:
    """Returns the model id given by OVMS's flags. Raises ConfigurationError if it is malformed."""
    if not is_model_id(model_id):
        raise ConfigurationError(
            f"--source-model must be ORG/NAME, not {model_id!r}: name a GGUF file of it with "
            "--gguf-filename"
        )
    return model_id if gguf_file is None else f"{model_id}/{gguf_file}"


def with_names(sources: Sequence[ModelSource], names: Sequence[str]) -> list[ModelSource]:
    """Sets the names from `--served-model-name`, which is allowed with one model only."""
    if not names:
        return list(sources)
    if len(sources) > 1:
        raise ConfigurationError(
            f"--served-model-name is for one model, not {len(sources)}: name each with "
            "--model NAME=MODEL"
        )
    return [replace(source, names=tuple(dict.fromkeys(names))) for source in sources]


@contextmanager
def _reading_files() -> Iterator[None]:
    """Converts OSError within the context to ConfigurationError, such as a model directory without
    read permission."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot read the model's directory: {error}") from None


@dataclass(frozen=True, slots=True)
class ModelFinder:
    """Finds models in directories and in the repository, and downloads missing ones.

    Attributes:
        root: the directory of downloaded models.
        endpoint: the hub's address; None = the default of huggingface_hub.
    """

    root: Path
    config: RepositoryConfig
    endpoint: str | None = None

    @classmethod
    def of(cls, config: RepositoryConfig, environ: Mapping[str, str]) -> ModelFinder:
        """Returns a finder with the operator's settings; see `model_root`."""
        return cls(model_root(config.path, environ), config)

    @_reading_files()
    def needs_network(self, source: ModelSource) -> bool:
        """Returns whether `find` would download something. Raises ConfigurationError like
        `find`."""
        draft = source.settings.section(EngineConfig).draft_model
        locations = [source.location, *([] if draft is None else [str(draft)])]
        return any(map(self._is_missing, locations))

    def find_here(self, source: ModelSource) -> ModelConfig | None:
        """Returns a model like `find`, or None if it must be downloaded."""
        return None if self.needs_network(source) else self.find(source)

    @_reading_files()
    def find(self, source: ModelSource) -> ModelConfig:
        """Returns a model to serve. Does not check the files.

        Raises:
            ConfigurationError: the model cannot be downloaded, or its graph is invalid.
        """
        path = self.locate(source.location)
        is_id = self._is_of_hub(source.location)
        graph = path / GRAPH_FILE if path.is_dir() else path
        settings = Settings()
        if graph.suffix == Path(GRAPH_FILE).suffix and graph.is_file():
            settings, path = _graph_settings(graph), graph.parent
        name = "/".join(source.location.split("/")[:2]) if is_id else _name_of(path)
        settings |= source.settings
        files = settings.section(ModelFiles)
        path = files.path or path
        return ModelConfig(
            path,
            source.names or (name,),
            self._engine(settings.section(EngineConfig), path),
            settings.section(ChatConfig),
            settings.section(EncoderConfig),
            settings.section(ImageConfig),
            settings.section(SpeakingConfig),
            settings.section(ModelLimits),
            _generation_config(files.generation_config),
            files.override_generation_config,
            has_defaults=files.generation_config != _NO_DEFAULTS,
            residency=source.residency,
        )

    def _engine(self, engine: EngineConfig, path: Path) -> EngineConfig:
        """Moves the entries of `plugin_config` that are not for the device to fields of their own,
        and finds the draft model of the model at `path`."""
        draft = engine.draft_model
        if draft is not None:
            draft = _with_head(path) if draft == OWN_HEAD else self.locate(str(draft))
            engine = replace(engine, draft_model=draft)
        if not engine.plugin_config:
            return engine
        from fastovms.parts.ovms.plugin_config import read_plugin_config

        config = read_plugin_config(engine.plugin_config)
        for line in config.unused:
            logger.warning("settings: %s", line)
        if engine.enable_prompt_lookup is None:
            engine = replace(engine, enable_prompt_lookup=config.prompt_lookup)
        return replace(engine, plugin_config=config.properties)

    def locate(self, location: str) -> Path:
        """Returns the directory of a model, after downloading it if needed. A missing directory is
        returned unchanged, unless it may be a model id."""
        if not self._is_of_hub(location):
            return _path(location)
        from fastovms.parts.hub import Repository

        config = self.config
        try:
            return Repository(self.root, endpoint=self.endpoint).pull(
                location, revision=config.revision, overwrite=config.overwrite
            )
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{location} is not a file or directory, and cannot be downloaded: {error}"
            ) from None

    def _is_of_hub(self, location: str) -> bool:
        """Returns whether a location is the id of a hub's model: not an existing path, and not a
        missing file in an existing local directory."""
        path = _path(location)
        if path.exists() or not is_model_id(location):
            return False
        stored = self.root / location
        is_missing_file = location.count("/") > 1 and path.parent.is_dir() and not stored.exists()
        return not is_missing_file or path.parent.resolve() == stored.parent.resolve()

    def _is_missing(self, location: str) -> bool:
        if not self._is_of_hub(location):
            return False
        return self.config.overwrite or not (self.root / location).exists()


def _path(location: str) -> Path:
    """Returns a local path, with ~ expanded: shells do not expand `--model NAME=~/DIR`."""
    return Path(os.path.expanduser(location))


def _with_head(path: Path) -> Path:
    """Returns `path`. Raises ConfigurationError if it is a directory without a head of its own."""
    from fastovms.backends.model_task import OWN_HEAD_FILE, has_own_head

    if path.is_dir() and not has_own_head(path) and not any(path.glob("*.gguf")):
        raise ConfigurationError(
            f"{path} has no MTP head, which --draft-model . takes: it has no {OWN_HEAD_FILE}"
        )
    return path


def _name_of(path: Path) -> str:
    path = path.resolve()
    return model_name(path.name)


def _generation_config(whence: Path) -> Path | None:
    """Returns the path of the generation config file; None = the model's own."""
    if whence in (_OWN_DEFAULTS, _NO_DEFAULTS):
        return None
    path = whence / "generation_config.json" if whence.is_dir() else whence
    if not path.is_file():
        raise ConfigurationError(f"--generation-config: no such file: {path}")
    return path


def _graph_settings(graph: Path) -> Settings:
    from fastovms.parts.ovms.graph import read_graph

    node = read_graph(graph)
    for line in node.unused:
        logger.warning("graph file %s: %s", graph, line)
    return node.settings
