"""Reads the parameters of a function from its JSON schema: for formats that write each argument by
itself, so that its type decides what the text stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fastovms.errors import InvalidField
from fastovms.json_types import json_type, resolve
from fastovms.text.scanning.json_text import JSON, escape
from fastovms.text.scanning.literals import to_json
from fastovms.text.scanning.python_text import PYTHON

Schema = Mapping[str, Any]
Types = frozenset[str]

ANY_TYPE: Types = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_ONLY_STRING: Types = frozenset(("string",))
_DEFINITIONS = ("$defs", "definitions")
_MAX_DEPTH = 16
_MAX_COST = 10_000
"""How many schemas and values of enumerations are looked at to find the types of one function's
parameters: some 10 ms, since a call that the model begins may wait for them on the event loop."""

_NOTHING: Schema = {}

_ANNOTATIONS = {"type", "title", "description", "default", "examples", "format", "deprecated"}

# What says more about the whole object than its properties do.
_WHOLE_OBJECT = (
    "anyOf", "oneOf", "allOf", "not", "if", "minProperties", "dependentRequired",
    "dependentSchemas", "dependencies", "propertyNames",
)  # fmt: skip


class Parameter(NamedTuple):
    """A parameter of a function.

    Attributes:
        schema: its value's, references resolved at the top.
        types: JSON types that the schema allows.
        is_required: whether it has to be there.
        definitions: what references in the schema point to.
    """

    name: str
    schema: Schema
    types: Types
    is_required: bool
    definitions: Schema

    @property
    def is_text(self) -> bool:
        """Whether it is a string whatever the text looks like."""
        return self.types == _ONLY_STRING

    @property
    def is_free(self) -> bool:
        """Whether any text is a value: the schema asks for nothing, or for a string or null."""
        if self.types == ANY_TYPE:
            return _asks_nothing(self.schema)
        choices = self.schema.get("anyOf", self.schema.get("oneOf", ()))
        rest = {k: v for k, v in self.schema.items() if k not in ("anyOf", "oneOf")}
        return (
            self.types == {"string", "null"}
            and _asks_nothing(rest)
            and all(isinstance(choice, Mapping) and _asks_nothing(choice) for choice in choices)
        )

    @property
    def whole_schema(self) -> Schema:
        """Returns a schema that stands for itself."""
        return {**self.schema, **self.definitions}


def parameters_of(root: Schema, function: str) -> list[Parameter]:
    """Returns the parameters in the order of the schema.

    Raises:
        InvalidField: the schema says more than can be said a parameter at a time.
    """
    resolved = _resolve(root, root)
    for keyword in _WHOLE_OBJECT:
        if resolved.get(keyword):
            raise InvalidField(
                f"the parameters of {function} have {keyword!r} beside the properties, which calls "
                "in the model's format cannot be kept to",
                param="tools",
            )
    return list(find_parameters(root).values())


def find_parameters(root: Schema) -> dict[str, Parameter]:
    """Returns the parameters by name. Whatever in the schema is malformed is left out."""
    resolved = _resolve(root, root)
    properties = resolved.get("properties")
    required = resolved.get("required")
    names = [name for name in _list(required) if isinstance(name, str)]
    schemas: dict[str, Any] = dict(properties) if isinstance(properties, Mapping) else {}
    for name in names:
        schemas.setdefault(name, {})
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    found, reader = {}, _TypeReader(root)
    for name, schema in schemas.items():
        own = _flattened(_resolve(schema, root), root)
        types = reader.types(own)
        found[name] = Parameter(name, own, types, name in names, definitions)
    return found


def _asks_nothing(schema: Schema) -> bool:
    """Returns whether a schema asks for nothing but a type."""
    return schema.keys() <= _ANNOTATIONS


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _resolve(schema: object, root: Schema) -> Schema:
    """Returns the schema behind references to definitions."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return _NOTHING
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        try:
            schema = resolve(reference, root)
        except LookupError:
            return _NOTHING
    return _NOTHING


def _flattened(schema: Schema, root: Schema) -> Schema:
    """Returns the inner one of a schema that consists of one other, as some generators write a
    reference with a default."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        parts = _list(schema.get(keyword))
        if len(parts) == 1:
            rest = {key: value for key, value in schema.items() if key != keyword}
            return {**_resolve(parts[0], root), **rest}
    return schema


class _TypeReader:
    """Finds which types the schemas within one root allow, at a bounded cost: references may lead
    back, or to the same schema by a number of ways that grows with each."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._cost_left = _MAX_COST

    def types(self, schema: Schema) -> Types:
        """Returns the types of the values that a schema allows; all of them where finding out would
        cost too much."""
        return self._types(schema, {}, 0) or frozenset()

    def _types(self, schema: Schema, found: dict[int, Types | None], depth: int) -> Types | None:
        """Returns the types, or None within the schema itself, to which it adds nothing. `found`
        has those of the schemas that were met before, by identity; None = it is being read."""
        key = id(schema)
        if key in found:
            return found[key]
        self._cost_left -= 1
        if depth == _MAX_DEPTH or self._cost_left < 0:
            return ANY_TYPE
        found[key] = None
        types = self._own_types(schema)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                choices = _list(schema[keyword])
                parts = [part for part in self._parts(choices, found, depth) if part is not None]
                if parts or not choices:
                    types &= frozenset().union(*parts)
        for part in self._parts(_list(schema.get("allOf")), found, depth):
            if part is not None:
                types &= part
        found[key] = types
        return types

    def _parts(
        self, schemas: Sequence[object], found: dict[int, Types | None], depth: int
    ) -> Iterator[Types | None]:
        for schema in schemas:
            if isinstance(schema, Mapping):
                self._cost_left -= len(str(schema.get("$ref", ""))) // 100
            yield self._types(_resolve(schema, self._root), found, depth + 1)

    def _own_types(self, schema: Schema) -> Types:
        """Returns the types that a schema allows, but for what those within it say."""
        types = ANY_TYPE
        if "const" in schema:
            types &= {json_type(schema["const"])}
        if "enum" in schema:
            choices = _list(schema["enum"])
            self._cost_left -= len(choices)
            types &= {json_type(value) for value in choices}
        kind = schema.get("type")
        if isinstance(kind, str):
            types &= _with_integer({kind})
        elif kind is not None:
            types &= _with_integer({k for k in _list(kind) if isinstance(k, str)})
        return types


def _with_integer(kinds: set[str]) -> Types:
    return frozenset(kinds | {"integer"} if "number" in kinds else kinds)


_FIRST_CHARACTERS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean"}


def value_of(text: str, types: Types) -> str:
    """Returns as JSON what a text stands for as a value of these types: itself, if it is JSON or a
    literal of Python of one of them, else a string."""
    word = text.strip()
    for notation in (JSON, PYTHON):
        value = to_json(word, notation)
        if value is not None and (_json_type(value) in types or "string" not in types):
            return value
    return f'"{escape(text)}"'


def _json_type(text: str) -> str:
    if text == "null":
        return "null"
    number = "integer" if text.lstrip("-").isdigit() else "number"
    return _FIRST_CHARACTERS.get(text[0], number)
