"""Closes JSON schemas: an object that declares properties has no others, unless its schema says
something of others.

JSON Schema lets such an object have any other property, which a model then makes up. What holds at
once (`allOf`, and whatever stands beside `anyOf`, `oneOf` or `$ref`) is merged first: each part by
itself would rule out what the others declare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from fastovms.grammar.schemas.finite_schema import Schema, parts_of, rewritten
from fastovms.grammar.schemas.other_names import other_names
from fastovms.grammar.schemas.schema_merging import merged
from fastovms.json_types import resolve

_OTHERS: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")
"""The keywords that say something of properties that are not declared."""

_SAYS_OF_ANY: Final = ("additionalProperties", "unevaluatedProperties")

_CHOICES: Final = ("anyOf", "oneOf")
_APPLICATORS: Final[Mapping[str, type]] = {"$ref": str, "allOf": list, "anyOf": list, "oneOf": list}
_DEFINITIONS: Final = ("$defs", "definitions")
_OPTIONS: Final = "x-guidance"
_ANNOTATIONS: Final = {
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema",
    "$id", "$anchor", "$comment", "discriminator", _OPTIONS, *_DEFINITIONS,
}  # fmt: skip
_NOT_OWN: Final = {*_APPLICATORS, *_ANNOTATIONS, "unevaluatedProperties"}

_MAPS: Final = {"properties", "patternProperties"}
_LISTS: Final = {"prefixItems", "items"}
_SCHEMAS: Final = {"additionalProperties", "items", "additionalItems"}

_NAME: Final = re.compile(r"[\w.-]+", re.ASCII)
_MAX_SHOWN: Final = 100
_MAX_MERGES: Final = 2000
"""How many schemas may be merged: far more than anybody's alternatives need."""


def closed_schema(root: Schema) -> object:
    """Returns the schema with all its objects closed, in which nothing stands beside `anyOf`,
    `oneOf` or `$ref`; false where nothing satisfies it. What is malformed is left as it is, for
    llguidance to complain of.

    Raises:
        ValueError: a reference points to nothing, or there is too much to merge.
    """
    return _Closing(root).closed()


def strict_schema(root: Schema) -> Schema:
    """Returns a schema whose objects have no properties but those that they declare, if they
    declare any, whatever it says of others."""
    return _each(root, _strict)


def shut_schema(root: Schema) -> Schema:
    """Returns a schema whose objects have no properties but those that they declare or have
    patterns for, if there are any, unless it says something of others."""
    return _each(root, _shut)


def open_schema(root: Schema) -> Schema:
    """Returns a schema whose objects may have any properties beside those that they declare, unless
    it says something of others."""
    return _each(root, _open)


def _strict(part: Schema) -> Schema:
    if not _declares(part):
        return part
    return {key: part[key] for key in part if key not in _OTHERS or part[key] is False}


def _shut(part: Schema) -> Schema:
    has_patterns = isinstance(part.get("patternProperties"), Mapping)
    if not has_patterns or not part.keys().isdisjoint(_SAYS_OF_ANY):
        return part
    return {**part, "additionalProperties": False}


def _open(part: Schema) -> Schema:
    if not _declares(part) or not part.keys().isdisjoint(_OTHERS):
        return part
    return {**part, "additionalProperties": True}


def _each(root: Schema, change: Callable[[Schema], Schema]) -> Schema:
    changed = {id(part): change(part) for part in parts_of(root)}
    try:
        found: Schema = rewritten(root, lambda part: changed.get(id(part), part))
    except RecursionError:  # whoever compiles it says so
        return root
    return found


def _declares(schema: Schema) -> bool:
    return isinstance(schema.get("properties"), Mapping)


