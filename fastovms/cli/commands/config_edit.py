"""Runs OpenVINO Model Server's commands that show a directory of models and edit a list of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fastovms.errors import ConfigurationError
from fastovms.ovms.config_list import config_file
from fastovms.ovms.files import path_from, read_json, write_file
from fastovms.ovms.graph import GRAPH_FILE, MODEL_FILES

_LISTS = ("model_config_list", "mediapipe_config_list")
_MAX_DEPTH = 3


def list_models(root: Path) -> list[str]:
    """Returns the names of the models below a directory.

    Raises:
        ConfigurationError: it cannot be read.
    """
    if not root.is_dir():
        raise ConfigurationError(f"there is no directory {root}")
    return sorted(str(path.relative_to(root)) for path in _model_dirs(root, _MAX_DEPTH))


def add_model(config: Path, name: str, base_path: Path) -> None:
    """Adds a model to a list, or changes the one of that name.

    Args:
        base_path: starts from the working directory or, if there is nothing, from the list's
            directory, which is where paths in a list start from.

    Raises:
        ConfigurationError: the list cannot be read or written.
    """
    path, root = _read(config, may_be_new=True)
    models = [model for model in root["model_config_list"] if _name(model) != name]
    models.append({"config": {"name": name, "base_path": _base_path(path.parent, base_path)}})
    _write(path, {**root, "model_config_list": models})


def remove_model(config: Path, name: str) -> None:
    """Takes a model off a list.

    Raises:
        ConfigurationError: it is not there.
    """
    path, root = _read(config, may_be_new=False)
    kept: dict[str, list[Any]] = {
        key: [model for model in root.get(key, []) if _name(model) != name]
        for key in _LISTS
        if key in root
    }
    if all(len(root[key]) == len(models) for key, models in kept.items()):
        raise ConfigurationError(f"{path} has no model {name}")
    _write(path, {**root, **kept})


def _model_dirs(folder: Path, depth: int) -> list[Path]:
    if any((folder / name).is_file() for name in (GRAPH_FILE, *MODEL_FILES)):
        return [folder]
    if depth == 0:
        return []
    inner = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    whole = [path for path in inner if path.suffix != ".partial"]
    return [found for path in whole for found in _model_dirs(path, depth - 1)]


def _read(config: Path, *, may_be_new: bool) -> tuple[Path, dict[str, Any]]:
    path = config_file(config)
    if may_be_new and not path.exists():
        return path, {"model_config_list": []}
    root = read_json(path)
    if not isinstance(root, dict) or not all(
        isinstance(root.get(key, []), list)
        for key in ("model_config_list", "mediapipe_config_list")
    ):
        raise ConfigurationError(f"{path} is not a list of models")
    return path, {"model_config_list": [], **root}


def _base_path(folder: Path, given: Path) -> str:
    is_of_list = not os.path.exists(given) and os.path.exists(folder / given)
    return str(given) if is_of_list else path_from(folder, given)


def _name(model: object) -> object:
    """Returns the name of an entry of either list."""
    config = model.get("config", model) if isinstance(model, dict) else None
    return config.get("name") if isinstance(config, dict) else None


def _write(path: Path, root: dict[str, Any]) -> None:
    write_file(path, json.dumps(root, indent=4, ensure_ascii=False) + "\n")
