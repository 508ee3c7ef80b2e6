"""What the operator has set, by "section.field", and the configuration that comes of it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastovms.config import (
    ApiConfig,
    ChatConfig,
    EngineConfig,
    HttpConfig,
    MediaConfig,
    RepositoryConfig,
    SecurityConfig,
    ServiceConfig,
    StateConfig,
)

SECTIONS: Final[Mapping[str, Any]] = {
    "engine": EngineConfig(),
    "http": HttpConfig(),
    "api": ApiConfig(),
    "chat": ChatConfig(),
    "security": SecurityConfig(),
    "service": ServiceConfig(),
    "repository": RepositoryConfig(),
    "state": StateConfig(),
    "media": MediaConfig(),
}

OF_MODELS: Final = ("model", "engine", "plugin", "chat")
"""Parts of which each model has its own. The fields of "plugin" are properties of the device."""


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the operator gave, by "section.field"."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if "." in name
    }


def sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of the configuration that are not a model's own, by name."""
    return {
        name: dataclasses.replace(default, **_fields(settings, name))
        for name, default in SECTIONS.items()
        if name not in OF_MODELS
    }


def model_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that each model has for itself."""
    return {name: value for name, value in settings.items() if name.partition(".")[0] in OF_MODELS}


def _fields(settings: Mapping[str, Any], section: str) -> dict[str, Any]:
    prefix = f"{section}."
    fields = {
        name.removeprefix(prefix): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }
    if section == "http":
        _settle_addresses(fields)
    return fields


def _settle_addresses(http: dict[str, Any]) -> None:
    """Turns lists of hosts and further addresses into the fields of `HttpConfig`."""
    hosts: Sequence[str] = http.pop("host", ())
    listen: Sequence[str] = http.pop("listen", ())
    if not hosts and listen and "port" not in http:
        http["host"] = None
    elif hosts:
        http["host"] = hosts[0]
    port = http.get("port", SECTIONS["http"].port)
    further = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts[1:]]
    http["listen"] = (*further, *listen)
