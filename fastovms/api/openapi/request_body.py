"""Says in a request body's schema what its dialect adds to its types: ranges, and which fields must
be there."""

from __future__ import annotations

from typing import Any

from fastovms.api.wire.dialect import Dialect, Range

Json = dict[str, Any]


def body_schema(component: Json, required: tuple[str, ...], dialect: Dialect) -> Json:
    """Returns the schema of a body in a dialect.

    Args:
        component: that of its type.
        required: the fields that must be there in every dialect.
    """
    properties = {
        name: _property(name, schema, dialect) for name, schema in component["properties"].items()
    }
    # Ollama's older clients call the model's name by another name.
    if dialect.model_required and "model" in properties and "name" not in properties:
        required = ("model", *required)
    for name in required:
        if "default" in component["properties"][name]:  # then null says that the field is absent
            properties[name] = _without_null(properties[name])
    body = {**component, "properties": properties}
    if required:
        body["required"] = list(required)
    return body


def _property(name: str, schema: Json, dialect: Dialect) -> Json:
    """Returns a field's schema. The default null is left out: it says that the field is absent."""
    schema = {key: value for key, value in schema.items() if key != "default"}
    if name in dialect.refuses_null:
        schema = _without_null(schema)
    bounds = dialect.ranges.get(name)
    if bounds is None:
        return schema
    if "anyOf" not in schema:
        return _bounded(schema, bounds)
    choices = [_bounded(choice, bounds) for choice in schema["anyOf"]]
    if bounds.also is not None:
        choices.append({"const": bounds.also})
    return {**schema, "anyOf": choices}


def _without_null(schema: Json) -> Json:
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if not choices:
        return schema
    return choices[0] if len(choices) == 1 else {**schema, "anyOf": choices}


def _bounded(schema: Json, bounds: Range) -> Json:
    if schema.get("type") not in ("integer", "number"):
        return schema
    words = {
        "exclusiveMinimum" if bounds.low_open else "minimum": bounds.low,
        "exclusiveMaximum" if bounds.high_open else "maximum": bounds.high,
    }
    return {**schema, **{word: bound for word, bound in words.items() if bound is not None}}