class _Closing:
    """A schema that is being closed.

    What references lead to becomes one of its definitions, and so does what has been merged, so
    that each is made once, however often it leads to itself.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._names: dict[object, str] = {}
        self._pending: list[tuple[str, Schema, bool]] = []
        self._pairs: dict[tuple[int, ...], Schema] = {}
        self._parts_of_pairs: dict[int, list[Any]] = {}
        self._num_merges = 0

    def closed(self) -> object:
        found = self._value(self._root)
        if not isinstance(found, Mapping):
            return {} if found is True else found
        definitions: dict[str, object] = {}
        while self._pending:
            name, schema, is_merged = self._pending.pop()
            definitions[name] = self._merged(schema) if is_merged else self._value(schema)
        if _OPTIONS in self._root:
            found = {**found, _OPTIONS: self._root[_OPTIONS]}
        return {**found, "$defs": definitions} if definitions else found

    def _value(self, schema: Any) -> Any:
        """Returns the closed schema of a value."""
        if not isinstance(schema, Mapping):
            return schema
        applied = [key for key, kind in _APPLICATORS.items() if isinstance(schema.get(key), kind)]
        if not applied:
            return self._plain(schema)
        key = applied[0]
        if len(applied) > 1 or schema.keys() - {key, *_ANNOTATIONS}:
            return self._defined(id(schema), "merged", schema, is_merged=True)
        if key == "$ref":
            return self._referred(schema[key])
        if key == "allOf" and len(schema[key]) != 1:
            return self._defined(id(schema), "merged", schema, is_merged=True)
        values = list(map(self._value, schema[key]))
        return values[0] if key == "allOf" else {key: values}

    def _merged(self, schema: Schema) -> object:
        found = [self._plain(part) for part in self._alternatives(schema, ())]
        if not found:
            return False
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _alternatives(self, schema: object, inside: Sequence[str]) -> list[dict[str, Any]]:
        """Returns schemas of which one must hold, with nothing to merge left in them.

        Args:
            inside: the references that have led here. What leads to itself has no alternatives
                beside those that it has elsewhere.
        """
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, Mapping):
            raise ValueError(f"a schema in it must be an object or a boolean, not {schema!r:.100}")
        own = {key: value for key, value in schema.items() if key not in _NOT_OWN}
        place = next((key for key in ("properties", "required", *own) if key in own), None)
        alternatives: list[dict[str, Any]] = [{}]
        for key, value in schema.items():
            if key == place:
                alternatives = self._all_merged(alternatives, [own])
            elif key == "$ref" and isinstance(value, str):
                found = [] if value in inside else [self._target(value)]
                alternatives = self._all_merged(alternatives, self._any_of(found, (*inside, value)))
            elif key == "allOf" and isinstance(value, list):
                for part in value:
                    alternatives = self._all_merged(alternatives, self._any_of([part], inside))
            elif key in _CHOICES and isinstance(value, list):
                alternatives = self._all_merged(alternatives, self._any_of(value, inside))
        if "unevaluatedProperties" in schema:
            others = {"additionalProperties": schema["unevaluatedProperties"]}
            alternatives = [{**others, **alternative} for alternative in alternatives]
        return alternatives

    def _any_of(self, schemas: Sequence[object], inside: Sequence[str]) -> list[dict[str, Any]]:
        return [one for schema in schemas for one in self._alternatives(schema, inside)]

    def _all_merged(
        self, first: list[dict[str, Any]], second: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        self._num_merges += len(first) * len(second)
        if self._num_merges > _MAX_MERGES:
            raise ValueError(f"more than {_MAX_MERGES} schemas in it would have to be merged")
        found = (merged(one, other, self._both) for one, other in product(first, second))
        return [schema for schema in found if schema is not None]

    def _both(self, first: Any, second: Any) -> Schema:
        """Returns the same schema for the same two, so that what leads to itself comes to an
        end."""
        parts: dict[int, Any] = {}
        for schema in (first, second):
            parts |= {id(part): part for part in self._parts_of_pairs.get(id(schema), [schema])}
        pair = self._pairs.setdefault(tuple(parts), {"allOf": [*parts.values()]})
        self._parts_of_pairs[id(pair)] = pair["allOf"]
        return pair

    def _plain(self, schema: Schema) -> Schema:
        """Returns a schema closed in which there is nothing to merge."""
        found = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
        if "unevaluatedProperties" in found:
            found = {"additionalProperties": found.pop("unevaluatedProperties"), **found}
        if _declares(found):
            found = _closed_object(found)
        return self._with_values(found)

    def _with_values(self, schema: Schema) -> dict[str, Any]:
        """Returns the schema with those of the values in it closed, but not its own object."""
        found: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _MAPS and isinstance(value, Mapping):
                value = {name: self._value(part) for name, part in value.items()}
            elif key in _LISTS and isinstance(value, list):
                value = [self._value(part) for part in value]
            elif key == "allOf" and isinstance(value, list):  # what could not be merged
                value = [
                    self._with_values(part) if isinstance(part, Mapping) else part for part in value
                ]
            elif key in _SCHEMAS:
                value = self._value(value)
            found[key] = value
        return found

    def _referred(self, reference: str) -> Any:
        if reference == "#":
            return {"$ref": reference}
        target = self._target(reference)
        if not isinstance(target, Mapping):
            return target
        return self._defined(reference, reference.rpartition("/")[2], target)

    def _target(self, reference: str) -> Any:
        try:
            return resolve(reference, self._root)
        except LookupError:
            for part in parts_of(self._root):
                if f"#{part.get('$anchor')}" == reference:
                    return part
        raise ValueError(f"$ref {json.dumps(reference)[:_MAX_SHOWN]} points to nothing in it")

    def _defined(
        self, key: object, name: str, schema: Schema, *, is_merged: bool = False
    ) -> Schema:
        """Returns a reference to the definition that stands for `key`, which is made of the schema
        if there is none yet."""
        if key not in self._names:
            taken = self._names.values()
            if _NAME.fullmatch(name) is None or name in taken:
                name = "part"
            number = len(self._names)
            self._names[key] = f"{name}.{number}" if is_merged or name == "part" else name
            self._pending.append((self._names[key], schema, is_merged))
        return {"$ref": f"#/$defs/{self._names[key]}"}


def _closed_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema that declares properties, for objects alone if it does not say what it is
    for, and closed if it says nothing of other properties. Where there may be others, they are told
    by a pattern that no declared name matches: compilers would let those come again, spelled with
    escapes perhaps."""
    if schema.keys().isdisjoint(("type", "enum", "const")):
        schema = {"type": "object", **schema}
    if not schema.keys().isdisjoint(("enum", "const", "patternProperties")):
        return schema
    others = schema.get("additionalProperties", False)
    if "additionalProperties" in schema and others is False:
        return schema
    properties = dict(schema["properties"])
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str):
            properties.setdefault(name, others or {})
    if others is not False and properties:
        schema = {**schema, "patternProperties": {other_names(properties): others}}
        others = False
    return {**schema, "properties": properties, "additionalProperties": others}
