"""Tools and the parameters of their calls, as declared by their JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from fastovms.errors import InvalidField
from fastovms.grammar_tree import ANY_TEXT, Json, Node, Regex, several
from fastovms.json_types import json_type, resolve

_APPLIED = {"allOf", "anyOf", "oneOf"}
_MAX_DEPTH = 4


def constants(parameter: Parameter) -> list[str] | None:
    """Returns the values of a string parameter if the schema enumerates them; otherwise None."""
    schema = parameter.schema
    if not parameter.is_text:
        return None
    if "const" in schema:
        return [str(schema["const"])]
    return [str(value) for value in schema["enum"]] if "enum" in schema else None


def text_body(parameter: Parameter, end: str) -> Regex:
    """Returns the grammar of a string parameter's value. Raises InvalidField if the schema has a
    keyword that no regular expression can express. `end` is the tag after the value, which the
    value cannot contain."""
    parts = [] if parameter.is_free else _expressions(parameter, parameter.schema, 0)
    if not parts:
        return ANY_TEXT
    return Regex(parts[0], also=tuple(parts[1:])).excluding(rf"(.|\n)*{re.escape(end)}(.|\n)*")


def name_patterns(names: str, pattern: str) -> tuple[str, ...]:
    """Returns regular expressions that a parameter's name must all match: `names`, which the tool
    format supports, and `pattern`, the schema's; "" = any name."""
    return (names, _whole(pattern)) if pattern else (names,)


def _expressions(parameter: Parameter, schema: Schema, depth: int) -> list[str]:
    """Returns regular expressions that the text must all match."""
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
                f"{keyword!r} of the string parameter {parameter.name} cannot be enforced in "
                "the tool call format of this model",
                param="tools",
            )
    return parts


def _constants(schema: Schema) -> list[str]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return []
    return ["|".join(re.escape(value) for value in values if isinstance(value, str))]


def _whole(pattern: str) -> str:
    """Converts a regular expression that may match anywhere, with anchors only at its ends, to one
    that matches the whole text."""
    any_text = r"(.|\n)*"
    before = "" if pattern.startswith("^") else any_text
    escapes = len(pattern) - 1 - len(pattern[:-1].rstrip("\\"))
    is_anchored = pattern.endswith("$") and escapes % 2 == 0
    body = pattern.removeprefix("^").removesuffix("$" if is_anchored else "")
    after = "" if is_anchored else any_text
    return f"{before}({body}){after}"


Schema = Mapping[str, Any]
Types = frozenset[str]

ANY_TYPE: Types = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_ONLY_STRING: Types = frozenset(("string",))
_DEFINITIONS = ("$defs", "definitions")
_ROOT = "-root-"
_MAX_SCHEMA_DEPTH = 16
_MAX_COST = 10_000
"""The maximum number of schemas and enumerated values that are checked for the types of one
function's parameters: some 10 ms, because this may run on the event loop when a call begins."""

_NOTHING: Schema = {}

_ANNOTATIONS = {"type", "title", "description", "default", "examples", "format", "deprecated"}

_CHOICES = ("anyOf", "oneOf")

_OTHERS = ("additionalProperties", "unevaluatedProperties")


