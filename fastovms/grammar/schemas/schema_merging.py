"""Merges two JSON schemas that hold at once into one, so that every compiler of grammars reads the
same from them: XGrammar takes no notice of what stands beside `anyOf`, `allOf` or `$ref`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from fastovms.grammar.schemas.finite_schema import Schema

Both = Callable[[Any, Any], Any]
"""Makes a schema of two that both hold, for a part that stands further in."""

_BOUNDS: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}
_APART: Final = {"pattern", "format", "multipleOf", "items", "prefixItems", "additionalItems"}
"""Keywords of which a schema cannot have two: the second stays in an `allOf`."""

_CHOICES: Final = ("const", "enum")
_NUMBERS: Final = {"number", "integer"}


def merged(first: Schema, second: Schema, both: Both) -> dict[str, Any] | None:
    """Returns what both schemas say, neither of which has `$ref`, `anyOf` or `oneOf`; None where
    their types or choices have nothing in common. What one schema cannot say of it stays in an
    `allOf`. Annotations are those of the first."""
    if not _can_merge_objects(first, second):
        return {**first, "allOf": [*first.get("allOf", ()), second]}
    result = {**first, **_merged_objects(first, second, both)}
    apart: dict[str, Any] = {}
    for key, value in second.items():
        mine: Any = first.get(key)
        if key in _OBJECT or key in _CHOICES:
            continue
        if key not in first:
            result[key] = value
        elif key == "allOf":
            result[key] = [*mine, *value]
        elif key == "type":
            result[key] = _common_types(mine, value)
        elif key == "items" and isinstance(mine, Mapping) and isinstance(value, Mapping):
            result[key] = both(mine, value)
        elif key in _APART and mine != value:
            apart[key] = value
        elif key in _BOUNDS and _is_number(mine) and _is_number(value):
            result[key] = _BOUNDS[key](mine, value)
    _merge_choices(result, second)
    if [] in (result.get("type"), result.get("enum")):
        return None
    return {**result, "allOf": [*result.get("allOf", ()), apart]} if apart else result


_OBJECT: Final = ("properties", "required", "additionalProperties", "patternProperties")


def _can_merge_objects(first: Schema, second: Schema) -> bool:
    """Returns whether it is known which names each of two objects says something about: llguidance
    knows which of them fit a pattern."""
    for mine, other in ((first, second), (second, first)):
        if "patternProperties" in mine and other.keys() & {
            "properties", "patternProperties", "additionalProperties",
        }:  # fmt: skip
            return False
    return all(
        isinstance(schema.get(key, kind()), kind)
        for schema in (first, second)
        for key, kind in (("properties", dict), ("required", list), ("allOf", list))
    )


def _merged_objects(first: Schema, second: Schema, both: Both) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if "properties" in first or "properties" in second:
        names = dict.fromkeys((*first.get("properties", ()), *second.get("properties", ())))
        result["properties"] = {
            name: _holding(_of_property(first, name), _of_property(second, name), both)
            for name in names
        }
    if "required" in first or "required" in second:
        required = (*first.get("required", ()), *second.get("required", ()))
        result["required"] = [name for i, name in enumerate(required) if name not in required[:i]]
    if "additionalProperties" in first or "additionalProperties" in second:
        mine, other = (schema.get("additionalProperties", True) for schema in (first, second))
        result["additionalProperties"] = _holding(mine, other, both)
    if "patternProperties" in second:
        result["patternProperties"] = second["patternProperties"]
    return result


def _of_property(schema: Schema, name: str) -> Any:
    named = schema.get("properties", {})
    return named[name] if name in named else schema.get("additionalProperties", True)


def _holding(first: Any, second: Any, both: Both) -> Any:
    if first is True or second is False:
        return second
    return first if second is True or first is False else both(first, second)


def _common_types(first: object, second: object) -> object:
    mine, other = (names if isinstance(names, list) else [names] for names in (first, second))
    if not all(isinstance(name, str) for name in (*mine, *other)):
        return first
    found = [name for name in mine if name in other or (name == "integer" and "number" in other)]
    if "number" in mine and not _NUMBERS & {*found}:
        found += [name for name in other if name == "integer"]
    return found[0] if len(found) == 1 else found


def _merge_choices(result: dict[str, Any], second: Schema) -> None:
    choices = _choices(second)
    if choices is None:
        return
    mine = _choices(result)
    if mine is not None:
        texts = {json.dumps(choice, sort_keys=True) for choice in choices}
        choices = [choice for choice in mine if json.dumps(choice, sort_keys=True) in texts]
        result.pop("const", None)
        result["enum"] = choices
    else:
        result |= {key: second[key] for key in _CHOICES if key in second}


def _choices(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
