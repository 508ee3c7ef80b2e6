"""What JSON Schema calls the types of values."""

from __future__ import annotations

from collections.abc import Mapping


def json_type(value: object) -> str:
    """Of a value as JSON is read: "integer" for what was written as one."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"