class Parameter(NamedTuple):
    """A parameter of a function.

    Attributes:
        schema: the schema of its value, with top-level references resolved.
        types: JSON types that the schema allows.
        is_required: whether it is required.
        definitions: the definitions to which the schema refers.
        is_relaxed: whether the grammar ignores keywords that the model's format cannot enforce.
    """

    name: str
    schema: Schema
    types: Types
    is_required: bool
    definitions: Schema
    is_relaxed: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the value is always read as a string."""
        return self.types == _ONLY_STRING

    @property
    def is_free(self) -> bool:
        """Whether any text is a valid value: the schema is empty, or allows any string, also with
        other types that are neither array nor object."""
        if self.types == ANY_TYPE:
            return _has_only_type(self.schema)
        choices = self.schema.get("anyOf", self.schema.get("oneOf", ()))
        rest = {k: v for k, v in self.schema.items() if k not in ("anyOf", "oneOf")}
        return (
            self.types > _ONLY_STRING
            and not self.types & {"array", "object"}
            and _has_only_type(rest)
            and all(isinstance(choice, Mapping) and _has_only_type(choice) for choice in choices)
        )

    @property
    def items(self) -> Parameter | None:
        """The items of a list, as a parameter; None = not declared."""
        if "array" not in self.types or "object" in self.types or "items" not in self.schema:
            return None
        return find_parameters({**self.definitions, "properties": {"": self.schema["items"]}})[""]

    @property
    def choices(self) -> Sequence[object]:
        """The values that the schema enumerates; empty if it allows others."""
        return _enumerated(self.schema, 0)

    @property
    def whole_schema(self) -> Schema:
        """The parameter's schema, including the definitions to which it may refer."""
        return {**self.schema, **self.definitions}


class OtherParameters(NamedTuple):
    """Parameters that a schema allows without declaring their names.

    Attributes:
        pattern: a regular expression that their names match; "" = any name.
        parameter: the parameter that describes each of them.
    """

    pattern: str
    parameter: Parameter


class Parameters(dict[str, Parameter]):
    """The parameters of a function by name, in the order of its schema.

    Attributes:
        others: allowed parameters that are not named in the schema.
        joint_keywords: keywords that constrain several parameters together.
    """

    def __init__(
        self, others: Sequence[OtherParameters] = (), joint_keywords: Collection[str] = ()
    ) -> None:
        super().__init__()
        self.others = others
        self.joint_keywords = joint_keywords

    def find(self, name: str) -> Parameter | None:
        """Returns a parameter by name; a name that is not in the schema may match one of `others`.
        None = not allowed."""
        if name in self or not self.others:
            return self.get(name)
        if len(self.others) == 1:
            return self.others[0].parameter
        types = frozenset[str]().union(*(other.parameter.types for other in self.others))
        return Parameter(name, _NOTHING, types, False, self.others[0].parameter.definitions)


def parameters_of(root: Schema, function: str, *, is_relaxed: bool = False) -> Parameters:
    """Returns the parameters in the order of the schema. Raises InvalidField if the schema has
    keywords that constrain several parameters together, unless `is_relaxed`."""
    found = find_parameters(_with_root_among_definitions(root))
    if is_relaxed:
        relaxed = Parameters(
            [OtherParameters(p, q._replace(is_relaxed=True)) for p, q in found.others]
        )
        relaxed.update({name: found[name]._replace(is_relaxed=True) for name in found})
        return relaxed
    if found.joint_keywords:
        raise InvalidField(
            f"{' and '.join(map(repr, found.joint_keywords))} next to the properties of {function} "
            "cannot be enforced in the tool call format of this model",
            param="tools",
        )
    return found


def _with_root_among_definitions(root: Schema) -> Schema:
    """Returns the schema without references to its root, or to parts of it that are not
    definitions, because the schemas of parameters are taken out of it."""

    has_moved: list[bool] = []

    def moved(part: dict[str, Any]) -> dict[str, Any]:
        reference = part.get("$ref")
        if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
            return part
        if reference.split("/")[1:2] in (["$defs"], ["definitions"]):
            return part
        has_moved.append(True)
        return {**part, "$ref": f"#/$defs/{_ROOT}{reference[1:]}"}

    try:
        text = json.dumps(root)
        found: dict[str, Any] = json.loads(text, object_hook=moved) if '"$ref"' in text else {}
    except (ValueError, RecursionError):
        return root
    if not has_moved:
        return root
    definitions, own = found.get("$defs"), {k: found[k] for k in found if k not in _DEFINITIONS}
    return {
        **found,
        "$defs": {**(definitions if isinstance(definitions, dict) else {}), _ROOT: own},
    }


