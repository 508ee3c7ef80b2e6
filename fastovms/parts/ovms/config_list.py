"""Reads and writes OVMS's lists of models."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.parts.ovms import GRAPH_FILE
from fastovms.parts.ovms.options import OVMS_OPTIONS
from fastovms.parts.ovms.plugin_config import parse_plugin_config
from fastovms.server_config import (
    ENGINE,
    PERMANENT,
    ConfigField,
    ModelResidency,
    ModelSource,
    ResidencyConfig,
    ServiceConfig,
    Settings,
)

logger = logging.getLogger(__name__)


def path_from(folder: Path, path: Path) -> str:
    """Returns a command-line path as written in a file in `folder`: an absolute path unchanged, a
    relative path relative to `folder`, or absolute if ".." and symbolic links would lead
    elsewhere."""
    if path.is_absolute():
        return str(path)
    target = os.path.realpath(path)
    for start in (folder, os.path.realpath(folder)):
        relative = os.path.relpath(path, start)
        if os.path.realpath(folder / relative) == target:
            return relative
    return target


def read_json(path: Path) -> object:
    """Returns the content of a JSON file. Raises ConfigurationError if the file cannot be read or
    is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from None


def write_file(path: Path, text: str) -> None:
    """Replaces a file atomically. Links to it, its permissions and, if allowed, its owner are kept.
    Raises ConfigurationError if the file cannot be written."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        with suppress(FileNotFoundError):
            _copy_access(target.stat(), partial)
        os.replace(partial, target)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from None
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"cannot write {path}: {error}") from None


def _copy_access(old: os.stat_result, path: Path) -> None:
    """Copies permissions and owner from the old file."""
    new = path.stat()
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        # Only root may change the owner; a file with another owner is better than none.
        with suppress(PermissionError):
            os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))  # last, because a change of the owner clears some bits


CONFIG_FILE: Final = "config.json"

_UNUSED_LISTS: Final = ("custom_loader_config_list", "pipeline_config_list")
_MODELS: Final = "model_config_list"
_GRAPHS: Final = "mediapipe_config_list"
_MONITORING: Final = "monitoring"

_GRAPH_MEMBERS: Final = ("name", "base_path", "graph_path", "subconfig")
_IDLE_UNLOAD, GROUP_NAME, _PERMANENT = "idle_unload_timeout_seconds", "group_name", "permanent"
_OF_RESIDENCY: Final = (_IDLE_UNLOAD, GROUP_NAME, _PERMANENT)
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""Characters that JSON strings may contain, but paths and responses may not."""

_MEMBERS: Final = {option.member: option for option in OVMS_OPTIONS if option.member}
"""The members of a model's entry that are options, by name."""


class ConfigList(NamedTuple):
    """The content of a config list: the models, and the settings of the server."""

    models: list[ModelSource]
    settings: Settings


def config_file(path: Path) -> Path:
    """Returns the path of the config list: the path itself, or the config.json of a directory."""
    return path / CONFIG_FILE if path.is_dir() else path


def read_config_list(path: Path) -> ConfigList:
    """Reads a config list, or the config.json in a directory; paths in it are relative to the file.
    An empty list is valid. Raises ConfigurationError if the file cannot be read or is not in OVMS's
    format."""
    path = config_file(path)
    try:
        return _read(read_json(path), path.parent)
    except _Fault as fault:
        raise ConfigurationError(f"{path}: {fault}") from None


class _Fault(Exception):
    pass


def _read(root: object, folder: Path) -> ConfigList:
    members = _object(
        root, "the file", (_MODELS, _GRAPHS, _MONITORING, _IDLE_UNLOAD, *_UNUSED_LISTS)
    )
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
    settings = Settings.of(ServiceConfig, ovms_metrics=enable)
    if (idle := _seconds(members, "the file")) is not None:
        settings |= Settings.of(ResidencyConfig, idle_unload=idle)
    return ConfigList(_each_in_a_group(models), settings)


def _each_in_a_group(models: list[ModelSource]) -> list[ModelSource]:
    """Gives each model without a group its own group if other models have one, as OVMS does."""
    if not any(model.residency.is_exclusive for model in models):
        return models
    return [
        replace(
            model, residency=replace(model.residency, group=model.residency.group or model.names[0])
        )
        for model in models
    ]


def _model(entry: object, folder: Path, where: str) -> ModelSource:
    config = _object(
        _object(entry, where, ("config",)).get("config"),
        f"{where}.config",
        ("name", "base_path", *_OF_RESIDENCY, *_MEMBERS),
    )
    where = f"{where}.config"
    given: dict[ConfigField, object] = {}
    _warn_of_unused(config, where)
    for name, option in _MEMBERS.items():
        if name not in config or option.field is None:
            continue
        if option.field == ENGINE.plugin_config:
            value = config[name]
            value = parse_plugin_config(value) if isinstance(value, str) else value
            given[option.field] = _object(value, f"{where}.{name}")
        else:
            given[option.field] = _text(config, name, where)
    location = folder / _text(config, "base_path", where)
    name = _text(config, "name", where)
    return ModelSource(str(location), (name,), Settings(given), _residency(config, where))


def _warn_of_unused(config: Mapping[str, Any], where: str) -> None:
    for name, option in _MEMBERS.items():
        if name in config and option.field is None and config[name] not in option.neutral:
            logger.warning("%s.%s is not used: %s", where, name, option.unused)


def _graph(entry: object, folder: Path, where: str) -> ModelSource:
    config = _object(entry, where, (*_GRAPH_MEMBERS, *_OF_RESIDENCY))
    name = _text(config, "name", where)
    base = folder / (_text(config, "base_path", where) if "base_path" in config else name)
    given = _text(config, "graph_path", where) if "graph_path" in config else GRAPH_FILE
    graph = base / given
    if not graph.is_file():
        raise _Fault(f"{where}: there is no graph at {graph}")
    return ModelSource(str(graph), (name,), residency=_residency(config, where))


def _residency(config: Mapping[str, Any], where: str) -> ModelResidency:
    is_permanent, group = config.get(_PERMANENT, False), config.get(GROUP_NAME, "")
    if not isinstance(is_permanent, bool):
        raise _Fault(f"{where}.{_PERMANENT} must be true or false")
    if group:
        group = _text(config, GROUP_NAME, where)
    return ModelResidency(_seconds(config, where), PERMANENT if is_permanent else group or "")


def _seconds(config: Mapping[str, Any], where: str) -> float | None:
    """Returns the seconds without requests after which the models are unloaded; None = not
    given."""
    value = config.get(_IDLE_UNLOAD)
    if value is None or (type(value) is int and value >= 0):
        return value
    shown = json.dumps(value)
    raise _Fault(f"{where}.{_IDLE_UNLOAD} must be an integer of at least 0, not {shown:.60}")


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
            logger.warning("%s.%s is not used: this server does not know it", where, name[:60])
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
