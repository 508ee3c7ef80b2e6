"""Writes grammars of string arguments that are written without quotes."""

from __future__ import annotations

import re

from fastovms.errors import InvalidField
from fastovms.grammar_tree import ANY_TEXT, Regex
from fastovms.text.scanning.parameters import Parameter

_ENFORCED = {"enum", "const", "minLength", "maxLength", "pattern"}
_IGNORED = {"type", "title", "description", "default", "examples", "format", "deprecated", "$defs"}


def constants(parameter: Parameter) -> list[str] | None:
    """Returns the values that a string parameter may have, where the schema lists them."""
    schema = parameter.schema
    if not parameter.is_text:
        return None
    if "const" in schema:
        return [str(schema["const"])]
    return [str(value) for value in schema["enum"]] if "enum" in schema else None


def text_body(parameter: Parameter, end: str) -> Regex:
    """Returns the expression of a string parameter's value.

    Args:
        end: the tag behind the value, which the value cannot hold.

    Raises:
        InvalidField: the schema asks for something that no expression says.
    """
    if parameter.is_free:
        return ANY_TEXT
    schema = parameter.schema
    for keyword in sorted(schema.keys() - _ENFORCED - _IGNORED):
        raise InvalidField(
            f"{keyword!r} of the string parameter {parameter.name} cannot be kept to in the "
            "model's format of calls",
            param="tools",
        )
    bounds = [schema.get("minLength", 0), schema.get("maxLength", "")]
    parts = [rf"(.|\n){{{bounds[0]},{bounds[1]}}}"] if bounds != [0, ""] else []
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        parts.append(_whole(pattern))
    if not parts:
        return ANY_TEXT
    return Regex(parts[0], also=tuple(parts[1:])).excluding(rf"(.|\n)*{re.escape(end)}(.|\n)*")


def _whole(pattern: str) -> str:
    """Returns an expression for the whole text, from one that has to be found somewhere in it."""
    any_text = r"(.|\n)*"
    before = "" if pattern.startswith("^") else any_text
    is_anchored = pattern.endswith("$") and not pattern.endswith(r"\$")
    body = pattern.removeprefix("^").removesuffix("$" if is_anchored else "")
    after = "" if is_anchored else any_text
    return f"{before}({body}){after}"
