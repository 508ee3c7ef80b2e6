"""Reads `metadata`, which clients put beside what is kept for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

_MAX_KEYS: Final = 16
_MAX_KEY: Final = 64
_MAX_VALUE: Final = 512


def read_metadata(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Reads `metadata`.

    Raises:
        InvalidField: it is beyond OpenAI's limits.
    """
    metadata = dict(given or {})
    if len(metadata) > _MAX_KEYS:
        raise InvalidField(
            f"metadata must have at most {_MAX_KEYS} keys, not {len(metadata)}", param="metadata"
        )
    for key, value in metadata.items():
        name = f"metadata.{key[:_MAX_KEY]}"
        if len(key) > _MAX_KEY:
            raise InvalidField(
                f"metadata: a key must have at most {_MAX_KEY} characters, not {len(key)}",
                param="metadata",
            )
        if not isinstance(value, str) or len(value) > _MAX_VALUE:
            raise InvalidField(
                f"{name} must be a string of at most {_MAX_VALUE} characters, not {show(value)}",
                param=name,
            )
    return metadata