def find_parameters(root: Schema) -> Parameters:
    """Returns the parameters by name. Malformed parts of the schema are ignored."""
    members = _Members(root)
    members.read_all(resolve_definition(root, root))
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    reader = _TypeReader(root)

    def parameter(name: str, schemas: Sequence[Any]) -> Parameter:
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
        own = _flattened(resolve_definition(schema, root), root)
        return Parameter(name, own, reader.types(own), name in members.required, definitions)

    others = [
        OtherParameters(pattern, parameter("", schemas))
        for pattern, schemas in members.others.items()
    ]
    found = Parameters(others, members.joint_keywords)
    for name, schemas in members.properties.items():
        found[name] = parameter(name, schemas or [{}])
    return found


class _Members:
    """The members that an object may have by all parts of its schema.

    Attributes:
        properties: schemas by name; a member must match one of them.
        others: schemas by pattern of names; "" = any name.
        required: names of required members.
        joint_keywords: keywords that constrain several members together.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._cost_left = _MAX_COST
        self._is_closed = False
        self._declares = not root
        self.properties: dict[str, list[Any]] = {}
        self.others: dict[str, list[Any]] = {}
        self.required: dict[str, None] = {}
        self.joint_keywords: dict[str, None] = {}

    def read_all(self, schema: Schema) -> None:
        """Reads the whole schema. An object that declares no properties may have any."""
        self._read(schema, 0)
        if not self._declares and not self._is_closed:
            self.others.setdefault("", [{}])

    def _read(self, schema: Schema, depth: int) -> None:
        """Adds the members of one of several schemas that must all hold."""
        self._cost_left -= 1
        if depth == _MAX_SCHEMA_DEPTH or self._cost_left < 0:
            return
        required = [name for name in _list(schema.get("required")) if isinstance(name, str)]
        self.required.update(dict.fromkeys(required))
        self._add(schema)
        for name in required:
            self.properties.setdefault(name, [])
        least, most = schema.get("minProperties"), schema.get("maxProperties")
        if isinstance(least, int | float) and least > len(self.required):
            self.joint_keywords["minProperties"] = None
        if isinstance(most, int | float) and (self.others or most < len(self.properties)):
            self.joint_keywords["maxProperties"] = None
        for part in _list(schema.get("allOf")):
            self._read(resolve_definition(part, self._root), depth + 1)
        for keyword in _CHOICES:
            if schema.get(keyword):
                self.joint_keywords[keyword] = None
            for choice in _list(schema.get(keyword)):
                self._read_choice(resolve_definition(choice, self._root), depth + 1)

    def _read_choice(self, schema: Schema, depth: int) -> None:
        """Adds the members of one of several alternatives."""
        self._cost_left -= 1
        if depth < _MAX_SCHEMA_DEPTH and self._cost_left >= 0:
            self._add(schema)
            for keyword in ("allOf", *_CHOICES):
                for part in _list(schema.get(keyword)):
                    self._read_choice(resolve_definition(part, self._root), depth + 1)

    def _add(self, schema: Schema) -> None:
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            self._declares = True
            self._cost_left -= len(properties)
            for name, one in properties.items():
                schemas = self.properties.setdefault(name, [])
                if one not in schemas[:_MAX_SCHEMA_DEPTH]:
                    schemas.append(one)
        patterns = schema.get("patternProperties")
        if isinstance(patterns, Mapping):
            self._declares = True
            for pattern, one in patterns.items():
                self.others.setdefault(pattern, []).append(one)
        for keyword in _OTHERS:
            others = schema.get(keyword)
            if others is False:
                self._is_closed = True
            elif keyword in schema:
                self.others.setdefault("", []).append(others)


def _has_only_type(schema: Schema) -> bool:
    """Returns whether a schema has no keyword except a type."""
    return schema.keys() <= _ANNOTATIONS


def _enumerated(schema: object, depth: int) -> list[Any]:
    if not isinstance(schema, Mapping) or depth == _MAX_DEPTH:
        return []
    if "const" in schema:
        return [schema["const"]]
    found = [_enumerated(one, depth + 1) for key in _CHOICES for one in _list(schema.get(key))]
    return _list(schema.get("enum")) or [one for part in found for one in part if all(found)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def resolve_definition(schema: object, root: Schema) -> Schema:
    """Returns the schema with references to definitions resolved."""
    for _ in range(_MAX_SCHEMA_DEPTH):
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
    """Returns the inner schema of a schema that only wraps another one, as some generators write a
    reference with a default."""
    for keyword in ("allOf", "anyOf", "oneOf"):
        parts = _list(schema.get(keyword))
        if len(parts) == 1:
            rest = {key: value for key, value in schema.items() if key != keyword}
            return {**resolve_definition(parts[0], root), **rest}
    return schema


class _TypeReader:
    """Finds the JSON types that the schemas within one root allow. The cost is limited, because
    references may be circular or exponentially many."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._cost_left = _MAX_COST

    def types(self, schema: Schema) -> Types:
        """Returns the types of the values that a schema allows; all types if the schema is too
        complex."""
        return self._types(schema, {}, 0) or frozenset()

    def _types(self, schema: Schema, found: dict[int, Types | None], depth: int) -> Types | None:
        """Returns the types, or None for a circular reference. `found` has the types of visited
        schemas by identity; None = being visited."""
        key = id(schema)
        if key in found:
            return found[key]
        self._cost_left -= 1
        if depth == _MAX_SCHEMA_DEPTH or self._cost_left < 0:
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
            yield self._types(resolve_definition(schema, self._root), found, depth + 1)

    def _own_types(self, schema: Schema) -> Types:
        """Returns the types that a schema allows, without its subschemas."""
        types = ANY_TYPE
        if "const" in schema:
            types &= {json_type(schema["const"])}
        if "enum" in schema:
            choices = _list(schema["enum"])
            self._cost_left -= len(choices)
            types &= {json_type(value) for value in choices}
        kind = schema.get("type")
        if isinstance(kind, str):
            types &= _declared({kind})
        elif kind is not None:
            types &= _declared({k for k in _list(kind) if isinstance(k, str)})
        return types | {"null"} if schema.get("nullable") is True else types


