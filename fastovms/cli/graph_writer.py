"""Writes the flags of a command line to an OVMS graph file, for `--configure`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.backends.model_task import find_task
from fastovms.cli.flags import FLAGS, read_flags
from fastovms.cli.foreign_flags import given_flags
from fastovms.errors import ConfigurationError
from fastovms.params import Task
from fastovms.parts.ovms import GRAPH_FILE, MODEL_FILES
from fastovms.parts.ovms.config_list import path_from, write_file
from fastovms.parts.ovms.graph import CALCULATORS, GRAPHS, MAX_INTEGER
from fastovms.parts.ovms.options import OVMS_OPTIONS, Choice, Integer, Kind
from fastovms.parts.ovms.plugin_config import read_plugin_config
from fastovms.parts.ovms.textproto import quote
from fastovms.server_config import ENCODER, ENGINE, MODEL_SECTIONS, ConfigField
from fastovms.setting import show_picture_size

_HELD: Final = tuple(
    option
    for option in OVMS_OPTIONS
    if (option.flag and (option.graph or option.device_property)) or option.pipeline_property
)
"""The settings that a graph can hold, in an option or in plugin_config."""

_DEFAULTS: Final[Mapping[Task, Mapping[str, object]]] = {
    Task.TEXT_GENERATION: {"device": "CPU", "enable_prefix_caching": True},
    Task.EMBEDDINGS: {"target_device": "CPU"},
    Task.RERANK: {"target_device": "CPU"},
    Task.SPEECH: {"target_device": "CPU"},
    Task.IMAGES: {"device": "CPU"},
    Task.SPEECH_OUT: {"target_device": "CPU"},
}
"""Defaults that differ from OVMS's defaults for graphs, by task."""

HELD_FLAGS: Final = frozenset(option.flag for option in _HELD)
"""Flags whose values a graph can hold."""


def write_graph(arguments: argparse.Namespace) -> Path:
    """Writes the model flags to a graph file in --model-path, replacing an existing one, and
    returns its path. Raises ConfigurationError if the model does not exist, or a flag has no place
    in a graph."""
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
    """Returns the requested task, or the task that the model's files imply."""
    if asked != "auto":
        return Task(asked)
    if gguf is not None:
        return Task.TEXT_GENERATION
    try:
        return find_task(folder)
    except ConfigurationError:
        return Task.TEXT_GENERATION


class _Place(NamedTuple):
    """Where a graph holds a setting: in an option, or in a property of plugin_config."""

    option: str
    property: str = ""


def _places(task: Task) -> dict[ConfigField | str, _Place]:
    """Returns the places by setting or, for ignored flags of OVMS, by flag."""
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
        if option.field is not None:  # of two names of an option, older graphs have the first
            places.setdefault(option.field, _Place(name))
    return places


def _model(folder: Path, gguf: str | None) -> str:
    """Returns the model's path relative to its directory."""
    if not folder.is_dir():
        raise ConfigurationError(f"--model-path must be the directory of a model, not {folder}")
    names = MODEL_FILES if gguf is None else (gguf,)
    if not any((folder / name).is_file() for name in names):
        raise ConfigurationError(f"--model-path: {folder} has no {' or '.join(names)}")
    return f"./{gguf or ''}"


def _options(given: Mapping[ConfigField | str, Any], folder: Path, task: Task) -> dict[str, Any]:
    """Returns the node options of the graph.

    Args:
        given: values by setting or, for ignored flags of OVMS, by flag.
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
        if options.get(name) == "auto":  # in a graph, auto is expressed by leaving out the option
            del options[name]
    if (draft := options.get("draft_models_path")) is not None:
        options["draft_models_path"] = _draft(draft, folder)
    read_plugin_config(properties)  # raises ConfigurationError if properties are invalid
    return {**options, **({"plugin_config": json.dumps(properties)} if properties else {})}


def _draft(draft: Path, folder: Path) -> str:
    """Returns the path of the draft model relative to `folder`, where OVMS stores a downloaded
    draft model as ORG-NAME."""
    name = path_from(folder, draft) if draft.exists() else str(draft).replace("/", "-")
    if not (folder / name).exists():
        raise ConfigurationError(f"--draft-model: neither {draft} nor {folder / name} exists")
    return name


def _shown(option: str, value: Any, kind: Kind) -> str:
    """Returns an option's value in protobuf's text format."""
    if isinstance(value, tuple):  # width and height of images
        value = show_picture_size(value)
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
