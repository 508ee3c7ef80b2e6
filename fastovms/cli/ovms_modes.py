"""The modes of OVMS's command line other than serving: downloading and listing models, and editing
configuration files."""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path
from typing import Any

from fastovms.app.catalog import model_root, source_model
from fastovms.cli.flags import FLAGS, read_flags
from fastovms.cli.foreign_flags import given_flags, unused_flags
from fastovms.cli.pull import pull_models
from fastovms.config import EngineConfig
from fastovms.errors import ConfigurationError
from fastovms.parts.ovms import GRAPH_FILE, MODEL_FILES
from fastovms.parts.ovms.config_list import (
    GROUP_NAME,
    config_file,
    path_from,
    read_json,
    write_file,
)
from fastovms.server_config import (
    ENCODER,
    ENGINE,
    MODEL_SECTIONS,
    ConfigField,
    RepositoryConfig,
    Settings,
)

logger = logging.getLogger(__name__)


def run_mode(arguments: argparse.Namespace, settings: Settings) -> None:
    """Runs the mode that a flag of OVMS's command line selects instead of serving."""
    if arguments.pull:
        _pull(arguments, settings)
    elif arguments.list_models:
        for name in list_models(model_root(settings.section(RepositoryConfig).path, os.environ)):
            print(name)
    elif arguments.configure:
        _configure(arguments)
    elif arguments.add_to_config is not None:
        _add_to_config(arguments, settings)
    else:
        _remove_from_config(arguments)


def _pull(arguments: argparse.Namespace, settings: Settings) -> None:
    """Downloads the model and its draft model, if any, like OVMS's `--pull`."""
    if arguments.source_model is None:
        raise ConfigurationError("--pull needs --source-model")
    logging.basicConfig(level="INFO", format="%(message)s")
    _warn_of_left_out(
        arguments,
        "--pull fetches files: give it to the server, or to --configure",
        ENGINE.draft_model,
    )
    draft = settings.section(EngineConfig).draft_model
    drafts = [] if draft is None or draft.exists() else [str(draft)]
    model_id = source_model(arguments.source_model, arguments.gguf_filename)
    pull_models([model_id, *drafts], settings.section(RepositoryConfig))


def _configure(arguments: argparse.Namespace) -> None:
    """Writes a graph file and prints its path. Environment variables are not included; the server
    reads them."""
    logging.basicConfig(level="WARNING", format="%(message)s")
    from fastovms.cli.graph_writer import HELD_FLAGS, write_graph

    graph = write_graph(arguments)
    for line in unused_flags(arguments, used=HELD_FLAGS):
        logger.warning("%s", line)
    print(graph)


def _add_to_config(arguments: argparse.Namespace, settings: Settings) -> None:
    name = _only_name(arguments, "--add-to-config")
    root = settings.section(RepositoryConfig).path
    if arguments.model_path is None and root is None:
        raise ConfigurationError("--add-to-config needs --model-path or --model-repository-path")
    config = _list_to_edit(arguments, "--add-to-config", arguments.add_to_config)
    logging.basicConfig(level="WARNING", format="%(message)s")
    _warn_of_left_out(
        arguments, "a list has names and places: --configure writes options into a model's graph"
    )
    group = given_flags(arguments).get("--group-name")
    add_model(config, name, arguments.model_path or Path(root or "", name), group)


def _warn_of_left_out(arguments: argparse.Namespace, reason: str, *used: ConfigField) -> None:
    """Warns about model flags that a mode ignores, except --task, which the model's files imply."""
    given = read_flags(arguments).only(*MODEL_SECTIONS).given
    for flag in FLAGS:
        if flag.field in given and flag.field not in (*used, ENCODER.task):
            logger.warning("%s is not used: %s", flag.name, reason)


def _remove_from_config(arguments: argparse.Namespace) -> None:
    flag = "--remove-from-config"
    name = _only_name(arguments, flag)
    remove_model(_list_to_edit(arguments, flag, arguments.remove_from_config), name)


def _list_to_edit(arguments: argparse.Namespace, flag: str, given: Path | bool) -> Path:
    """Returns the path of the model list to edit, named by the flag or by --config-path. `given` is
    the flag's path, or True if it has none."""
    beside: Path | None = arguments.config_path
    if isinstance(given, bool):
        if beside is None:
            raise ConfigurationError(f"{flag} needs --config-path")
        return beside
    if beside is not None and not _is_same(config_file(given), config_file(beside)):
        raise ConfigurationError(
            f"{flag} {given} cannot be used with --config-path {beside}: these are different files"
        )
    return given


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)  # Path.resolve fails in a loop of links


def _only_name(arguments: argparse.Namespace, flag: str) -> str:
    if len(arguments.names) != 1:
        raise ConfigurationError(f"{flag} needs --model-name")
    name: str = arguments.names[0]
    return name


_LISTS = ("model_config_list", "mediapipe_config_list")
_MAX_DEPTH = 3


def list_models(root: Path) -> list[str]:
    """Returns the names of the models below a directory. Raises ConfigurationError if the directory
    cannot be read."""
    if not root.is_dir():
        raise ConfigurationError(f"there is no directory {root}")
    return sorted(str(path.relative_to(root)) for path in _model_dirs(root, _MAX_DEPTH))


def add_model(config: Path, name: str, base_path: Path, group: object = None) -> None:
    """Adds a model to a list, or replaces the entry of that name. Raises ConfigurationError if the
    list cannot be read or written.

    Args:
        base_path: relative to the working directory or, if it does not exist there, to the list's
            directory, as paths in a list are.
        group: the name of the group of models that are loaded and unloaded together; None = not
            set.
    """
    path, root = _read(config, may_be_new=True)
    models = [model for model in root["model_config_list"] if _name(model) != name]
    # Path.exists fails where a directory cannot be read, or a name is too long.
    is_of_list = not os.path.exists(base_path) and os.path.exists(path.parent / base_path)
    place = str(base_path) if is_of_list else path_from(path.parent, base_path)
    members = {"name": name, "base_path": place, GROUP_NAME: group}
    models.append({"config": {key: value for key, value in members.items() if value is not None}})
    _write(path, {**root, "model_config_list": models})


def remove_model(config: Path, name: str) -> None:
    """Removes a model from a list. Raises ConfigurationError if the model is not in the list."""
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
    if not isinstance(root, dict) or not all(isinstance(root.get(key, []), list) for key in _LISTS):
        raise ConfigurationError(f"{path} is not a list of models")
    return path, {"model_config_list": [], **root}


def _name(model: object) -> object:
    """Returns the model's name in an entry, in either format of a list."""
    config = model.get("config", model) if isinstance(model, dict) else None
    return config.get("name") if isinstance(config, dict) else None


def _write(path: Path, root: dict[str, Any]) -> None:
    write_file(path, json.dumps(root, indent=4, ensure_ascii=False) + "\n")
