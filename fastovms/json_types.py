"""Names the types of values as JSON Schema does, and follows its references."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

_INDEX = re.compile("[0-9]{1,9}")


def json_type(value: object) -> str:
    """Returns the type of a value as JSON is read: "integer" for what was written as one."""
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


def resolve(reference: str, root: object) -> object:
    """Returns the part of a document that a reference within it points to (RFC 6901 6).

    Raises:
        LookupError: it points to nothing, or elsewhere.
    """
    start, *keys = unquote(reference).split("/")
    if start != "#":
        raise LookupError(reference)
    target = root
    for key in keys:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target[key]
        elif isinstance(target, list) and _INDEX.fullmatch(key):
            target = target[int(key)]
        else:
            raise LookupError(reference)
    return target
