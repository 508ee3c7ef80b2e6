"""Which models a command line and its environment ask for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastovms.catalog.finder import parse_model, with_names
from fastovms.catalog.hub import is_model_id
from fastovms.cli.settings import model_settings
from fastovms.config import DEMO_MODEL, ModelSource
from fastovms.errors import ConfigurationError
from fastovms.ovms.config_list import read_config_list


def chosen_models(
    arguments: argparse.Namespace, settings: Mapping[str, Any]
) -> tuple[list[ModelSource], dict[str, Any]]:
    """The models, and what the list of models sets beside them, by "section.field".

    Args:
        settings: what is set for all models, by "section.field".

    Raises:
        ConfigurationError: flags contradict each other, or the list of models is wrong.
    """
    sources, of_list = _sources(arguments, settings)
    for_all = model_settings(settings)
    return [replace(source, settings={**source.settings, **for_all}) for source in sources], of_list


def source_model(arguments: argparse.Namespace) -> str:
    """The id in OVMS's flags. Raises ConfigurationError."""
    model_id: str = arguments.source_model
    if not is_model_id(model_id):
        raise ConfigurationError(f"--source-model must be ORG/NAME, not {model_id!r}")
    return model_id if arguments.gguf_filename is None else f"{model_id}/{arguments.gguf_filename}"


def _sources(
    arguments: argparse.Namespace, settings: Mapping[str, Any]
) -> tuple[list[ModelSource], dict[str, Any]]:
    root = settings.get("repository.path")
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
    of_list: dict[str, Any] = {}
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
            sources, metrics_enable = read_config_list(arguments.config_path)
            if metrics_enable:
                of_list["service.ovms_metrics"] = True
        case _:
            sources = [_unnamed(arguments, settings, root)]
    if arguments.names:
        return with_names(sources, arguments.names), of_list
    if len(sources) == 1 and not sources[0].names:
        sources = with_names(sources, settings.get("source.names", ()))
    return sources, of_list


def _unnamed(
    arguments: argparse.Namespace, settings: Mapping[str, Any], root: Path | None
) -> ModelSource:
    """Without a model of the flags: the environment's, or one of the repository by its name, as
    OVMS finds it, or the demo model."""
    if "source.model" in settings:
        return ModelSource(settings["source.model"])
    if root is not None and arguments.names:
        return ModelSource(str(root / arguments.names[0]))
    return ModelSource(str(DEMO_MODEL))


def _in_repository(location: Path, root: Path | None) -> str:
    """A path may start from the repository too."""
    if root is not None and not location.exists() and (root / location).exists():
        return str(root / location)
    return str(location)
