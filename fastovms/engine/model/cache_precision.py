"""The supported precisions of a KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fastovms.errors import ConfigurationError

CACHE_PRECISIONS: Final = ("u4", "u8", "f16", "bf16", "f32")

_PROPERTIES: Final = ("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION")
_OPENVINO_NAMES: Final = {"FP16": "f16", "BF16": "bf16", "FP32": "f32"}
"""Older names that OpenVINO still accepts."""


def check_cpu_cache(properties: Mapping[str, object]) -> None:
    """Checks the KV cache precision in properties for the CPU. Raises ConfigurationError if it is
    not supported: OpenVINO also accepts u3, and then fails with an unclear message."""
    for name in _PROPERTIES:
        value = properties.get(name, CACHE_PRECISIONS[0])
        if _OPENVINO_NAMES.get(str(value), value) not in CACHE_PRECISIONS:
            *others, last = CACHE_PRECISIONS
            raise ConfigurationError(
                f"plugin_config {name} must be {', '.join(others)} or {last}, not {value!r}"
            )
