"""Reads OpenVINO Model Server's list of models: the file behind its `--config_path`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.config.service_config import ServiceConfig
from fastovms.config.settings import ENGINE, ConfigField, ModelSource, Settings
from fastovms.errors import ConfigurationError
from fastovms.ovms.files import read_json
from fastovms.ovms.graph import GRAPH_FILE
from fastovms.ovms.options import OVMS_OPTIONS
from fastovms.ovms.plugin_config import parse_plugin_config

logger = logging.getLogger(__name__)

CONFIG_FILE: Final = "config.json"

_UNUSED_LISTS: Final = ("custom_loader_config_list", "pipeline_config_list")
_MODELS: Final = "model_config_list"
_GRAPHS: Final = "mediapipe_config_list"
_MONITORING: Final = "monitoring"

_GRAPH_MEMBERS: Final = ("name", "base_path", "graph_path", "subconfig")
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""What JSON may hold, but neither a path nor an answer."""

_MEMBERS: Final = {option.member: option for option in OVMS_OPTIONS if option.member}
"""Members of a model, beside its name and place."""


class ConfigList(NamedTuple):
    """What the file says: the models, and what it sets for the server."""

    models: list[ModelSource]
    settings: Settings


def config_file(path: Path) -> Path:
    """Returns the file that is meant: the path itself, or the config.json of a directory."""
    return path / CONFIG_FILE if path.is_dir() else path


def read_config_list(path: Path) -> ConfigList:
    """Reads the file, or the config.json of a directory. Paths in it start from where it is.

    Raises:
        ConfigurationError: it cannot be read, or is not as OVMS wants it. A list without a model
            is as OVMS wants it: its command line writes one when it takes the last one off.
    """
    path = config_file(path)
    try:
        return _read(read_json(path), path.parent)
    except _Fault as fault:
        raise ConfigurationError(f"{path}: {fault}") from None


class _Fault(Exception):
    pass


def _read(root: object, folder: Path) -> ConfigList:
    members = _object(root, "the file", (_MODELS, _GRAPHS, _MONITORING, *_UNUSED_LISTS))
    for name in _UNUSED_LISTS:
        if _list(members.get(name, []), name):
            raise _Fault(f"{name} is for models of tensors: it must be empty")
    if not any(name in members for name in (_MODELS, _GRAPHS)):
        raise _Fault(f"the file has neither {_MODELS} nor {_GRAPHS}")
    models = [
        _model(entry, folder, f"{_MODELS}[{position}]")
        for position, entry in enumerate(_list(members.get(_MODELS, []), _MODELS))
    ]
    models += [
        _graph(entry, folder, f"{_GRAPHS}[{position}]")
        for position, entry in enumerate(_list(members.get(_GRAPHS, []), _GRAPHS))
    ]
    enable = _metrics_enable(members.get(_MONITORING, {}))
    return ConfigList(models, Settings.of(ServiceConfig, ovms_metrics=enable))


def _model(entry: object, folder: Path, where: str) -> ModelSource:
    config = _object(
        _object(entry, where, ("config",)).get("config"),
        f"{where}.config",
        ("name", "base_path", *_MEMBERS),
    )
    where = f"{where}.config"
    given: dict[ConfigField, object] = {}
    for name, option in _MEMBERS.items():
        if name not in config:
            continue
        if option.field is None:
            logger.warning("%s.%s is not used: %s", where, name, option.unused)
        elif option.field == ENGINE.plugin_config:
            value = config[name]
            value = parse_plugin_config(value) if isinstance(value, str) else value
            given[option.field] = _object(value, f"{where}.{name}")
        else:
            given[option.field] = _text(config, name, where)
    location = folder / _text(config, "base_path", where)
    return ModelSource(str(location), (_text(config, "name", where),), Settings(given))


def _graph(entry: object, folder: Path, where: str) -> ModelSource:
    config = _object(entry, where, _GRAPH_MEMBERS)
    name = _text(config, "name", where)
    base = folder / (_text(config, "base_path", where) if "base_path" in config else name)
    given = _text(config, "graph_path", where) if "graph_path" in config else GRAPH_FILE
    graph = base / given
    if not graph.is_file():
        raise _Fault(f"{where}: there is no graph at {graph}")
    return ModelSource(str(graph), (name,))


def _metrics_enable(value: object) -> bool:
    monitoring = _object(value, _MONITORING, ("metrics",))
    where = f"{_MONITORING}.metrics"
    metrics = _object(monitoring.get("metrics", {}), where, ("enable", "metrics_list"))
    enable = metrics.get("enable", False)
    if not isinstance(enable, bool):
        raise _Fault(f"{where}.enable must be true or false")
    _list(metrics.get("metrics_list", []), f"{where}.metrics_list")
    return enable


def _object(value: object, where: str, known: Iterable[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Fault(f"{where} must be an object")
    for name in value:
        if known is not None and name not in known:
            raise _Fault(f"{where} has no member {name}, only {', '.join(known)}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Fault(f"{where} must be a list")
    return value


def _text(config: Mapping[str, Any], name: str, where: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not value:
        raise _Fault(f"{where}.{name} must be a string that is not empty")
    if _NO_TEXT.search(value):
        raise _Fault(f"{where}.{name} must be text without NUL or lone surrogates, not {value!a}")
    return value
