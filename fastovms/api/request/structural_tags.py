"""Reads structural tags as clients send them: all forms become the one format that says what the
text looks like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField


def tag_format(value: object, name: str) -> Mapping[str, Any]:
    """Returns the format of a structural tag, whose own members are not checked yet.

    Args:
        value: `{"format": ...}`, or XGrammar's older `{"structures": [{"begin", "schema", "end"}],
            "triggers": [...]}`, or the JSON text of either.
        name: the field's, for error messages.

    Raises:
        InvalidField: it is neither.
    """
    body = _parsed(value, name) if isinstance(value, str) else value
    if not isinstance(body, Mapping):
        raise InvalidField(
            f"{name} must be an object or its JSON text, not {show(body)}", param=name
        )
    if "format" in body:
        return _object(body["format"], f"{name}.format")
    for member in ("structures", "triggers"):
        if not isinstance(body.get(member), list):
            place = f"{name}.{member}"
            raise InvalidField(
                f"{place} must be a list where there is no {name}.format, not "
                f"{show(body.get(member))}",
                param=place,
            )
    tags = [
        _tag(structure, f"{name}.structures[{position}]")
        for position, structure in enumerate(body["structures"])
    ]
    return {"type": "triggered_tags", "triggers": body["triggers"], "tags": tags}


def _parsed(text: str, name: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidField(f"{name} is no JSON that can be read: {error}", param=name) from None


def _tag(structure: object, name: str) -> Mapping[str, Any]:
    """Returns the tag that one of the older form's structures is."""
    given = _object(structure, name)
    for member in ("begin", "end"):
        if not isinstance(given.get(member), str):
            place = f"{name}.{member}"
            raise InvalidField(
                f"{place} must be a string, not {show(given.get(member))}", param=place
            )
    content = {"type": "json_schema", "json_schema": given.get("schema")}
    return {"begin": given["begin"], "content": content, "end": given["end"]}


def _object(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidField(f"{name} must be an object, not {show(value)}", param=name)
    return value