def _declared(kinds: set[str]) -> Types:
    """Returns the types with these names. A name that JSON Schema does not define allows any
    type."""
    if not kinds <= ANY_TYPE:
        return ANY_TYPE
    return frozenset(kinds | {"integer"} if "number" in kinds else kinds)


_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Attributes:
        parameters: JSON schema of the arguments; empty = no arguments.
        is_relaxed: whether the grammar ignores keywords that the model's format cannot enforce.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_relaxed: bool = False

    @cached_property
    def known_parameters(self) -> Parameters:
        """The declared parameters by name. Cached, because parsers need them at every call."""
        return find_parameters(self.parameters)

    def enforced_parameters(self) -> Parameters:
        """Returns the parameters for a grammar with one rule per parameter. Raises InvalidField if
        such a grammar cannot enforce the schema."""
        return parameters_of(self.parameters, self.name, is_relaxed=self.is_relaxed)

    @property
    def arguments(self) -> Json:
        """The grammar of the arguments as a JSON object."""
        return Json.of({**(self.parameters or _NO_PARAMETERS), "type": "object"})


@dataclass(frozen=True, slots=True)
class CallChoice:
    """The tool calls that a request allows.

    Attributes:
        tools: the functions that may be called, at least one.
        required: whether the answer must be calls; otherwise it may be text, calls or both.
        parallel: whether there may be more than one call.
        strict: whether a call must follow its function's schema even if calls are optional.
    """

    tools: Sequence[Tool]
    required: bool = False
    parallel: bool = True
    strict: bool = False

    def several(self, call: Node, between: Node | str) -> Node:
        """Returns the grammar of one call, or of several if parallel calls are allowed."""
        return several(call, between) if self.parallel else call
