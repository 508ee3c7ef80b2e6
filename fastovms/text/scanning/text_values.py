"""Writes grammars of string arguments that are written without quotes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fastovms.errors import InvalidField
from fastovms.grammar_tree import ANY_TEXT, Regex
from fastovms.text.scanning.parameters import Parameter, Schema, resolve_definition

_APPLIED = {"allOf", "anyOf", "oneOf"}
_MAX_DEPTH = 4


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
    parts = [] if parameter.is_free else _expressions(parameter, parameter.schema, 0)
    if not parts:
        return ANY_TEXT
    return Regex(parts[0], also=tuple(parts[1:])).excluding(rf"(.|\n)*{re.escape(end)}(.|\n)*")


def name_patterns(names: str, pattern: str) -> tuple[str, ...]:
    """Returns expressions of the names that a format can write and in which a pattern is found."""
    return (names, _whole(pattern)) if pattern else (names,)


def _expressions(parameter: Parameter, schema: Schema, depth: int) -> list[str]:
    """Returns expressions that a text matches, all of them."""
    schema = resolve_definition(schema, parameter.definitions)
    bounds = [schema.get("minLength", 0), schema.get("maxLength", "")]
    parts = [rf"(.|\n){{{bounds[0]},{bounds[1]}}}"] if bounds != [0, ""] else []
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        parts.append(_whole(pattern))
    if depth:
        parts += _constants(schema)
    for keyword in _APPLIED & schema.keys():
        listed = schema[keyword]
        if not isinstance(listed, list):
            continue
        found = [
            _expressions(parameter, one, depth + 1) if isinstance(one, Mapping) else []
            for one in (listed if depth < _MAX_DEPTH else ())
        ]
        if keyword == "allOf":
            parts += [one for expressions in found for one in expressions]
        elif found and all(len(expressions) == 1 for expressions in found):
            parts.append("|".join(f"({one})" for [one] in found))
        elif not parameter.is_relaxed and any(found):
            raise InvalidField(
                f"{keyword!r} of the string parameter {parameter.name} cannot be enforced in the "
                "model's format of calls",
                param="tools",
            )
    return parts


def _constants(schema: Schema) -> list[str]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return []
    return ["|".join(re.escape(value) for value in values if isinstance(value, str))]


def _whole(pattern: str) -> str:
    """Returns an expression for the whole text, from one that has to be found somewhere in it."""
    any_text = r"(.|\n)*"
    before = "" if pattern.startswith("^") else any_text
    is_anchored = pattern.endswith("$") and not pattern.endswith(r"\$")
    body = pattern.removeprefix("^").removesuffix("$" if is_anchored else "")
    after = "" if is_anchored else any_text
    return f"{before}({body}){after}"
