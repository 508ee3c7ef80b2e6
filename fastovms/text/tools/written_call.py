"""Writes calls as a model of a format would: what its grammar lets through for these arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastovms import grammar_tree as tree
from fastovms.grammar_tree import Node
from fastovms.text.scanning.tool import CallChoice, Tool
from fastovms.text.tools.tool_format import ToolFormat


def written_call(tool_format: ToolFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """Returns the text of a call in a format, its markup included."""
    parameters = {
        "type": "object",
        "properties": {key: {"const": value} for key, value in arguments.items()},
        "required": list(arguments),
    }
    choice = CallChoice([Tool(name, parameters)], required=True, parallel=False)
    return _text(tool_format.grammar(choice))


def _text(node: Node) -> str:
    """Returns a text that a part lets through: the first of several, and nothing where there may be
    nothing."""
    match node:
        case tree.Literal(text) | tree.Tag(text) | tree.Until(text):
            return text
        case tree.InOrder(items):
            return "".join(map(_text, items))
        case tree.OneOf((first, *_)) | tree.Several(first):
            return _text(first)
        case tree.Separated(items, separator, _):
            return separator.join(_text(item) for item, _ in items)
        case tree.Json(schema):
            return json.dumps(_value(json.loads(schema)), ensure_ascii=False)
        case tree.TextBefore(tag, _, gap):
            return gap + tag
        case _:
            return ""


def _value(schema: Any) -> Any:
    """Returns the one value of a schema of constants."""
    if "const" in schema:
        return schema["const"]
    return {key: _value(value) for key, value in schema.get("properties", {}).items()}
