"""Reads the JSON files of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastovms.errors import ConfigurationError


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file.

    Raises:
        ConfigurationError: it cannot be read, or is none.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is not a JSON object")
    return value


def read_optional(path: Path) -> Any:
    """Returns what a file holds; None = it is not there, or broken."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def first_integer(scopes: Sequence[dict[str, Any]], keys: Sequence[str]) -> int | None:
    """Returns the first of some members that is an integer, of the first object that has one."""
    values = (scope.get(key) for scope in scopes for key in keys)
    return next((value for value in values if is_integer(value)), None)
