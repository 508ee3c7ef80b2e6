"""Commands that work on models, caches and configuration files."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from fastovms.app.catalog import ModelFinder
from fastovms.backends.model_task import find_task
from fastovms.cli.flags import ENGINE_GROUP, FLAGS, HUB_GROUP, add_flags, read_flags
from fastovms.cli.foreign_flags import given_flags
from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.ovms.config_list import config_file, path_from, read_json, write_file
from fastovms.parts.ovms.graph import (
    CALCULATORS,
    GRAPH_FILE,
    GRAPHS,
    MAX_INTEGER,
    MODEL_FILES,
    read_plugin_config,
)
from fastovms.parts.ovms.options import OVMS_OPTIONS, Choice, Integer, Kind
from fastovms.parts.ovms.textproto import quote
from fastovms.parts.prefix_cache.directory import FOLDER, erase, read_contents_by_model
from fastovms.server_config import (
    ENCODER,
    ENGINE,
    MODEL_SECTIONS,
    ConfigField,
    ModelSource,
    RepositoryConfig,
    Settings,
)
from fastovms.setting import path, text
from fastovms.state.sqlite.location import default_directory


def add_cache(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    """Adds the command to the parser."""
    parser = add_parser(
        name,
        help="list or delete the prompts that are cached on disk",
        description="Lists or deletes prompts that are cached on disk. This is safe while a server "
        "runs: the server recomputes missing prompts.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser("ls", help="list the cached prompts, by model", allow_abbrev=False)
    clearing = actions.add_parser("clear", help="delete cached prompts", allow_abbrev=False)
    clearing.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="delete only the prompts of this model, as ls names it",
    )
    for subparser in (listing, clearing):
        subparser.add_argument(
            "--prefix-cache-dir",
            dest="directory",
            metavar="DIR",
            type=path,
            help="directory of cached prompts (default: prefix-cache in that of --state-dir)",
        )


def run_cache(arguments: argparse.Namespace, settings: Settings) -> None:
    """Runs `fastovms cache`. Raises ConfigurationError if the directory cannot be read, or its
    files cannot be deleted."""
    directory: Path = arguments.directory or default_directory(os.environ) / FOLDER
    try:
        if arguments.action == "ls":
            _list(directory)
        else:
            models = {contents.model for contents in read_contents_by_model(directory)}
            if arguments.model is not None and arguments.model not in models:
                raise ConfigurationError(
                    f"{directory} has no prompts of a model {arguments.model}; it has those of: "
                    f"{', '.join(sorted(models)) or 'no model'}"
                )
            print(f"{erase(directory, arguments.model)} blocks deleted")
    except FileNotFoundError:
        raise ConfigurationError(f"there is no directory {directory}") from None
    except OSError as error:
        raise ConfigurationError(f"{directory}: {error.strerror}") from None


def _list(directory: Path) -> None:
    print(f"{'BLOCKS':>8} {'MB':>8}  {'LAST USED':19}  MODEL")
    for contents in read_contents_by_model(directory):
        used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(contents.used_at))
        size = contents.num_bytes / 1024**2
        print(f"{contents.num_blocks:8} {size:8.1f}  {used}  {contents.model}")


_GROUPS: Final = (HUB_GROUP, "network", "access", ENGINE_GROUP, "stored responses")
"""The groups of flags whose values are checked."""


def add_doctor(add_parser: Callable[..., argparse.ArgumentParser], name: str) -> None:
    parser = add_parser(
        name,
        usage="%(prog)s [FLAG ...] [MODEL]",
        help="examine the machine, the installation and a model",
        description="Examines what a server with these flags and this environment would find: the "
        "processor, limits, memory, directories, keys, addresses, and how close the model comes to "
        "the bandwidth of the memory. Nothing is changed. The exit code is 1 if problems are "
        "found.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=text,
        help="directory, GGUF file or ORG/NAME of a model (default: the built-in demo model)",
    )
    report = parser.add_argument_group("doctor")
    report.add_argument(
        "--json", action="store_true", help="print the report as JSON instead of text"
    )
    report.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="measure the speed of the memory and of the model, which takes some seconds (default: "
        "yes)",
    )
    add_flags(parser, titles=_GROUPS)


def run_doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    """Examines and prints, and returns the exit code."""
    from fastovms.parts.doctor.examination import examine, render, render_json

    logging.basicConfig(level="ERROR", format="%(message)s")
    source = settings.section(ModelSource)
    if arguments.model is not None:
        source = ModelSource(arguments.model)
    source = ModelSource(source.location, source.names, settings.only(*MODEL_SECTIONS))
    finder = ModelFinder.of(settings.section(RepositoryConfig), os.environ)
    examination = examine(source, settings, finder.find_here, runs=arguments.run)
    if arguments.json:
        print(render_json(examination), flush=True)
    else:
        in_colour = wants_colour(sys.stdout, os.environ)
        print(render(examination.findings, in_colour=in_colour), flush=True)
    return int(examination.has_problems)


def wants_colour(output: TextIO, environ: Mapping[str, str]) -> bool:
    """Returns whether to write in colours: on a terminal that supports colours, unless NO_COLOR
    (https://no-color.org) is set."""
    return output.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


_LISTS = ("model_config_list", "mediapipe_config_list")
_MAX_DEPTH = 3


def list_models(root: Path) -> list[str]:
    """Returns the names of the models below a directory. Raises ConfigurationError if the directory
    cannot be read."""
    if not root.is_dir():
        raise ConfigurationError(f"there is no directory {root}")
    return sorted(str(path.relative_to(root)) for path in _model_dirs(root, _MAX_DEPTH))


def add_model(config: Path, name: str, base_path: Path) -> None:
    """Adds a model to a list, or changes the one of that name. Raises ConfigurationError if the
    list cannot be read or written.

    Args:
        base_path: relative to the working directory or, if it does not exist there, to the list's
            directory, as paths in a list are.
    """
    path, root = _read(config, may_be_new=True)
    models = [model for model in root["model_config_list"] if _name(model) != name]
    models.append({"config": {"name": name, "base_path": _base_path(path.parent, base_path)}})
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


_HELD: Final = tuple(
    option
    for option in OVMS_OPTIONS
    if (option.flag and (option.graph or option.device_property)) or option.pipeline_property
)
"""The fields that a graph can hold, in an option or in plugin_config."""

_DEFAULTS: Final[Mapping[Task, Mapping[str, object]]] = {
    Task.TEXT_GENERATION: {"device": "CPU", "enable_prefix_caching": True},
    Task.EMBEDDINGS: {"target_device": "CPU"},
    Task.RERANK: {"target_device": "CPU"},
    Task.SPEECH: {"target_device": "CPU"},
}
"""Defaults of flags, where OVMS has others for graphs."""

HELD_FLAGS: Final = frozenset(option.flag for option in _HELD)
"""Flags that have a use in a graph, if they have no other."""


def write_graph(arguments: argparse.Namespace) -> Path:
    """Writes the flags about the model in --model-path into a graph file, which is overwritten, and
    returns its path. Raises ConfigurationError if the model does not exist, or a flag about the
    model cannot be written into a graph."""
    folder: Path | None = arguments.model_path
    if folder is None:
        raise ConfigurationError("--configure needs --model-path")
    given = read_flags(arguments).only(*MODEL_SECTIONS)
    model = _model(folder, arguments.gguf_filename)
    graph = folder / GRAPH_FILE
    task = _task(given.given.get(ENCODER.task, "auto"), folder, arguments.gguf_filename)
    options = _options(dict[Any, Any](given.given) | given_flags(arguments), folder, task)
    kinds = CALCULATORS[GRAPHS[task].calculator].options
    lines = [f"{name}: {_shown(name, value, kinds[name].kind)}" for name, value in options.items()]
    write_file(graph, GRAPHS[task].filled("\n".join([f"models_path: {quote(model)}", *lines])))
    return graph


def _task(asked: str, folder: Path, gguf: str | None) -> Task:
    """Returns the task of the model: the requested one, or the one that its files imply."""
    if asked != "auto":
        return Task(asked)
    if gguf is not None:
        return Task.TEXT_GENERATION
    try:
        return find_task(folder)
    except ConfigurationError:
        return Task.TEXT_GENERATION


class _Place(NamedTuple):
    """The place of a flag's value in a graph: an option, or a property of plugin_config."""

    option: str
    property: str = ""


def _places(task: Task) -> dict[ConfigField | str, _Place]:
    """Returns the places by field or, for ignored flags of OVMS, by flag."""
    if task is Task.TEXT_GENERATION:
        return {
            option.field or option.flag: _Place(
                option.graph, option.device_property or option.pipeline_property
            )
            for option in _HELD
        }
    places: dict[ConfigField | str, _Place] = {
        option.field: _Place("", option.device_property)
        for option in _HELD
        if option.field is not None and option.device_property
    }
    for name, option in CALCULATORS[GRAPHS[task].calculator].options.items():
        if option.field is not None:  # two names of one length: the older graphs know the first
            places.setdefault(option.field, _Place(name))
    return places


def _model(folder: Path, gguf: str | None) -> str:
    """Returns where the model is, from the directory."""
    if not folder.is_dir():
        raise ConfigurationError(f"--model-path must be the directory of a model, not {folder}")
    names = MODEL_FILES if gguf is None else (gguf,)
    if not any((folder / name).is_file() for name in names):
        raise ConfigurationError(f"--model-path: {folder} has no {' or '.join(names)}")
    return f"./{gguf or ''}"


def _options(given: Mapping[ConfigField | str, Any], folder: Path, task: Task) -> dict[str, Any]:
    """Returns the node's options.

    Args:
        given: values by field or, for ignored flags of OVMS, by flag.
    """
    places = _places(task)
    for flag in FLAGS:
        if flag.field in given and flag.field not in {*places, ENCODER.task}:
            raise ConfigurationError(
                f"--configure: a graph for {task.value} has no option for {flag.name}"
            )
    options: dict[str, Any] = dict(_DEFAULTS[task])
    properties = dict(given.get(ENGINE.plugin_config, {}))
    for key, place in places.items():
        if key not in given or key == ENGINE.plugin_config:
            continue
        if place.option:
            options[place.option] = given[key]
        else:
            properties[place.property] = given[key]
    for name in ("tool_parser", "reasoning_parser", "pooling"):
        if options.get(name) == "auto":  # a graph says so by not naming the option
            del options[name]
    if (draft := options.get("draft_models_path")) is not None:
        options["draft_models_path"] = _draft(draft, folder)
    read_plugin_config(properties)  # raises for properties that cannot be
    return {**options, **({"plugin_config": json.dumps(properties)} if properties else {})}


def _draft(draft: Path, folder: Path) -> str:
    """Returns the path of the draft model relative to `folder`. OVMS stores a downloaded one there
    as ORG-NAME."""
    name = path_from(folder, draft) if draft.exists() else str(draft).replace("/", "-")
    if not (folder / name).exists():
        raise ConfigurationError(f"--draft-model: neither {draft} nor {folder / name} exists")
    return name


def _shown(option: str, value: Any, kind: Kind) -> str:
    """Returns a value in protobuf's text format."""
    if isinstance(kind, Integer):
        high = MAX_INTEGER if kind.high is None else kind.high
        if value != int(value) or not kind.low <= value <= high:
            allowed = f"an integer from {kind.low} to {high}"
            raise ConfigurationError(
                f"--configure: {option} of a graph must be {allowed}, not {value}"
            )
        return str(int(value))
    if isinstance(kind, Choice):
        return next(name for name in kind.names if name.lower() == str(value).lower())
    return str(value).lower() if kind is bool else quote(value)
