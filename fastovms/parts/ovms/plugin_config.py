"""Reads `plugin_config`: device properties, among which are settings of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from fastovms.errors import ConfigurationError
from fastovms.parts.ovms.options import OVMS_OPTIONS

_PROMPT_LOOKUP: Final = "prompt_lookup"
_OF_PIPELINES: Final = {
    option.pipeline_property: option for option in OVMS_OPTIONS if option.pipeline_property
}


class PluginConfig(NamedTuple):
    """The content of a plugin_config.

    Attributes:
        properties: the properties for the device.
        prompt_lookup: whether to draft from earlier text; None = not set.
        unused: a line for each property without effect on this server.
    """

    properties: dict[str, object]
    prompt_lookup: bool | None
    unused: list[str]


def parse_plugin_config(text: str) -> dict[str, object]:
    """Parses the JSON in a graph's plugin_config; "" = no properties. Raises ConfigurationError if
    the text is not a JSON object."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigurationError(f"plugin_config must be a JSON object, not {text!r}")
    return value


def read_plugin_config(config: Mapping[str, object]) -> PluginConfig:
    """Separates the device's properties from settings of the server. Raises ConfigurationError if a
    value is invalid."""
    properties: dict[str, object] = {}
    unused: list[str] = []
    for name, value in config.items():
        option = _OF_PIPELINES.get(name)
        if option is not None:
            if option.unused is not None:
                unused.append(f"plugin_config {name} is not used: {option.unused}")
        elif isinstance(value, (str, int, float, bool)):
            properties[name] = value
        else:
            raise ConfigurationError(
                f"plugin_config {name} must be a string, a number or a boolean, not "
                f"{json.dumps(value)}"
            )
    return PluginConfig(properties, _prompt_lookup(config.get(_PROMPT_LOOKUP)), unused)


def _prompt_lookup(value: object) -> bool | None:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if value is None or isinstance(value, bool):
        return value
    raise ConfigurationError(
        f"plugin_config {_PROMPT_LOOKUP} must be true or false, not {json.dumps(value)}"
    )
