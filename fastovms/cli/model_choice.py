"""Finds out which models a command line and its environment ask for."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from fastovms.catalog.finder import parse_model, with_names
from fastovms.catalog.hub import is_model_id
from fastovms.config.model_config import RepositoryConfig
from fastovms.config.settings import MODEL_SECTIONS, SOURCE, ModelSource, Settings
from fastovms.errors import ConfigurationError
from fastovms.ovms.config_list import read_config_list


def chosen_models(
    arguments: argparse.Namespace, settings: Settings
) -> tuple[list[ModelSource], Settings]:
    """Returns the models, and all settings, with what the list of models sets below them.

    Raises:
        ConfigurationError: flags contradict each other, or the list of models is wrong.
    """
    sources, of_list = _sources(arguments, settings)
    for_all = settings.only(*MODEL_SECTIONS)
    models = [replace(source, settings=source.settings | for_all) for source in sources]
    return models, of_list | settings


def source_model(arguments: argparse.Namespace) -> str:
    """Returns the id in OVMS's flags.

    Raises:
        ConfigurationError: it is missing or malformed.
    """
    model_id: str = arguments.source_model
    if not is_model_id(model_id):
        raise ConfigurationError(f"--source-model must be ORG/NAME, not {model_id!r}")
    return model_id if arguments.gguf_filename is None else f"{model_id}/{arguments.gguf_filename}"


def _sources(
    arguments: argparse.Namespace, settings: Settings
) -> tuple[list[ModelSource], Settings]:
    """Returns the models, and what the list of models sets for the server."""
    root = settings.section(RepositoryConfig).path
    ways = {
        "MODEL": arguments.model,
        "--model": arguments.models or None,
        "--model-path": arguments.model_path,
        "--source-model": arguments.source_model,
        "--config-path": arguments.config_path,
    }
    taken = [name for name, value in ways.items() if value is not None]
    if len(taken) > 1:
        raise ConfigurationError(f"{taken[0]} cannot be used with {taken[1]}")
    of_list = Settings()
    match taken:
        case ["MODEL"]:
            sources = [ModelSource(arguments.model)]
        case ["--model"]:
            sources = [parse_model(text) for text in arguments.models]
        case ["--model-path"]:
            sources = [ModelSource(_in_repository(arguments.model_path, root))]
        case ["--source-model"]:
            sources = [ModelSource(source_model(arguments))]
        case ["--config-path"]:
            sources, of_list = read_config_list(arguments.config_path)
        case _:
            sources = [_unnamed(arguments, settings, root)]
    if arguments.names:
        return with_names(sources, arguments.names), of_list
    if len(sources) == 1 and not sources[0].names:
        sources = with_names(sources, settings.section(ModelSource).names)
    return sources, of_list


def _unnamed(arguments: argparse.Namespace, settings: Settings, root: Path | None) -> ModelSource:
    """Returns the models where the flags name none: the environment's, or one of the repository by
    its name, as OVMS finds it, or the demo model."""
    if SOURCE.location not in settings.given and root is not None and arguments.names:
        return ModelSource(str(root / arguments.names[0]))
    return settings.section(ModelSource)


def _in_repository(location: Path, root: Path | None) -> str:
    """Returns the path of a model; one may start from the repository too."""
    if root is not None and not location.exists() and (root / location).exists():
        return str(root / location)
    return str(location)
