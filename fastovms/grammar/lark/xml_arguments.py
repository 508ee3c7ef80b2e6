"""Writes grammars of arguments as elements, `<parameter=name>value</parameter>`, as Qwen 3 Coder
writes them: the style `qwen_xml` of XGrammar's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastovms.grammar.lark.lark_writer import FreeText, LarkPart, LarkWriter, quoted

_END: Final = "</parameter>"
_SPACE: Final = LarkPart(r"/[ \n\t]*/", True)
_ANNOTATIONS: Final = {"type", "title", "description", "default", "examples", "deprecated"}
_OBJECT: Final = {
    *_ANNOTATIONS, "properties", "required", "additionalProperties", "$defs", "definitions",
    "$schema", "$id",
}  # fmt: skip
_DEFINITIONS: Final = ("$defs", "definitions")

Schema = Mapping[str, Any]


def xml_arguments(
    writer: LarkWriter, schema: Schema, json_value: Callable[[Schema], LarkPart]
) -> list[LarkPart]:
    """Returns an expression with one element for each property, in their order; a string is written
    as it is, all else as JSON. What the schema does not name is not allowed.

    Args:
        json_value: makes the part that is a value of a schema.

    Raises:
        ValueError: the schema says more than that, or is malformed.
    """
    more = schema.keys() - _OBJECT
    if more:
        raise ValueError(f"has {min(more)!r}, which cannot be kept to in elements")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type", "object") != "object":
        raise ValueError("must be of an object")
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise ValueError("must have properties as an object and required as a list")
    missing = [name for name in required if name not in properties]
    if missing:
        raise ValueError(f"requires {missing[0]!r}, which is none of its properties")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    parts: list[LarkPart] = []
    for name, its_schema in properties.items():
        argument = [
            *writer.literal(f"<parameter={name}>"),
            *_value(writer, its_schema, definitions, json_value),
            _SPACE,
        ]
        parts += argument if name in required else [writer.repeat(argument, "?")]
    return [_SPACE, *parts]


def _value(
    writer: LarkWriter,
    schema: object,
    definitions: Schema,
    json_value: Callable[[Schema], LarkPart],
) -> list[LarkPart]:
    """Returns an expression of a value, with the end of the element."""
    if not isinstance(schema, Mapping):
        raise ValueError("must have schemas as properties")
    if schema.get("type") != "string":
        return [_SPACE, json_value({**schema, **definitions}), _SPACE, *writer.literal(_END)]
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        texts = [choice for choice in choices if isinstance(choice, str)]
        if not texts:
            raise ValueError("must have a string to choose")
        return [LarkPart(f"({' | '.join(map(quoted, texts))})", True), *writer.literal(_END)]
    more = schema.keys() - _ANNOTATIONS
    if more:
        raise ValueError(f"cannot have {min(more)!r} of a string that is written as it is")
    return [LarkPart(FreeText(writer, [_END]).until(_END), False)]
